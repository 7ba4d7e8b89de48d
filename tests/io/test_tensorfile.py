"""Files of tensors: what others read in them, the checksum by its definition, and how much memory they take."""

import hashlib
import json
import re
import subprocess
import sys
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from quern import io, models
from quern import nn as qnn
from quern.io import tensorfile
from quern.io.tensorfile import PIECE, TYPES, head_of, kinds_of, read_head, read_tensors, write_tensors
from quern.records.schema import Wrong

ROOT = Path(__file__).parents[2]
MARK = re.compile(rb'"sha256":"([0-9a-f]{64})"')


def written(tensors: dict[str, Tensor], text: str = "{}") -> bytes:
    file = BytesIO()
    write_tensors(file, head_of(kinds_of(tensors), text), tensors)
    return file.getvalue()


def read(content: bytes, like: dict[str, Tensor] | None = None) -> tuple[dict[str, Tensor], list[str]]:
    file = BytesIO(content)
    return read_tensors(read_head(file, len(content), lambda text: text), file, like)


def bits(t: Tensor) -> bytes:
    return t.detach().clone(memory_format=torch.contiguous_format).view(-1).view(torch.uint8).numpy().tobytes()


def parts(content: bytes) -> tuple[bytes, bytes]:
    """The header with zeros in the place of its checksum, and the tensors."""
    start = 8 + int.from_bytes(content[:8], "little")
    mark = MARK.search(content)
    assert mark is not None
    return content[: mark.start(1)] + b"0" * 64 + content[mark.end(1) : start], content[start:]


def checksum_in_pieces(content: bytes) -> str:
    head, rest = parts(content)
    pieces = [rest[start : start + tensorfile.PIECE] for start in range(0, len(rest), tensorfile.PIECE)]
    return hashlib.sha256(head + b"".join(hashlib.sha256(piece).digest() for piece in pieces)).hexdigest()


def checksum_of_all(content: bytes) -> str:
    return hashlib.sha256(b"".join(parts(content))).hexdigest()


def resealed(content: bytes, checksum: Any) -> bytes:
    mark = MARK.search(content)
    assert mark is not None
    return content[: mark.start(1)] + checksum(content).encode() + content[mark.end(1) :]


LAYOUTS = {
    "as it is": lambda t: t,
    "transposed": lambda t: t.transpose(0, -1),
    "channels_last": lambda t: t.movedim(1, -1).contiguous().movedim(-1, 1) if t.dim() > 2 else t,
    "every second": lambda t: t[..., ::2],
    "repeated": lambda t: t[:1].expand(3, *t.shape[1:]),
    "a part": lambda t: t[1:],
}


@st.composite
def some_tensors(draw: st.DrawFn) -> dict[str, Tensor]:
    tensors = {}
    for name in draw(st.lists(st.text('ab.é"\\ ', min_size=1, max_size=6), max_size=5, unique=True)):
        dtype = draw(st.sampled_from(list(TYPES.values())))
        shape = draw(st.lists(st.integers(0, 7), max_size=4))
        raw = torch.randint(0, 2 if dtype == torch.bool else 256, (*shape, dtype.itemsize), dtype=torch.uint8)
        tensor = raw.view(dtype).squeeze(-1) if shape else raw.view(dtype).reshape(())
        change = LAYOUTS[draw(st.sampled_from(list(LAYOUTS)))]
        tensors[name] = change(tensor) if shape and shape[0] else tensor
    return tensors


@pytest.mark.slow
@settings(max_examples=150)
@given(some_tensors(), st.sampled_from([8, 24, 1 << 20]), st.sampled_from([16, 40, 1 << 20]), st.data())
def test_what_is_written_is_what_others_read(
    tensors: dict[str, Tensor], block: int, piece: int, data: st.DataObject
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tensorfile, "_BLOCK", block)
        patch.setattr(tensorfile, "PIECE", piece)
        content = written(tensors, '{"é": 1}')
        theirs = safetensors.torch.load(content)
        like = {name: t for name, t in tensors.items() if data.draw(st.booleans())}
        ours, spoilt = read(content, like)
        assert theirs.keys() == ours.keys() == tensors.keys()
        for name, t in tensors.items():
            assert (ours[name].dtype, ours[name].shape) == (t.dtype, t.shape)
            assert bits(theirs[name]) == bits(t) == bits(ours[name]), name
            if name in like and t.numel() and set(t.stride()) != {0} and t.numel() * t.element_size() == _span(t):
                assert ours[name].stride() == t.stride()
        floats = {name: t for name, t in tensors.items() if t.is_floating_point()}
        assert set(spoilt) == {name for name, t in floats.items() if not t.double().isfinite().all()}
        large = sum(t.numel() * t.element_size() for t in tensors.values()) > piece
        mark = MARK.search(content)
        assert mark is not None
        assert mark[1].decode() == (checksum_in_pieces if large else checksum_of_all)(content)
        if large:  # as files were before there were pieces
            old = content[8 : 8 + int.from_bytes(content[:8], "little")].replace(b'"pieces":"%d",' % piece, b"")
            old = len(old).to_bytes(8, "little") + old + parts(content)[1]
            again, _ = read(resealed(old, checksum_of_all), like)
            assert all(bits(again[name]) == bits(t) for name, t in tensors.items())


def _span(t: Tensor) -> int:
    return t.element_size() * (1 + sum((n - 1) * step for n, step in zip(t.shape, t.stride(), strict=True)))


def test_equal_tensors_give_equal_files_in_any_order() -> None:
    tensors = {"b": torch.arange(3), "a": torch.rand(5), "c": torch.rand(2).half()}
    assert written(tensors) == written(dict(reversed(tensors.items())))


@pytest.fixture(scope="module")
def large() -> tuple[dict[str, Tensor], bytes]:
    """Tensors of several pieces, so that threads compute the checksum."""
    torch.manual_seed(0)
    image = torch.randn(64, 64, 3, 3).to(memory_format=torch.channels_last)
    tensors = {"a": torch.randn(3 * PIECE // 4 + 5), "b": image, "c": torch.randn(PIECE // 2).half()}
    return tensors, written(tensors)


def test_a_flipped_bit_in_any_piece_is_found(large: tuple[dict[str, Tensor], bytes]) -> None:
    tensors, content = large
    assert len(content) > 4 * PIECE
    loaded, spoilt = read(content)
    assert not spoilt
    assert all(torch.equal(loaded[name], t) for name, t in tensors.items())
    start = len(parts(content)[0])
    places = [start, len(content) - 1, *(start + n * PIECE + d for n in range(1, 5) for d in (-1, 0))]
    for place in places:
        wrong = bytearray(content)
        wrong[place] ^= 1
        with pytest.raises(Wrong, match="its checksum is wrong"):
            read(bytes(wrong))
    head = read_head(BytesIO(content), len(content), lambda text: text)
    for rest in (content[len(head.raw) : -1], content[len(head.raw) :] + b"\0"):
        with pytest.raises(Wrong, match="it was changed while it was read"):
            read_tensors(head, BytesIO(rest))


def test_pieces_of_another_size_are_refused(large: tuple[dict[str, Tensor], bytes]) -> None:
    _, content = large
    for size in (b"1048576", b"0000000", b"xxxxxxx"):
        wrong = content.replace(b'"pieces":"%d"' % PIECE, b'"pieces":"%s"' % size)
        assert wrong != content
        with pytest.raises(Wrong, match="its checksum is of a kind that is not known here"):
            read(resealed(wrong, checksum_in_pieces))
    with pytest.raises(Wrong, match="its checksum is wrong"):  # one kind does not pass for the other
        read(resealed(content, checksum_of_all))


def test_each_tensor_has_memory_of_its_own(large: tuple[dict[str, Tensor], bytes]) -> None:
    _, content = large
    loaded, _ = read(content)
    assert all(t.untyped_storage().nbytes() == t.numel() * t.element_size() for t in loaded.values())


def test_shapes_that_cannot_be_are_refused() -> None:
    content = written({"a": torch.empty(0, 3)})
    text = content[8 : 8 + int.from_bytes(content[:8], "little")]
    for shape in ("[0,1152921504606846976]", "[0,4611686018427387904,4611686018427387904]", f"[{1 << 62},0]"):
        new = text.replace(b"[0,3]", shape.encode())
        assert new != text
        with pytest.raises(Wrong, match="of a shape that cannot be"):
            read(resealed(len(new).to_bytes(8, "little") + new, checksum_of_all))


# ---- large networks


def wide() -> nn.Module:
    """About 40 MB of weights, most in one layout and some in the other."""
    return models.cifar_qcnn("after_conv", widths=(160, 320, 640, 1280, 2560))


MEMORY = """
import sys
from pathlib import Path
import torch
from quern import io
from tests.io.test_tensorfile import wide

def of_process(what):
    return next(int(line.split()[1]) << 10 for line in open("/proc/self/status") if line.startswith(what))

torch.set_num_threads(1)
io.save(torch.nn.Linear(2, 2), sys.argv[2] + ".small")  # what is loaded on first use is no memory that a file took
io.load(sys.argv[2] + ".small", torch.nn.Linear(2, 2))
network = wide() if sys.argv[1] == "save" else None
Path("/proc/self/clear_refs").write_text("5")  # forgets the peak so far
before = of_process("VmRSS:")
if network is not None:
    io.save(network, sys.argv[2])
else:
    network = io.load(sys.argv[2])
print((of_process("VmHWM:") - before) / Path(sys.argv[2]).stat().st_size)
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs Linux to measure the peak of a process")
def test_saving_and_loading_take_little_memory(tmp_path: Path) -> None:
    peaks = {}
    for what in ("save", "load"):
        process = subprocess.run(
            [sys.executable, "-c", MEMORY, what, str(tmp_path / "net")], cwd=ROOT, capture_output=True, text=True
        )
        assert process.returncode == 0, process.stderr[-2000:]
        peaks[what] = float(process.stdout)
    size = (tmp_path / "net").stat().st_size
    assert size > 35e6
    slack = 48e6 / size  # threads, blocks that wait, what Python itself takes; less than the file once more
    assert peaks["save"] < 0.1 + slack
    assert 0.9 < peaks["load"] < 1.1 + slack, "the network itself is part of it"


def test_loading_runs_no_initialisers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    networks = {name: build() for name, build in models.BUILDERS.items()}
    for name, network in networks.items():
        io.save(network, tmp_path / name)

    def drawn(*args: Any, **more: Any) -> Tensor:
        raise AssertionError("a random number was drawn")

    monkeypatch.setattr(torch, "randn", drawn)
    state = torch.get_rng_state()
    for name, network in networks.items():
        loaded = io.load(tmp_path / name)
        assert all(torch.equal(loaded.state_dict()[key], t) for key, t in network.state_dict().items())
    assert torch.equal(torch.get_rng_state(), state)
    with torch.device("meta"):
        assert qnn.QLinear(8, 8).weight.is_meta


def test_a_header_is_plain_safetensors(tmp_path: Path) -> None:
    network = wide()
    io.save(network, tmp_path / "net")
    with safetensors.safe_open(tmp_path / "net", "pt") as file:
        assert set(file.keys()) == set(network.state_dict())
        assert file.metadata()["pieces"] == str(PIECE)
        assert json.loads(file.metadata()["quern"])["builder"] == "cifar_qcnn"
        for name, t in network.state_dict().items():
            assert torch.equal(file.get_tensor(name), t)
