"""Images with two networks' answers: the pixels are those of the images, the answers those of the networks."""

import base64
import dataclasses
import io

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from quern.data import Images, ImageSet, digits
from quern.samples import COUNT, samples


class Says(nn.Module):
    """Answers that are known: a class for each image by its mean brightness, or one for all."""

    def __init__(self, always: int | None = None) -> None:
        super().__init__()
        self.always, self.factor = always, nn.Parameter(torch.tensor(3.0))

    def forward(self, x: Tensor) -> Tensor:
        brightness = x.mean((1, 2, 3)).mul(7).abs().long() % 10
        answer = brightness if self.always is None else torch.full_like(brightness, self.always)
        return self.factor * nn.functional.one_hot(answer, 10)


def decoded(png: str) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(png))))


def colour(count: int) -> ImageSet:
    whole = digits()
    pixels = torch.randint(0, 256, (count, 3, 6, 5), dtype=torch.uint8)
    part = Images(pixels, torch.arange(count) % 10)
    return dataclasses.replace(whole, test=part, mean=(0.5,) * 3, std=(0.5,) * 3, top=255)


@pytest.mark.parametrize("images", [digits(), colour(40), colour(5)], ids=["digits", "colour", "few"])
def test_samples_are_the_images_and_the_answers(images: ImageSet) -> None:
    dense, small = Says(), Says(always=4)
    found = samples(dense, small, images)
    assert found["classes"] == list(images.classes)
    assert len(found["samples"]) == min(COUNT, len(images.test))
    scores = dense(images.normalize(images.test.pixels))
    pictures = [np.round(p.permute(1, 2, 0).numpy() * (255 / images.top)).squeeze() for p in images.test.pixels]
    places = []
    for row in found["samples"]:
        n = next(
            n
            for n, p in enumerate(pictures)
            if n not in places and p.shape == (got := decoded(row["png"])).shape and np.array_equal(p, got)
        )
        places.append(n)
        assert row["label"] == int(images.test.labels[n])
        assert (row["dense"], row["small"]) == (int(scores[n].argmax()), 4)
        sure = float(np.exp(3) / (np.exp(3) + 9))
        assert row["dense_confidence"] == pytest.approx(sure, abs=1e-4)
    assert places == sorted(places)


def test_half_of_them_are_disagreements_where_there_are_enough() -> None:
    images = digits()
    differ = sum(row["dense"] != row["small"] for row in samples(Says(), Says(always=0), images)["samples"])
    assert differ == COUNT // 2
    same = samples(Says(), Says(), images)["samples"]
    assert len(same) == COUNT
    assert all(row["dense"] == row["small"] for row in same)
