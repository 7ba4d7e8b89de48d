"""What two networks answer to the same test inputs: counted by class, and shown on some images, for a reader who wants
to see what was lost."""

import base64
import io
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from quern.data import ImageSet
from quern.records import Answers

__all__ = ["counted", "judged", "samples"]

OF_EACH_KIND = 6


@torch.no_grad()
def judged(dense: nn.Module, small: nn.Module, batches: Iterable[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """The class of every input, and who answers right: 0 both networks, 1 only the dense one, 2 only the small one,
    3 neither. One pass over the batches; the networks are in eval mode."""
    labels, kinds = [], []
    for x, classes in batches:
        dense_wrong, small_wrong = (network(x).argmax(1) != classes for network in (dense, small))
        labels.append(classes.cpu())
        kinds.append((2 * dense_wrong + small_wrong).cpu())
    return torch.cat(labels), torch.cat(kinds)


def counted(labels: Tensor, kinds: Tensor, names: Sequence[str]) -> tuple[Answers, ...]:
    """What :func:`judged` found, by class; classes without a name have their number for one."""
    table = (4 * labels + kinds).bincount(minlength=4 * (int(labels.max()) + 1)).view(-1, 4).tolist()
    return tuple(
        Answers(names[n] if n < len(names) else str(n), *counts) for n, counts in enumerate(table) if any(counts)
    )


@torch.no_grad()
def samples(dense: nn.Module, small: nn.Module, images: ImageSet, kinds: Tensor) -> dict[str, Any]:
    """Up to six test images of each of the kinds of :func:`judged`, evenly spaced in their order, which may be that of
    the classes; as base64 PNG, with the label, and each network's answer and how sure it is (the softmax of its
    scores)."""
    places = [torch.nonzero(kinds == kind).flatten() for kind in range(4)]
    spaced = [torch.linspace(0, len(some) - 1, min(OF_EACH_KIND, len(some))).round().long() for some in places]
    chosen = torch.cat([some[which] for some, which in zip(places, spaced, strict=True)])
    rows = [
        {"png": _png(images.test.pixels[n], images.top), "label": int(images.test.labels[n])} for n in chosen.tolist()
    ]
    for name, network in (("dense", dense), ("small", small)):
        pixels = images.test.pixels[chosen].to(next(network.parameters()).device)
        sure, answer = network(images.normalize(pixels)).float().softmax(1).max(1)
        for row, one, share in zip(rows, answer.tolist(), sure.tolist(), strict=True):
            row |= {name: one, f"{name}_confidence": round(share, 4)}
    return {"classes": list(images.classes), "samples": rows}


def _png(pixels: Tensor, top: int) -> str:
    from PIL import Image

    bytes_ = (pixels.double() * (255 / top)).round().clamp(0, 255).to(torch.uint8)
    array = bytes_.permute(1, 2, 0).numpy()
    picture = Image.fromarray(array[..., 0] if array.shape[2] == 1 else array[..., :3].copy())
    with io.BytesIO() as file:
        picture.save(file, "PNG")
        return base64.b64encode(file.getvalue()).decode("ascii")
