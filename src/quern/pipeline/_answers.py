"""What two networks answer to the same test inputs: counted by class, and shown on some images, for a reader who wants
to see what was lost."""

import base64
import io
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from quern.data import ImageSet
from quern.graph import Example
from quern.records import Answers
from quern.train import as_arguments
from quern.train.team import Team

SAMPLES_PER_OUTCOME = 6


@torch.no_grad()
def compare_answers(
    dense: nn.Module, small: nn.Module, batches: Iterable[tuple[Example, Tensor]], crew: Team | None = None
) -> tuple[Tensor, Tensor]:
    """The class of every input, and who answers right: 0 both networks, 1 only the dense one, 2 only the small one,
    3 neither. One pass over the batches, which were dealt out among the ``crew``; the networks are in eval mode."""
    answered = []
    for inputs, classes in batches:
        dense_wrong, small_wrong = (network(*as_arguments(inputs)).argmax(1) != classes for network in (dense, small))
        answered.append((classes.cpu(), (2 * dense_wrong + small_wrong).cpu()))
    labels, outcomes = zip(*(crew or Team()).collected(answered), strict=True)
    return torch.cat(labels), torch.cat(outcomes)


def count_by_class(labels: Tensor, outcomes: Tensor, names: Sequence[str]) -> tuple[Answers, ...]:
    """The outcomes of :func:`compare_answers`, by class; classes without a name have their number for one."""
    table = (4 * labels + outcomes).bincount(minlength=4 * (int(labels.max()) + 1)).view(-1, 4).tolist()
    return tuple(
        Answers(names[n] if n < len(names) else str(n), *counts) for n, counts in enumerate(table) if any(counts)
    )


@torch.no_grad()
def samples(dense: nn.Module, small: nn.Module, images: ImageSet, outcomes: Tensor) -> dict[str, Any]:
    """Test images with both networks' answers: up to six of each outcome of :func:`compare_answers`, evenly spaced,
    since images may be sorted by class. Each is a base64 PNG with its label, and per network the answer and the
    confidence (the softmax of the scores)."""
    chosen = []
    for outcome in range(4):
        places = torch.nonzero(outcomes == outcome).flatten()
        count = min(SAMPLES_PER_OUTCOME, len(places))
        chosen += places[torch.linspace(0, len(places) - 1, count).round().long()].tolist()
    rows = [{"png": _png(images.test.pixels[n], images.top), "label": int(images.test.labels[n])} for n in chosen]
    for name, network in (("dense", dense), ("small", small)):
        pixels = images.test.pixels[chosen].to(next(network.parameters()).device)
        confidences, answers = network(images.normalize(pixels)).float().softmax(1).max(1)
        for row, answer, confidence in zip(rows, answers.tolist(), confidences.tolist(), strict=True):
            row |= {name: answer, f"{name}_confidence": round(confidence, 4)}
    return {"classes": list(images.classes), "samples": rows}


def _png(pixels: Tensor, top: int) -> str:
    from PIL import Image

    bytes_ = (pixels.double() * (255 / top)).round().clamp(0, 255).to(torch.uint8)
    array = bytes_.permute(1, 2, 0).numpy()
    picture = Image.fromarray(array[..., 0] if array.shape[2] == 1 else array[..., :3].copy())
    with io.BytesIO() as file:
        picture.save(file, "PNG")
        return base64.b64encode(file.getvalue()).decode("ascii")
