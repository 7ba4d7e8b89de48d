"""Images with two networks' answers: the pixels are those of the images, the answers those of the networks."""

import base64
import dataclasses
import io
from collections import Counter

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from quern.data import Images, ImageSet, digits
from quern.pipeline._answers import SAMPLES_PER_OUTCOME, compare_answers, count_by_class, samples
from quern.records import Answers


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


def test_answers_are_counted_by_class() -> None:
    images, dense, small = digits(), Says(), Says(always=4)
    batches = [(images.normalize(images.test.pixels[n : n + 50]), images.test.labels[n : n + 50]) for n in (0, 50, 100)]
    labels, outcomes = compare_answers(dense, small, iter(batches))
    counts: Counter[tuple[int, bool, bool]] = Counter()
    for x, classes in batches:
        for image, label in zip(x, classes.tolist(), strict=True):
            answers = (int(network(image[None]).argmax()) for network in (dense, small))
            counts[label, *(answer == label for answer in answers)] += 1
    expected = [
        Answers(name, *(counts[n, *right] for right in ((True, True), (True, False), (False, True), (False, False))))
        for n, name in enumerate("abcdefgh89")
    ]
    assert list(count_by_class(labels, outcomes, "abcdefgh")) == expected  # a number for those without a name
    total = Answers.total(expected)
    assert total.inputs == len(labels) == len(outcomes) == 150
    assert total.small == pytest.approx(float((labels == 4).double().mean()))


def test_classes_without_inputs_are_left_out() -> None:
    (only,) = count_by_class(torch.tensor([3, 3, 3]), torch.tensor([0, 2, 3]), ())
    assert only == Answers("3", 1, 0, 1, 1)
    with pytest.raises(ValueError, match="no inputs"):
        Answers("4", 0, 0, 0, 0)


@pytest.mark.parametrize("images", [digits(), colour(40), colour(5)], ids=["digits", "colour", "few"])
def test_samples_are_the_images_and_the_answers(images: ImageSet) -> None:
    dense, small, test = Says(), Says(always=4), images.test
    _, outcomes = compare_answers(dense, small, [(images.normalize(test.pixels), test.labels)])
    found = samples(dense, small, images, outcomes)
    assert found["classes"] == list(images.classes)
    rows = iter(found["samples"])
    scores = dense(images.normalize(test.pixels))
    for outcome in range(4):
        places = [n for n in range(len(test)) if outcomes[n] == outcome]
        spaced = np.linspace(0, len(places) - 1, min(SAMPLES_PER_OUTCOME, len(places))).round().astype(int)
        for n in (places[k] for k in spaced):
            row, picture = next(rows), test.pixels[n].permute(1, 2, 0).numpy() * (255 / images.top)
            assert np.array_equal(decoded(row["png"]), np.round(picture).squeeze())
            assert (row["label"], row["dense"], row["small"]) == (int(test.labels[n]), int(scores[n].argmax()), 4)
            assert 2 * (row["dense"] != row["label"]) + (row["small"] != row["label"]) == outcome
            assert row["dense_confidence"] == pytest.approx(float(np.exp(3) / (np.exp(3) + 9)), abs=1e-4)
    assert next(rows, None) is None
