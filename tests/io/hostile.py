"""Files that are not what they should be, each with the sentence about it."""

import hashlib
import json
import re
from typing import Any

from quern import models
from tests.io.network_files import IMAGES, content_of


def header_of(content: bytes) -> dict[str, Any]:
    return json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])


def with_header(content: bytes, header: Any) -> bytes:
    """The same tensors under another header (a value, or its text), with a right checksum if it has a place for one."""
    text = header if isinstance(header, bytes) else json.dumps(header, separators=(",", ":")).encode()
    data = content[8 + int.from_bytes(content[:8], "little") :]
    return sealed(len(text).to_bytes(8, "little") + text + data)


def sealed(content: bytes) -> bytes:
    """``content`` with a right checksum: what someone who means harm would do."""
    if (mark := re.search(rb'"sha256":"([0-9a-f]{64})"', content)) is None:
        return content
    start, stop = mark.span(1)
    digest = hashlib.sha256(content[:start] + b"0" * 64 + content[stop:]).hexdigest()
    return content[:start] + digest.encode() + content[stop:]


def edited(content: bytes, own: Any = None, tensors: dict[str, Any] | None = None, drop: str = "") -> bytes:
    """A file whose maker changed quern's JSON or the table of tensors (None: removed), and sealed it again."""
    header = header_of(content)
    text = header["__metadata__"]["quern"]
    if own is not None:
        header["__metadata__"]["quern"] = own if isinstance(own, str) else json.dumps(json.loads(text) | own)
    if drop:
        header["__metadata__"]["quern"] = json.dumps({k: v for k, v in json.loads(text).items() if k != drop})
    for name, entry in (tensors or {}).items():
        header[name] = header.get(name, {}) | entry if isinstance(entry, dict) else entry
        if entry is None:
            del header[name]
    return with_header(content, header)


TINY = content_of(models.digits_cnn(widths=(1, 1), classes=1), metrics={"acc": 0.5}, images=IMAGES)
ENTRY = {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}


def arguments(**changed: Any) -> bytes:
    return edited(TINY, {"arguments": {"norm": "none", "widths": [1, 1], "classes": 1} | changed})


def narrowed(layer: dict[str, Any]) -> dict[str, Any]:
    return {"compact": {"layers": {"0": {"kind": "Conv2d"} | layer}}}


def metadata(**changed: Any) -> bytes:
    header = header_of(TINY)
    return with_header(TINY, header | {"__metadata__": header["__metadata__"] | changed})


def replaced(old: bytes, new: bytes) -> bytes:
    assert TINY.count(old) == 1
    text = TINY[8 : 8 + int.from_bytes(TINY[:8], "little")]
    return with_header(TINY, text.replace(old, new))


HOSTILE: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "it is empty"),
    "7 bytes": (TINY[:7], "it ends within its first 8 bytes"),
    "no header": (TINY[:8], "claims a header of .* bytes in a file of 8"),
    "half a header": (TINY[:100], "claims a header"),
    "one byte less": (TINY[:-1], "header is wrong about the tensor 7.weight"),
    "one byte more": (TINY + b"\0", "its tensors take 148 bytes, but it holds 149"),
    "one bit": (TINY[:-1] + bytes([TINY[-1] ^ 1]), "its checksum is wrong, so it was changed after it was saved"),
    "header of 2**63": ((1 << 63).to_bytes(8, "little") + TINY[8:], "claims a header of 9,223,372,036,854,775,808"),
    "header of 2**64 - 1": (b"\xff" * 8 + TINY[8:], "claims a header of 18,446,744,073,709,551,615"),
    "zeros": (b"\0" * 1000, "header is not JSON"),
    "text": (b"hello, this is no file of quern", "is a text file, but should be"),
    "a pickle": (b"\x80\x04\x95" + b"\0" * 100, "is a pickle file, but should be"),
    "a zip": (b"PK\x03\x04" + b"\0" * 100, "is a zip archive, but should be"),
    "not UTF-8": (with_header(TINY, b'{"\xff": 1}'), "not JSON"),
    "UTF-16": (with_header(TINY, '{"a": 1}'.encode("utf-16")), "not JSON"),
    "a list": (with_header(TINY, []), "header is not a table"),
    "a number": (with_header(TINY, 3), "header is not a table"),
    "space first": (with_header(TINY, b" " + TINY[8 : 8 + int.from_bytes(TINY[:8], "little")]), "not a table"),
    "something after": (with_header(TINY, b"{}{}"), "not JSON"),
    "no metadata": (with_header(TINY, {}), "is a file of tensors, but not one that quern.io.save wrote"),
    "metadata a list": (with_header(TINY, {"__metadata__": []}), "not one that quern.io.save wrote"),
    "metadata a text": (with_header(TINY, {"__metadata__": "quern"}), "not one that quern.io.save wrote"),
    "quern's part a table": (metadata(quern={}), "not one that quern.io.save wrote"),
    "quern's part a list": (metadata(quern="[1]"), "not one that quern.io.save wrote"),
    "quern's part null": (metadata(quern="null"), "not one that quern.io.save wrote"),
    "quern's part cut": (metadata(quern='{"format": 1'), "not JSON"),
    "a number in the metadata": (metadata(more=3), "its metadata are not texts"),
    "no checksum": (metadata(sha256=""), "it has no checksum"),
    "checksum a number": (metadata(sha256=3), "it has no checksum"),
    "checksum in capitals": (
        re.sub(rb'"sha256":"[0-9a-f]{64}"', lambda m: b'"sha256":"' + m[0][10:].upper(), TINY),
        "it has no checksum",
    ),
    "checksum escaped": (TINY.replace(b'"sha256":', b'"sha25\\u0036":'), "claims|not JSON|wrong|checksum"),
    "checksum elsewhere": (replaced(b'"sha256":"', b'"sha256": "'), "its checksum is not where it should be"),
    "checksum of another": (sealed(TINY)[:-4] + b"abcd", "its checksum is wrong"),
    "deep header": (with_header(TINY, b"[" * 100_000), "nested too deeply"),
    "deep tables": (with_header(TINY, b'{"a":' * 50_000 + b"1" + b"}" * 50_000), "nested too deeply"),
    "deep enough": (with_header(TINY, b'{"a":' * 40 + b"1" + b"}" * 40), "nested more than 32 deep"),
    "deep metrics": (metadata(quern='{"format": 1, "metrics":' + "[" * 99_999), "nested too deeply"),
    "NaN": (edited(TINY, '{"format": 1, "metrics": {"a": NaN}}'), "NaN is no number of JSON"),
    "-Infinity": (edited(TINY, '{"format": 1, "metrics": {"a": -Infinity}}'), "-Infinity is no number of JSON"),
    "1e999": (edited(TINY, '{"format": 1, "metrics": {"a": 1e999}}'), "inf .float. is not JSON"),
    "5000 digits": (edited(TINY, '{"format": ' + "1" * 5000 + "}"), "not JSON"),
    "half a surrogate": (edited(TINY, '{"format": 1, "metrics": {"a": "\\ud800"}}'), "not JSON"),
    "key twice": (edited(TINY, '{"format": 1, "format": 1}'), "a key stands twice"),
    "tensor twice": (replaced(b'"0.bias":', b'"0.bias":1,"0.bias":'), "a key stands twice"),
    "format 2": (edited(TINY, {"format": 2}), r"was made by a newer quern \(format 2\): update quern"),
    "format 2, and all else new": (edited(TINY, '{"format": 2}'), r"was made by a newer quern \(format 2\)"),
    "format 2, and no checksum": (with_header(TINY, {"__metadata__": {"quern": '{"format": 2}'}}), "newer quern"),
    "format 0": (edited(TINY, {"format": 0}), "not one that quern.io.save wrote"),
    "format 1.0": (edited(TINY, {"format": 1.0}), "not one that quern.io.save wrote"),
    "format true": (edited(TINY, {"format": True}), "not one that quern.io.save wrote"),
    **{
        f"no {key}": (edited(TINY, drop=key), f"its header has no {key} of the right kind")
        for key in ("builder", "arguments", "steps", "metrics", "images", "parameters")
    },
    "arguments a list": (edited(TINY, {"arguments": []}), "no arguments of the right kind"),
    "steps a table": (edited(TINY, {"steps": {}}), "no steps of the right kind"),
    "a step a list": (edited(TINY, {"steps": [[]]}), "its steps are not at most 32 tables"),
    "1000 steps": (edited(TINY, {"steps": [{}] * 1000}), "its steps are not at most 32 tables"),
    "an unknown step": (edited(TINY, {"steps": [{"run": "rm"}]}), "made by a newer quern|holds steps that do not fit"),
    "two billion channels": (
        edited(TINY, {"steps": [narrowed({"outputs": {"of": 2**31 - 1, "keep": "0-2000000000"}})]}),
        "its steps name more than 1,048,576 channels",
    ),
    "a thousand times all channels": (
        edited(
            TINY,
            {
                "steps": [
                    narrowed({"outputs": {"of": 65536, "keep": "0"}, "still": {str(n): "0-65535" for n in range(1000)}})
                ]
            },
        ),
        "its steps name more than 1,048,576 channels",
    ),
    "images a list": (edited(TINY, {"images": []}), "no images of the right kind"),
    "huge images": (edited(TINY, {"images": {"shape": [3, 1 << 40, 1 << 40]}}), "has images whose shape"),
    "top of images a text": (edited(TINY, {"images": {"top": "255"}}), 'has images whose top is "255", but should be'),
    "top of images 0": (edited(TINY, {"images": {"top": 0}}), "has images whose top is 0, but should be from 1 to 255"),
    "top of images a share": (edited(TINY, {"images": {"top": 0.5}}), "has images whose top is 0.5"),
    "name of images a list": (edited(TINY, {"images": {"name": ["x"]}}), "has images whose name is a list"),
    "builder 3": (edited(TINY, {"builder": 3}), "no builder of the right kind"),
    "builder __import__": (edited(TINY, {"builder": "__import__"}), "which this quern cannot build: update quern"),
    "builder os.system": (edited(TINY, {"builder": "os.system"}), "holds a network os.system, which this quern cannot"),
    "builder with an escape": (edited(TINY, {"builder": "\x1b[2J\n"}), r"holds a network \\x1b\[2J, which"),
    "builder of a megabyte": (edited(TINY, {"builder": "x" * 1_000_000}), r"holds a network x+\.\.\., which"),
    "no builder": (edited(TINY, {"builder": None}), "holds a network of your own"),
    "another builder": (edited(TINY, {"builder": "mnist_cnn"}), "does not fit the network: "),
    "unknown argument": (arguments(code="1"), "digits_cnn takes no code of 1"),
    "negative width": (arguments(widths=[1, -1]), r"takes no widths of \[1, -1\]"),
    "huge width": (arguments(widths=[1, 10**18]), "takes no widths of"),
    "large widths": (arguments(widths=[65536, 65536]), "does not fit the network: 0.bias is"),
    "10,000 widths": (arguments(widths=[1] * 10_000), "takes no widths of"),
    "no widths": (arguments(widths=[]), "takes no widths of"),
    "three widths": (arguments(widths=[1, 1, 1]), "digits_cnn cannot be built"),
    "widths a number": (arguments(widths=1), "takes no widths of 1"),
    "widths a text": (arguments(widths="11"), "takes no widths of 11"),
    "widths of numbers with a point": (arguments(widths=[1.0, 1.0]), "takes no widths of"),
    "widths of truth": (arguments(widths=[True, True]), "takes no widths of"),
    "no classes": (arguments(classes=0), "takes no classes of 0"),
    "huge classes": (arguments(classes=2**62), "takes no classes of"),
    "classes null": (arguments(classes=None), "takes no classes of None"),
    "classes a table": (arguments(classes={"__class__": "int"}), "takes no classes of"),
    "dropout -1": (arguments(dropout=-1), "takes no dropout of -1"),
    "dropout 2": (arguments(dropout=2), "takes no dropout of 2"),
    "dropout true": (arguments(dropout=True), "takes no dropout of True"),
    "unknown norm": (arguments(norm="batch"), "digits_cnn cannot be built"),
    "norm 3": (arguments(norm=3), "takes no norm of 3"),
    "a missing tensor": (
        edited(TINY, tensors={"7.bias": None, "7.weight": {"shape": [17], "data_offsets": [80, 148]}}),
        "does not fit the network: it has no tensor 7.bias",
    ),
    "an extra tensor": (edited(TINY, tensors={"extra": ENTRY}), "does not fit the network, which has no tensor extra"),
    "a path": (edited(TINY, tensors={"../../etc/passwd": ENTRY}), r"which has no tensor \.\./\.\./etc/passwd"),
    "a name of Python's": (edited(TINY, tensors={"0.__class__": ENTRY}), r"which has no tensor 0\.__class__"),
    "an empty name": (edited(TINY, tensors={"": ENTRY}), "which has no tensor"),
    "another shape": (edited(TINY, tensors={"7.weight": {"shape": [16, 1]}}), r"7\.weight is \(16, 1\), but should be"),
    "a huge shape": (edited(TINY, tensors={"7.weight": {"shape": [2**40, 2**40]}}), "wrong about the tensor 7.weight"),
    "a huge empty shape": (edited(TINY, tensors={"e": ENTRY | {"shape": [0, 2**62, 2**62]}}), "which has no tensor e"),
    "a negative shape": (edited(TINY, tensors={"7.weight": {"shape": [-1, -16]}}), "wrong about the tensor 7.weight"),
    "a shape of 1000 axes": (
        edited(TINY, tensors={"7.weight": {"shape": [1] * 1000 + [16]}}),
        "wrong about the tensor",
    ),
    "a shape with a point": (edited(TINY, tensors={"7.weight": {"shape": [1, 16.0]}}), "wrong about the tensor"),
    "a shape of truth": (edited(TINY, tensors={"7.weight": {"shape": [True, 16]}}), "wrong about the tensor"),
    "offsets past the end": (edited(TINY, tensors={"7.weight": {"data_offsets": [2**40, 2**40 + 64]}}), "wrong about"),
    "offsets before the start": (
        edited(TINY, tensors={"7.weight": {"data_offsets": [-64, 0]}}),
        "wrong about the tensor",
    ),
    "offsets backwards": (edited(TINY, tensors={"7.weight": {"data_offsets": [148, 84]}}), "wrong about the tensor"),
    "offsets true": (edited(TINY, tensors={"7.bias": {"data_offsets": [True, 5]}}), "wrong about the tensor"),
    "three offsets": (edited(TINY, tensors={"7.weight": {"data_offsets": [84, 148, 1]}}), "wrong about the tensor"),
    "overlap": (edited(TINY, tensors={"2.weight": {"data_offsets": [40, 76]}}), "its tensors overlap, or leave gaps"),
    "the same place": (
        edited(TINY, tensors={"2.weight": {"data_offsets": [4, 40]}}),
        "its tensors overlap, or leave gaps",
    ),
    "a gap": (edited(TINY, tensors={"0.bias": None}), "its tensors overlap, or leave gaps"),
    "integers": (
        edited(TINY, tensors={"7.weight": {"dtype": "I32"}}),
        "7.weight is torch.int32, but should be torch.float",
    ),
    "half the bytes": (edited(TINY, tensors={"7.weight": {"dtype": "F16"}}), "wrong about the tensor 7.weight"),
    "type F128": (edited(TINY, tensors={"7.weight": {"dtype": "F128"}}), "wrong about the tensor 7.weight"),
    "type null": (edited(TINY, tensors={"7.weight": {"dtype": None}}), "wrong about the tensor 7.weight"),
    "more about a tensor": (edited(TINY, tensors={"7.weight": {"run": "rm"}}), "wrong about the tensor 7.weight"),
    "a tensor a list": (edited(TINY, tensors={"7.weight": [1]}), "wrong about the tensor 7.weight"),
    "a name of a megabyte": (edited(TINY, tensors={"x" * 1_000_000: 3}), r"wrong about the tensor x+\.\.\."),
}
