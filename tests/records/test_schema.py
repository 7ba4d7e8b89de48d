"""Files of ours, read by their annotations: what fits becomes an object, all else one sentence."""

import contextlib
import json
import math
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, NotRequired, TypedDict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quern import records
from quern.errors import RecordError
from quern.records import read_compression, schema
from quern.records.schema import Count, Measured, OneOf, Share, Text, check, visible
from quern.train import Result, Settings
from tests.commands import here, refused
from tests.sample_records import compress_record, record_of, run_record, write_compress

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Point:
    x: float
    y: float = 0.0

    def __post_init__(self) -> None:
        if self.x == self.y == 7:
            raise ValueError("seven twice is too much.")


class Everything(TypedDict):
    name: str
    count: Count
    share: Share
    points: list[Point]
    maybe: NotRequired[int | None]
    mode: NotRequired[Literal["a", "b"]]
    among: NotRequired[Annotated[str, OneOf(("c", "d"))]]
    pair: NotRequired[tuple[int, ...]]
    table: NotRequired[dict[str, str | int]]
    loss: NotRequired[Measured]
    command: NotRequired[Text]
    anything: NotRequired[Any]


WHOLE = {"name": "n", "count": 3, "share": 1, "points": [{"x": 1}, {"x": 2.5, "y": 3}]}


def test_what_fits_is_built_and_what_nobody_asked_for_is_ignored() -> None:
    found = check(
        {**WHOLE, "pair": [1, 2], "loss": math.inf, "command": "a\nb", "anything": [None], "new": 1}, Everything
    )
    assert found == {
        "name": "n",
        "count": 3,
        "share": 1.0,
        "points": [Point(1.0), Point(2.5, 3.0)],
        "pair": (1, 2),
        "loss": math.inf,
        "command": "a\nb",
        "anything": [None],
    }
    assert type(found["share"]) is float


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"name": 3}, "name is 3, but should be a text"),
        ({"name": "\x1b[31m"}, r"name is .*u001b.*, but should be a text that can be printed"),
        ({"name": "two\u2028lines"}, "can be printed"),
        ({"command": "\0"}, "can be printed"),
        ({"count": True}, "count is true, but should be a whole number"),
        ({"count": 3.0}, "count is 3.0, but should be a whole number"),
        ({"count": -1}, "count is -1, but should be from 0 to 1e.15"),
        ({"count": 10**16}, "from 0 to"),
        ({"share": 1.01}, "share is 1.01, but should be from 0 to 1"),
        ({"share": math.nan}, "share is NaN, but should be a finite number"),
        ({"share": "1"}, "a number"),
        ({"points": {}}, "points is a table, but should be a list"),
        ({"points": [3]}, r"points\[0\] is 3, but should be a table"),
        ({"points": [{"y": 1}]}, r"points\[0\].x is missing"),
        ({"points": [{"x": 7, "y": 7}]}, r"points\[0\]: seven twice is too much"),
        ({"maybe": "x"}, "maybe is .*, but should be a whole number"),
        ({"mode": "c"}, "but should be a or b"),
        ({"among": "a"}, "but should be c or d"),
        ({"pair": [1, None]}, r"pair\[1\] is null"),
        ({"table": {"k": None}}, "table.k is null, but should be a text"),
        ({"table": {"\x1b": 1}}, "a key of table"),
        ({"loss": None}, "loss is null"),
    ],
    ids=str,
)
def test_what_does_not_fit_is_named_with_its_place(changed: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said) as caught:
        check({**WHOLE, **changed}, Everything)
    assert str(caught.value).isascii()
    assert "\n" not in str(caught.value)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda v: st.lists(v) | st.dictionaries(st.text(), v),
)


@given(st.sampled_from(["", *WHOLE]), json_values)
def test_any_value_fits_or_is_a_value_error(key: str, value: Any) -> None:
    with contextlib.suppress(ValueError):
        check({**WHOLE, key: value} if key else value, Everything)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "not hold a thing"),
        (b"{", "not hold a thing"),
        (b"\xff", "not hold a thing"),
        (b"[" * 100_000, "nested too deeply"),
        (b"[" * 40 + b"]" * 40, "nested more than 32 deep"),
        (b'{"x": 1, "x": 2}', "a key stands twice"),
        (b'{"x": ' + b"9" * 5000 + b"}", "not hold a thing"),
        (b'{"x": 1e999}', "x is Infinity, but should be a finite number"),
        (b'{"x": 1, "z": "\\ud800"}', "not hold a thing"),
        (b'{"y": 1}', "x is missing"),
    ],
    ids=str,
)
def test_a_file_is_read_or_one_sentence(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "file"
    path.write_bytes(b'{"x": 1}')
    assert schema.read(path, Point, "a thing") == Point(1.0)
    path.write_bytes(content)
    with pytest.raises(RecordError, match=said) as caught:
        schema.read(path, Point, "a thing", "buy a new one")
    assert str(caught.value).startswith(f"{path} does not hold a thing (")
    assert str(caught.value).endswith("): buy a new one.")


def test_what_is_no_file_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "large").write_bytes(b'{"x": 1}')
    monkeypatch.setattr(schema, "LARGEST", 7)
    for name, said in (("", "is a folder"), ("pipe", "not a regular file"), ("none", "not there"), ("large", "larger")):
        with pytest.raises(RecordError, match=said):
            schema.read(tmp_path / name, Point, "a thing")


def test_lines_are_read_one_by_one(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    path.write_text('{"x": 1}\n{"x": 2}\n')
    assert schema.read_lines(path, Point, "things") == [Point(1.0), Point(2.0)]
    path.write_text('{"x": 1}\n{"x": "2"}\n')
    with pytest.raises(RecordError, match=r"line 2\.x is .*, but should be a number"):
        schema.read_lines(path, Point, "things")


def test_text_of_a_file_cannot_command_a_terminal(tmp_path: Path) -> None:
    assert visible("é \x1b[31m\n") == r"é \x1b[31m\n"
    write_compress(tmp_path / "run", command="quern \x1b]0;title\x07", environment={"cpu": "fast"})
    assert r"\x1b]0;title\x07" in here("show", tmp_path / "run")[0]
    write_compress(tmp_path / "run", environment={"cpu": "\x1b[31m"})
    assert "can be printed" in refused("show", tmp_path / "run")


@pytest.mark.unchecked
def test_all_files_in_the_repository_are_read() -> None:
    results = ROOT / "results"
    assert len(list(records.read(results))) >= 72
    kinds = {"result.json": Result, "config.json": records.TrainConfig}
    kinds |= {"tuning.json": records.Trials, "table2.json": records.Timings}
    for name, kind in kinds.items():
        found = sorted(results.glob(f"*/{name}"))
        assert found
        for path in found:
            assert schema.read(path, kind, "a file of ours")
    for path in results.glob("*/config.json"):
        Settings.from_dict(json.loads(path.read_text())["settings"], path)
    for path in results.glob("*/record.json"):
        assert read_compression(path)["layers"]
    assert here("show", "--history", results / "cifar10-60")[0].count("epoch ") >= 22  # lines without parameters


def test_a_schema_is_read_without_torch() -> None:
    code = "import sys, quern.records.schema, quern.records; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("what", ["seconds", "latency_ms", "neurons", "val_accuracy"])
@pytest.mark.parametrize("value", [-1, 10**18, 1e308, math.nan, math.inf, None, "3", []])
def test_numbers_that_cannot_be_are_refused_before_they_are_used(tmp_path: Path, what: str, value: Any) -> None:
    record = compress_record()
    record["dense"][what] = value
    write_compress(tmp_path / "run", dense=record["dense"])
    for command in ("show", "report"):
        sentence = refused(command, tmp_path / "run")
        assert f"dense.{what} is" in sentence or f"dense: it should have either a {what}" in sentence


def test_a_record_with_more_in_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "digits" / "quern-rq-6-0.json"
    path.parent.mkdir()
    path.write_text(json.dumps({**run_record("digits", "quern", "rq"), "later": {"quern": 3}}))
    [record] = records.read(tmp_path)
    assert record == record_of("digits", "quern", "rq")
