"""Packed networks on emulated microcontrollers: built with Debian's gcc-arm-none-eabi, run by qemu-system-arm."""

import shutil
import struct
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from quern.runtime import PackedNetwork

HERE = Path(__file__).parent
SOURCE = HERE.parents[1] / "src" / "quern"
BOARDS = {"m4": "mps2-an386", "m3": "mps2-an385"}  # with a floating-point unit and DSP instructions; without both
INSTRUCTIONS_PER_TICK = 40  # the timer has 25 MHz, and with -icount shift=0 an instruction takes a nanosecond


def is_here() -> bool:
    """Whether there are a compiler, with its C library, and an emulator."""
    if not all(map(shutil.which, ("arm-none-eabi-gcc", "qemu-system-arm", "make"))):
        return False
    empty = ["arm-none-eabi-gcc", "--specs=nano.specs", "-E", "-"]
    return subprocess.run(empty, input=b"", capture_output=True, check=False).returncode == 0


@dataclass(frozen=True)
class Found:
    """What came of a network on the emulated board: its arena, the most that a run and the check took of the stack,
    instructions for one input, and its outputs for all inputs."""

    arena: int
    stack: int
    check_stack: int
    instructions: float
    outputs: list[np.ndarray]


def build(chip: str, out: Path, *flags: str, parts: Path | None = None) -> Path:
    """The program that runs packed networks, for "m4" or "m3", with the flags of an exported folder; with ``parts``,
    such a folder, those of the runtime that it has."""
    made = out / f"{chip}.elf"
    board = SOURCE / "export" / "mcu"
    runtime = SOURCE / "runtime"
    sources = f"{HERE / 'emulated.c'} {runtime / 'quern_rt.c'}"
    more = f"-I{runtime} {' '.join(flags)}"
    if parts is not None:
        shutil.copy(parts / "network.mk", out)
    arguments = [f"{chip}.elf", f"SOURCES={sources}", f"BOARD={board}", f"MORE={more}"]
    said(["make", "--always-make", "--file", str(board / "Makefile"), *arguments], out)
    return made


def run(program: Path, jobs: Sequence[tuple[bytes, Sequence[np.ndarray]]], folder: Path) -> list[Found]:
    """Run each packed network on a batch of each of its inputs."""
    networks = [PackedNetwork(content) for content, _ in jobs]
    with (folder / "given").open("wb") as file:
        for content, inputs in jobs:
            file.write(struct.pack("<2I", len(content), len(inputs[0])) + content)
            for n in range(len(inputs[0])):
                for array in inputs:
                    one = array[n].tobytes()
                    file.write(one + bytes(-len(one) % 4))
    said(command(program), folder)
    content, place, results = (folder / "found").read_bytes(), 0, []
    for network, (_, inputs) in zip(networks, jobs, strict=True):
        count = len(inputs[0])
        arena, stack, check_stack, ticks = struct.unpack_from("<4I", content, place)
        place += 16
        outputs = [np.empty((count, *t.shape), t.dtype) for t in network.outputs]
        for n in range(count):
            for array in outputs:
                array[n] = np.frombuffer(content, array.dtype, array[n].size, place).reshape(array[n].shape)
                place += array[n].nbytes + -array[n].nbytes % 4
        results.append(Found(arena, stack, check_stack, ticks * INSTRUCTIONS_PER_TICK / count, outputs))
    assert place == len(content)
    return results


def flash(program: Path) -> int:
    """Bytes of a program that lie in flash: code, constants, and what numbers in memory begin as."""
    text, data = said(["arm-none-eabi-size", str(program)], program.parent).splitlines()[1].split()[:2]
    return int(text) + int(data)


def command(program: Path) -> list[str]:
    """How a program is run: every instruction takes the same time."""
    board = BOARDS[program.stem]
    semihosting = ["-semihosting-config", "enable=on,target=native"]
    more = ["-icount", "shift=0", "-nographic", "-monitor", "none", "-serial", "none"]
    return ["qemu-system-arm", "-M", board, *semihosting, *more, "-kernel", str(program)]


def said(line: Sequence[str], folder: Path) -> str:
    """What a command printed; it must not fail."""
    ran = subprocess.run(line, cwd=folder, capture_output=True, text=True, check=False, timeout=600)
    assert ran.returncode == 0, f"{' '.join(line)} ended with {ran.returncode}:\n{ran.stdout}{ran.stderr}"
    return ran.stdout
