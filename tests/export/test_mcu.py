"""Folders for microcontrollers: they build by themselves and compute what the network does, here and on a board.

What needs the ARM compiler and the emulator is skipped, loudly, where they are missing: ``make mcu`` installs them.
"""

import ctypes
import random
import re
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from quern import export, models, runtime
from quern import nn as qnn
from quern.errors import ExportError
from quern.export import Pixels
from quern.export._mcu import activations, operations
from quern.export._packed import pack
from quern.export._program import Program
from quern.runtime import format as qrn
from tests import networks
from tests.export import emulator
from tests.runtime.compilers import COMPILERS, compiled
from tests.runtime.mutations import corpus
from tests.runtime.test_runtime import inputs_of, outputs_of

pytestmark = [
    pytest.mark.skipif(not runtime.is_built(), reason="the C runtime was not built: no compiler"),
    pytest.mark.xdist_group("mcu"),  # the programs are built once
]
needs_compiler = pytest.mark.skipif("gcc" not in COMPILERS, reason="NO C COMPILER: folders were not built")
needs_emulator = pytest.mark.skipif(
    not emulator.is_here(),
    reason="NO gcc-arm-none-eabi OR qemu-system-arm: nothing was run on an emulated board; make mcu",
)
PIXELS = Pixels((0.3,), (0.4,), "uint8", 16)


@pytest.fixture(autouse=True)
def no_make_around_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A make that runs the tests would have the ones inside warn that they cannot share its jobs."""
    for name in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL"):
        monkeypatch.delenv(name, raising=False)


def digits() -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    return models.digits_qcnn().eval(), torch.randint(0, 17, (64, 1, 8, 8), dtype=torch.uint8)


@pytest.fixture(scope="module", params=["float32", "float16", "int8"])
def exported(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> export.McuReport:
    model, images = digits()
    folder = tmp_path_factory.mktemp("mcu") / request.param
    return export.to_mcu(model, folder, images, images[0], dtype=request.param, pixels=PIXELS)


@pytest.fixture(scope="module", params=["m4", "m3"])
def program(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What runs any packed network on an emulated board."""
    bounded = ("-Wvla", f"-Wstack-usage={qrn.STACK}")  # warns of functions whose stack has no bound, too
    strict = ("-Werror", "-Wconversion", "-pedantic", *bounded)
    return emulator.build(request.param, tmp_path_factory.mktemp("built"), *strict)


@pytest.mark.slow
@needs_compiler
def test_the_folder_builds_and_runs_here(exported: export.McuReport) -> None:
    """In the arena that it says, which the sanitizers watch, and without a warning."""
    _, images = digits()
    header = (exported.folder / "network.h").read_text()
    assert exported.network.device_arena == int(re.findall(r"NETWORK_ARENA = (\d+)", header)[0])
    assert exported.image_class == int(exported.network(images[:1].numpy()).argmax())
    sanitized = "MORE=-O1 -Werror -fsanitize=address -fno-sanitize-recover=all"
    printed = emulator.said(["make", "-s", "host", "CC=gcc", sanitized], exported.folder)
    assert printed == f"class {exported.image_class}\n"
    emulator.said(["make", "-s", "clean"], exported.folder)


@pytest.mark.slow
@needs_compiler
def test_a_program_that_is_wrong_says_so(tmp_path: Path) -> None:
    """What is in the folder decides: another network, another class, an arena that is too small."""
    model, images = digits()
    made = export.to_mcu(model, tmp_path / "device", images, images[0], pixels=PIXELS)
    header = made.folder / "network.h"
    text = header.read_text()
    other = (made.image_class + 1) % 10
    quiet: dict[str, Any] = {"cwd": made.folder, "capture_output": True, "text": True, "check": False}
    for old, new, said in (
        (f"IMAGE_CLASS = {made.image_class}", f"IMAGE_CLASS = {other}", f"class {made.image_class}\n"),
        (
            f"NETWORK_ARENA = {made.network.device_arena}",
            f"NETWORK_ARENA = {made.network.device_arena - 4}",
            "failed 1\n",
        ),
        (f"NETWORK_BYTES = {made.network.bytes}", f"NETWORK_BYTES = {made.network.bytes + 4}", "failed -1\n"),
    ):
        assert old in text
        header.write_text(text.replace(old, new))
        ran = subprocess.run(["make", "-s", "-B", "host", "MORE=-O0"], **quiet)
        assert (ran.stdout, ran.returncode != 0) == (said, True)


@needs_emulator
@pytest.mark.slow
@pytest.mark.parametrize("chip", ["m4", "m3"])
def test_the_folder_builds_and_runs_on_a_board(exported: export.McuReport, chip: str) -> None:
    emulator.said(["make", "-s", f"{chip}.elf", "MORE=-Werror"], exported.folder)
    ran = subprocess.run(
        ["make", "-s", f"run-{chip}"], cwd=exported.folder, capture_output=True, text=True, check=False
    )
    assert (ran.returncode, ran.stdout + ran.stderr) == (0, f"class {exported.image_class}\n")
    assert emulator.flash(exported.folder / f"{chip}.elf") > exported.network.bytes
    emulator.said(["make", "-s", "clean"], exported.folder)


def _drawn(count: int) -> list[runtime.PackedNetwork]:
    """Random networks of images in int8, with zeros."""
    rng, made = random.Random(3), []
    while len(made) < count:
        drawn = networks.draw(rng)
        model = networks.random_zeros(networks.random_values(drawn.model), rng).float().eval()
        example: Any = networks.cast(drawn.inputs[0], torch.float32)
        try:
            made.append(runtime.PackedNetwork(pack(Program(model, example, None), "int8")[0]))
        except ExportError:  # what cannot be packed
            continue
    return made


def _convolutions() -> list[runtime.PackedNetwork]:
    """Every path of the products of int8, dense and sparse, whole numbers to the end."""
    torch.manual_seed(1)
    x, made = torch.randn(8, 8, 9, 11), []
    layers: list[Any] = [
        qnn.QConv2d(8, 12, 3, padding=1),
        qnn.QConv2d(8, 8, 3, stride=2, dilation=2, groups=2),
        qnn.QConv2d(8, 8, 3, padding=1, input_parts="r"),
        qnn.QConv2d(6, 8, 3, input_parts="ijk"),
        qnn.QConvTranspose2d(8, 8, 3, stride=2, padding=1),
        nn.Conv2d(8, 5, 3, padding=2),
        nn.Conv2d(8, 8, 3, groups=8),
    ]
    for layer in layers:
        for keep in (1.0, 0.3):
            with torch.no_grad():
                layer.weight *= (torch.rand(layer.weight.shape[1:]) < keep).float()
            last = qnn.QLinear if layer.out_channels % 4 == 0 else nn.Linear
            model = nn.Sequential(
                layer, nn.ReLU(), nn.MaxPool2d(2), nn.AdaptiveMaxPool2d(1), nn.Flatten(), last(layer.out_channels, 4)
            )
            example = x[:, : layer.in_channels]
            made.append(runtime.PackedNetwork(pack(Program(model.eval(), example, None), "int8")[0]))
    return made


@needs_emulator
@pytest.mark.slow
def test_int8_is_the_same_to_the_bit(program: Path, tmp_path: Path) -> None:
    given = [(network, inputs_of(network, 3)) for network in _convolutions()]
    found = emulator.run(program, [(bytes(n._content), inputs) for n, inputs in given], tmp_path)
    for (network, inputs), one in zip(given, found, strict=True):
        for wanted, got in zip(outputs_of(network, inputs), one.outputs, strict=True):
            np.testing.assert_array_equal(got, wanted)
        assert len(np.unique(one.outputs[0])) > 3  # it says something of its input


@needs_emulator
@pytest.mark.slow
def test_memory_and_numbers_of_every_operation(program: Path, tmp_path: Path) -> None:
    """The arena of a device can be counted here, no operation takes more stack than is said, and floats are the same
    but for rounding."""
    given = [(n, inputs_of(n, 1)) for n in [*map(runtime.PackedNetwork, corpus()), *_drawn(6)]]
    found = emulator.run(program, [(bytes(n._content), inputs) for n, inputs in given], tmp_path)
    words = [np.frombuffer(n._content, np.uint32).tolist() for n, _ in given]
    assert set().union(*map(operations, words)) == {*range(1, 15), qrn.PRODUCTS_F32, qrn.PRODUCTS_I8}
    for (network, inputs), one in zip(given, found, strict=True):
        assert one.arena == network.device_arena
        assert one.arena + max(one.stack, one.check_stack) <= network.ram
        assert one.stack > 200
        for wanted, got in zip(outputs_of(network, inputs), one.outputs, strict=True):
            assert got.shape == wanted.shape
            scale = np.abs(wanted[np.isfinite(wanted)]).max(initial=1.0)
            np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=2e-5 * scale)
    assert max(max(one.stack, one.check_stack) for one in found) > qrn.STACK / 2  # it is no idle bound


@needs_emulator
@pytest.mark.slow
def test_instructions_are_counted(program: Path, tmp_path: Path) -> None:
    """The same again and again; three times the outputs take about three times as many."""
    torch.manual_seed(0)
    x = torch.randn(2, 8, 12, 12)
    blobs = [pack(Program(qnn.QConv2d(8, n, 3).eval(), x, None), "float32")[0] for n in (8, 24)]
    jobs = [(blob, [x.numpy()]) for blob in blobs]
    first, second = (emulator.run(program, jobs, tmp_path) for _ in range(2))
    assert [one.instructions for one in first] == [one.instructions for one in second]
    products = 16 * 2 * 2 * 9 * 100
    assert products / 2 < first[0].instructions < 100 * products
    assert 2.2 < first[1].instructions / first[0].instructions < 3.2


def test_what_cannot_be_done_is_one_sentence_and_leaves_nothing(tmp_path: Path) -> None:
    model, images = digits()
    full = tmp_path / "full"
    full.mkdir()
    (full / "mine").write_text("1")
    with pytest.raises(ExportError, match="full cannot be written: it is a folder with something in it"):
        export.to_mcu(model, full, images, images[0], pixels=PIXELS)
    with pytest.raises(ExportError, match="cannot be packed"):
        export.to_mcu(nn.Sequential(nn.Conv3d(1, 1, 1)), tmp_path / "new", torch.randn(2, 1, 4, 4, 4), images[0])
    rows = nn.Sequential(qnn.QConv2d(4, 4, 1), nn.Flatten(2))
    with pytest.raises(ExportError, match="one row of scores"):
        export.to_mcu(rows, tmp_path / "new", torch.randn(2, 4, 3, 3), torch.randn(4, 3, 3))
    assert [path.name for path in tmp_path.iterdir()] == ["full"]
    assert [path.name for path in full.iterdir()] == ["mine"]


@needs_compiler
def test_numbers_in_float_go_in_exactly(tmp_path: Path) -> None:
    """As C reads them: whole, tiny and long ones."""
    torch.manual_seed(0)
    image = torch.tensor([1.0, -2.0, 1e-30, 1 / 3, 123456.789, 0.0, 3e10, -0.1])
    made = export.to_mcu(qnn.QLinear(8, 4).eval(), tmp_path / "device", torch.randn(4, 8), image)
    source = tmp_path / "bits.c"
    source.write_text(
        '#include <stdio.h>\n#include <string.h>\n#include "network.h"\nint main(void) {\n'
        "    for (int n = 0; n < 8; n++) {\n        unsigned bits;\n        memcpy(&bits, image + n, 4);\n"
        '        printf("%u ", bits);\n    }\n    return 0;\n}\n'
    )
    build = ["gcc", f"-I{made.folder}", str(source), str(made.folder / "network.c"), "-o", "bits"]
    emulator.said(build, tmp_path)
    printed = emulator.said([str(tmp_path / "bits")], tmp_path)
    assert list(map(int, printed.split())) == image.numpy().view(np.uint32).tolist()


@needs_compiler
@pytest.mark.slow
def test_what_a_network_does_not_have_is_left_out_and_refused(tmp_path: Path) -> None:
    """Every network of the corpus is taken by a build for it, and those that have more are not."""
    blobs = corpus()[::3]
    masks = []
    for blob in blobs:
        words = np.frombuffer(blob, np.uint32).tolist()
        masks.append((operations(words), activations(words)))
    few = min(range(len(blobs)), key=lambda n: (len(masks[n][0] & {qrn.OP_CONV}) == 0, len(masks[n][0])))
    bits = [sum(1 << bit for bit in mask) for mask in masks[few]]
    out = tmp_path / "few.so"
    flags = [
        f"-DQRN_BUILD_OPS={bits[0]}u",
        f"-DQRN_BUILD_ACTIVATIONS={bits[1]}u",
        "-DLANES=1",
        "-O1",
        "-Wall",
        "-Werror",
    ]
    compiled("gcc", out, "-shared", "-fPIC", *flags)
    library = ctypes.CDLL(str(out))
    library.qrn_check.restype = ctypes.c_char_p
    library.qrn_check.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    for blob, (codes, kinds) in zip(blobs, masks, strict=True):
        held = np.frombuffer(blob, np.uint8).copy()
        taken = library.qrn_check(held.ctypes.data, len(blob)) is None
        assert taken == (codes <= masks[few][0] and kinds <= masks[few][1])
