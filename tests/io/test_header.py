"""What a file says of its network, read by someone who trusts none of it."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quern import io, models
from quern.errors import FileError
from quern.io._header import checked_arguments
from quern.models import recipe_of
from tests.io.hostile import HOSTILE, TINY, arguments, edited, sealed, with_header
from tests.io.network_files import IMAGES, one_sentence, read, refused, same


def test_every_argument_of_every_builder_can_be_written_down() -> None:
    for name, builder in models.BUILDERS.items():
        arguments = recipe_of(builder()).arguments
        assert checked_arguments(name, arguments) == arguments


@pytest.mark.parametrize(
    "images",
    [
        *({"shape": [3, 32]}, {"shape": [3, 32, 1 << 17]}, {"shape": 3}, {"shape": [1.0, 1, 1]}),
        *({"mean": "0.5"}, {"mean": [None]}, {"shape": [3, 8, 8], "mean": [0.1]}, {"std": [0.0]}, {"std": [-1]}),
        *({"classes": "ab"}, {"classes": [1, 2]}),
    ],
)
def test_images_that_cannot_be(tmp_path: Path, images: dict[str, Any]) -> None:
    with pytest.raises(FileError, match="has images ") as caught:
        io.save(models.digits_cnn(), tmp_path / "net", images=images)
    one_sentence(caught.value, tmp_path / "net")
    assert not list(tmp_path.iterdir())


def test_the_tools_of_this_test() -> None:
    assert sealed(TINY) == TINY
    assert edited(TINY) != TINY  # no padding
    same(read(TINY), read(edited(TINY)))
    same(read(TINY), read(arguments()))


@pytest.mark.parametrize("kind", HOSTILE)
def test_files_that_are_not_what_they_should_be(tmp_path: Path, kind: str) -> None:
    content, sentence = HOSTILE[kind]
    path = tmp_path / "net"
    path.write_bytes(content)
    with pytest.raises(FileError, match=sentence) as caught:
        io.load(path)
    one_sentence(caught.value, path)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=12,
)
OWN = st.fixed_dictionaries(
    {"format": st.sampled_from([1, 1, 1, 2, "1"])},
    optional={
        "builder": st.sampled_from([None, *models.BUILDERS]) | JSON,
        "arguments": st.fixed_dictionaries(
            {},
            optional={
                "widths": st.lists(st.integers(1, 70_000), max_size=6) | JSON,
                "classes": st.integers() | JSON,
                "norm": JSON,
                "dropout": st.floats() | JSON,
            },
        )
        | JSON,
        "steps": st.lists(st.dictionaries(st.sampled_from(["compact", "fold", "x"]), JSON, max_size=2), max_size=3),
        "metrics": st.dictionaries(st.text(max_size=5), JSON, max_size=2),
        "images": st.none() | st.dictionaries(st.sampled_from([*IMAGES, "x"]), JSON, max_size=4),
        "parameters": st.integers() | JSON,
    },
)
TENSOR = st.fixed_dictionaries(
    {
        "dtype": st.sampled_from(["F32", "F64", "I64", "BOOL", "F4", ""]),
        "shape": st.lists(st.integers(-1, 5) | st.integers(), max_size=4),
        "data_offsets": st.lists(st.integers(0, 64) | st.integers(), min_size=1, max_size=3),
    }
)


@pytest.mark.slow
@settings(max_examples=100)
@given(
    own=OWN | JSON,
    tensors=st.dictionaries(st.sampled_from(["0.weight", "0.bias", "../x"]), TENSOR | JSON, max_size=3),
    more=st.dictionaries(st.text(max_size=5), JSON, max_size=2),
    size=st.integers(0, 80),
)
def test_random_headers(own: Any, tensors: dict[str, Any], more: dict[str, Any], size: int) -> None:
    """No such file holds all tensors of a network of quern, so each must be refused."""
    mark = {"quern": json.dumps(own), "sha256": "0" * 64, **more}
    refused(with_header(bytes(8 + size), {"__metadata__": mark, **tensors}))
