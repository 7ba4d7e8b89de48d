"""Some test images with the answers of two networks, for a reader who wants to see what was lost."""

import base64
import io
from typing import Any

import torch
from torch import Tensor, nn

from quern.data import Images, ImageSet

__all__ = ["samples"]

COUNT = 24
LOOKED_AT = 2000  # of the test images


@torch.no_grad()
def samples(dense: nn.Module, small: nn.Module, images: ImageSet) -> dict[str, Any]:
    """Up to 24 of the first 2,000 test images as base64 PNG, half of them ones where the two networks disagree, as far
    as there are any; with the label, and each network's answer and how sure it is (the softmax of its scores)."""
    some = Images(images.test.pixels[:LOOKED_AT], images.test.labels[:LOOKED_AT])
    answers = {name: _answers(network, images, some) for name, network in (("dense", dense), ("small", small))}
    differ = answers["dense"][0] != answers["small"][0]
    unlike, alike = (torch.nonzero(chosen).flatten().tolist() for chosen in (differ, ~differ))
    unlike = unlike[: max(COUNT // 2, COUNT - len(alike))]
    found = []
    for n in sorted([*unlike, *alike[: COUNT - len(unlike)]]):
        row: dict[str, Any] = {"png": _png(some.pixels[n], images.top), "label": int(some.labels[n])}
        for name, (answer, sure) in answers.items():
            row |= {name: int(answer[n]), f"{name}_confidence": round(float(sure[n]), 4)}
        found.append(row)
    return {"classes": list(images.classes), "samples": found}


def _answers(network: nn.Module, images: ImageSet, some: Images) -> tuple[Tensor, Tensor]:
    device = next(network.parameters()).device
    scores = torch.cat([network(images.normalize(part.to(device))).float().cpu() for part in some.pixels.split(500)])
    sure, answer = scores.softmax(1).max(1)
    return answer, sure


def _png(pixels: Tensor, top: int) -> str:
    from PIL import Image

    bytes_ = (pixels.double() * (255 / top)).round().clamp(0, 255).to(torch.uint8)
    array = bytes_.permute(1, 2, 0).numpy()
    picture = Image.fromarray(array[..., 0] if array.shape[2] == 1 else array[..., :3].copy())
    with io.BytesIO() as file:
        picture.save(file, "PNG")
        return base64.b64encode(file.getvalue()).decode("ascii")
