"""What a network is shown: seeds, random shifts, and images to be judged by."""

import hashlib
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from quern.data import Images
from quern.distributed import Team

EVALUATION_BATCH = 1000


def derived_seed(*parts: int | str) -> int:
    """A seed from several numbers, as good as independent of the seeds from any others."""
    return int.from_bytes(hashlib.blake2b(repr(parts).encode(), digest_size=4).digest(), "little")


def augment(
    pixels: Tensor,
    crop: int,
    flip: bool,
    generator: torch.Generator,
    part: slice = slice(None),
    whole: int | None = None,
) -> Tensor:
    """Each image of ``(n, c, h, w)`` shifted by up to ``crop`` pixels with a black margin, and mirrored or not.

    The images may be a ``part`` of a batch of ``whole`` images; they come out as if all of it had been drawn for.
    """
    n, _, height, width = pixels.shape
    whole = n if whole is None else whole
    if crop:
        down, right = torch.randint(0, 2 * crop + 1, (2, whole), generator=generator)[:, part].unbind()
        rows = (down[:, None] + torch.arange(height))[:, :, None]
        columns = (right[:, None] + torch.arange(width))[:, None, :]
        padded = F.pad(pixels, (crop,) * 4)
        pixels = padded[torch.arange(n)[:, None, None], :, rows, columns].permute(0, 3, 1, 2)
    if flip:
        mirrored = torch.rand(whole, generator=generator)[part] < 0.5
        pixels = torch.where(mirrored[:, None, None, None], pixels.flip(3), pixels)
    return pixels


@torch.no_grad()
def evaluate(
    model: nn.Module, images: Images, normalize: Callable[[Tensor], Tensor], crew: Team
) -> tuple[float, float]:
    """Mean cross-entropy and accuracy in eval mode; the model is left in the mode it was in."""
    training = model.training
    device = next(model.parameters()).device
    model.eval()
    mine = crew.share(len(images))
    loss, right = 0.0, 0.0
    for pixels, labels in zip(
        images.pixels[mine].split(EVALUATION_BATCH), images.labels[mine].split(EVALUATION_BATCH), strict=True
    ):
        scores, labels = model(normalize(pixels.to(device))), labels.to(device)
        loss += float(F.cross_entropy(scores.float(), labels, reduction="sum"))
        right += float((scores.argmax(1) == labels).sum())
    model.train(training)
    loss, right = crew.sum(loss, right)
    return loss / len(images), right / len(images)
