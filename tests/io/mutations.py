"""Files changed by accident or on purpose, by the thousand."""

import copy
import json
import math
import random
import re
import resource
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import nn

from quern import compact, models
from quern.compact import folding
from quern.errors import FileError
from tests.io.hostile import HOSTILE, header_of, sealed
from tests.io.network_files import (
    IMAGES,
    Tied,
    bits,
    content_of,
    kill_,
    one_sentence,
    read,
    same,
    scramble,
)


class Fuzz:
    """Mutated files from one seed. Run in a process of its own, whose memory is bounded, without run-time checks."""

    VALUES = (
        *(None, True, False, -1, 0, 1, 2, 3, 5, 64, 65_536, 65_537, 2**31, 2**32, 2**53, 2**62, 2**63, 2**64, 10**30),
        *(-(2**63), 0.5, -0.0, 1e308, math.nan, math.inf, "", "x" * 2000, "../../etc/passwd", "__class__", "\0", "é"),
        *("F64", "F32", "F16", "BF16", "I64", "I8", "BOOL", "0", "0-1", "0-3", "1,3", "0-2000000000", "Conv2d"),
        *("none", "after_conv", "digits_qcnn", "qresnet20", "resnet20"),
        *([], {}, [[]], [0, 0], [1, 1], [4, 4], [65_536, 65_536], [1] * 40, {"compact": {}}, [{"fold": []}]),
        *(
            [{"compact": {"layers": {}}}],
            {"of": 2**31 - 1, "keep": "0-2000000000"},
            {"widths": [65_536] * 32},
            {"a": {"a": {"a": {}}}},
        ),
    )

    def __init__(self, seed: int) -> None:
        torch.manual_seed(seed)
        self.random = random.Random(seed)
        self.nets: list[tuple[bytes, nn.Module | None]] = [
            (content_of(models.digits_cnn(widths=(1, 1), classes=1), metrics={"a": [1, None]}, images=IMAGES), None),
            (content_of(models.digits_qcnn("after_conv", widths=(4, 4), classes=1)), None),
            (content_of(models.digits_cnn("after_activation", 0.5, (1, 2), 2).half()), None),
            (
                content_of(nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))),
                nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3)),
            ),
            (content_of(Tied()), Tied()),
            (content_of(self.smaller()), None),
        ]

    def smaller(self) -> nn.Module:
        built = kill_(scramble(models.digits_qcnn("after_conv", widths=(8, 8), classes=1)))
        return folding.fold(compact.compact(built.eval(), torch.rand(1, 1, 8, 8)))

    # Edits of bytes

    def flip(self, content: bytearray) -> None:
        for _ in range(self.random.choice([1, 1, 1, 2, 8])):
            content[self.random.randrange(len(content))] ^= 1 << self.random.randrange(8)

    def overwrite(self, content: bytearray) -> None:
        at, length = self.random.randrange(len(content)), self.random.choice([1, 1, 2, 4, 8, 64])
        content[at : at + length] = self.random.choice(
            [self.random.randbytes(length), b"\0" * length, b"\xff" * length]
        )

    def truncate(self, content: bytearray) -> None:
        del content[self.random.randrange(len(content)) :]

    def remove(self, content: bytearray) -> None:
        at = self.random.randrange(len(content))
        del content[at : at + self.random.choice([1, 2, 8, 100])]

    def insert(self, content: bytearray) -> None:
        at = self.random.randrange(len(content) + 1)
        content[at:at] = self.random.choice([b"\0", b"0", b"9", b"[", b'"', b" ", self.random.randbytes(9)])

    def splice(self, content: bytearray) -> None:
        other = self.random.choice(self.nets)[0]
        if self.random.random() < 0.5:
            at = self.random.randrange(len(content))
            content[at:] = other[self.random.randrange(len(other)) :]
        else:
            at = self.random.randrange(min(len(content), len(other)))
            content[at : at + 40] = other[at : at + 40]

    def length(self, content: bytearray) -> None:
        n = int.from_bytes(content[:8], "little")
        claimed = self.random.choice([0, n - 1, n + 1, n - 8, n + 8, 2 * n, 1 << 40, 1 << 63, (1 << 64) - 1])
        content[:8] = (claimed % (1 << 64)).to_bytes(8, "little")

    # Edits of the header

    def nodes(self, value: Any) -> list[tuple[Any, Any]]:
        """Every place in a JSON value: its container and its key there."""
        keys = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else []
        return [place for key in keys for place in [(value, key), *self.nodes(value[key])]]

    def edit(self, tree: Any) -> None:
        container, key = self.random.choice(self.nodes(tree))
        value = container[key]
        match self.random.randrange(7):
            case 0:
                del container[key]
            case 1 if isinstance(container, dict):
                container[self.random.choice(["x", "0.weight", "../x", str(key) + "x", ""])] = container.pop(key)
            case 2 if type(value) is int:
                container[key] = value + self.random.choice([-4, -1, 1, 4, value, 2**20])
            case 3:
                other, place = self.random.choice(self.nodes(tree))
                container[key] = copy.deepcopy(other[place])
            case 4:
                nested = self.random.choice(self.VALUES)
                for _ in range(self.random.choice([1, 10, 40, 200])):
                    nested = [nested] if self.random.random() < 0.5 else {"a": nested}
                container[key] = nested
            case 5 if isinstance(value, list):
                value.insert(self.random.randrange(len(value) + 1), self.random.choice(self.VALUES))
            case _:
                container[key] = copy.deepcopy(self.random.choice(self.VALUES))

    def header(self, content: bytes) -> bytes:
        header = header_of(content)
        own = json.loads(header["__metadata__"]["quern"])
        for _ in range(self.random.choice([1, 1, 1, 2, 3])):
            if self.random.random() < 0.6 and self.nodes(own):
                self.edit(own)
                if isinstance(header.get("__metadata__"), dict):
                    header["__metadata__"]["quern"] = json.dumps(own)
            elif self.nodes(header):
                self.edit(header)
        text = json.dumps(header, separators=(",", ":"))
        if self.random.random() < 0.05:  # a key twice
            text = re.sub(r'"shape":', '"shape":[1],"shape":', text, count=1)
        text = text.encode()
        return len(text).to_bytes(8, "little") + text + content[8 + int.from_bytes(content[:8], "little") :]

    # The two laws

    def changed(self, count: int) -> int:
        """A file that was changed by accident is refused."""
        for _ in range(count):
            content, model = self.random.choice(self.nets)
            if self.random.random() < 0.25:
                wrong = self.header(content)
            else:
                wrong = bytearray(content)
                kinds = (self.flip, self.overwrite, self.truncate, self.remove, self.insert, self.splice, self.length)
                for kind in self.random.choices(kinds, k=self.random.choice([1, 1, 1, 2])):
                    if wrong:
                        kind(wrong)
                wrong = bytes(wrong)
            if wrong != content and all(wrong != whole for whole, _ in self.nets):
                assert self.load(wrong, model) is None, wrong
        return count

    def forged(self, count: int) -> tuple[int, int]:
        """A file that was changed and sealed again is refused, or is one that holds what it says."""
        good = 0
        for _ in range(count):
            content, model = self.random.choice(self.nets)
            wrong = content
            if self.random.random() < 0.85:
                wrong = self.header(content)
            if wrong is content or self.random.random() < 0.2:
                scratch = bytearray(wrong)
                self.random.choice((self.flip, self.overwrite, self.insert, self.remove, self.splice))(scratch)
                wrong = bytes(scratch)
            wrong = sealed(wrong)
            if (loaded := self.load(wrong, model)) is not None:
                good += 1
                tensors = safetensors.torch.load(wrong)
                state = loaded.state_dict()
                assert state.keys() == tensors.keys()
                assert all(torch.equal(bits(state[name]), bits(tensors[name])) for name in tensors)
                assert not loaded.training
        return count, good

    def load(self, content: bytes, model: nn.Module | None) -> nn.Module | None:
        before = None if model is None else copy.deepcopy(model)
        try:
            return read(content, model)
        except FileError as error:
            sentence = one_sentence(error, "net")
            assert "memory" not in sentence, content
            assert "alloc" not in sentence, content
            return None
        finally:
            if model is not None and before is not None:
                same(model, before)


def fuzz(seed: int, changed: int, forged: int) -> None:
    """Prints how many files were read, and how many of those forged were good ones. No claim of theirs takes memory."""
    torch.set_num_threads(1)
    run = Fuzz(seed)
    run.changed(20)  # what is loaded on first use is not memory that a file took
    run.forged(200)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + (128 << 20)
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    for kind, (content, _) in HOSTILE.items():
        assert run.load(content, None) is None, kind
    print(run.changed(changed), *run.forged(forged))
