"""The split, and what networks get."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from quern import data
from quern.data import _images
from quern.errors import DataError
from tests.data.made_sets import World, number_of, numbered


def test_the_split_is_always_the_same(large: World) -> None:
    first = data.mnist(large.folder)
    order = np.random.RandomState(0).permutation(5203)
    assert number_of(first.val) == sorted(order[:5000].tolist())
    assert number_of(first.train) == sorted(order[5000:].tolist())
    assert number_of(first.test) == list(range(39, -1, -1))
    assert first.train.labels.tolist() == [n % 10 for n in number_of(first.train)]
    assert first.val.labels.tolist() == [n % 10 for n in number_of(first.val)]
    assert first.test.labels.tolist() == [n % 7 for n in range(40)]
    assert (len(first.train), len(first.val), len(first.test)) == (203, 5000, 40)
    torch.manual_seed(1)
    np.random.seed(1)  # noqa: NPY002
    again = data.load("mnist")
    for part in ("train", "val", "test"):
        a, b = getattr(first, part), getattr(again, part)
        assert torch.equal(a.pixels, b.pixels)
        assert torch.equal(a.labels, b.labels)


def test_the_numbers_of_the_split_do_not_change_with_numpy() -> None:
    images = data.Images(torch.from_numpy(numbered(60000)), torch.zeros(60000, dtype=torch.int64))
    rest, taken = _images.split(images, 5000)
    assert number_of(taken)[:5] == [17, 28, 50, 66, 72]
    assert len(set(number_of(taken)) | set(number_of(rest))) == 60000


@settings(max_examples=20)
@given(
    pixels=hnp.arrays(np.uint8, hnp.array_shapes(min_dims=3, max_dims=3, max_side=5).map(lambda s: (s[0], 3, *s[1:]))),
    mean=st.tuples(*[st.floats(0, 1)] * 3),
    std=st.tuples(*[st.floats(0.01, 1)] * 3),
    top=st.sampled_from([16, 255]),
)
def test_normalize_is_the_formula(pixels: np.ndarray, mean: tuple, std: tuple, top: int) -> None:
    part = data.Images(torch.from_numpy(pixels.copy()), torch.zeros(len(pixels), dtype=torch.int64))
    images = data.ImageSet("it", part, part, part, ("a",), mean, std, top)
    found = images.normalize(part.pixels)
    m, s = (np.array(v).reshape(1, 3, 1, 1) for v in (mean, std))
    np.testing.assert_allclose(found.numpy(), (pixels / top - m) / s, rtol=1e-5, atol=2e-5)
    assert found.dtype == torch.float32
    assert found.is_contiguous(memory_format=torch.channels_last)
    assert np.array_equal(part.pixels.numpy(), pixels)


@pytest.mark.unchecked
def test_images_must_be_bytes_with_a_class_number_each() -> None:
    pixels, labels = torch.zeros(4, 1, 8, 8, dtype=torch.uint8), torch.zeros(4, dtype=torch.long)
    for arguments, said in (
        ((pixels.float(), labels), r"the pixels must be bytes .* but are float32 of shape \(4, 1, 8, 8\)"),
        ((pixels[:, 0], labels), r"the pixels must be bytes .* but are uint8 of shape \(4, 8, 8\)"),
        ((pixels, labels.float()), r".* each of 4 images, but the labels are float32 of shape \(4,\)"),
        ((pixels, labels[1:]), r".* each of 4 images, but the labels are int64 of shape \(3,\)"),
    ):
        with pytest.raises(DataError, match=rf"^{said}\.$"):
            data.Images(*arguments)
