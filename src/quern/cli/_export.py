"""``quern export``."""

import json
import shlex
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from quern._files import printable
from quern.cli._console import err_console, out_console, say
from quern.cli._folder import check_out
from quern.cli._network import image_shape, images_to_check, open_network
from quern.cli._options import DataDir, DatasetToCheck, Json, ModelFile
from quern.errors import QuernError

if TYPE_CHECKING:
    from rich.console import Console
    from torch import nn

    from quern.export import PackedReport, Pixels
    from quern.runtime import PackedNetwork

EXAMPLES = """
Examples:

  quern export runs/demo small.onnx

  quern export runs/demo small.onnx --pixels uint8    (takes images as they are in files)

  quern export small.safetensors small-int8.onnx --int8 --dataset mnist

  quern export small.safetensors small.pt2

  quern export runs/demo page.html    (runs in a browser, offline: draw or drop an image)

  quern export runs/demo small.qrn --pixels uint8 --dtype int8    (for the C runtime: quern.runtime, any device)

  quern export runs/demo device/ --mcu --dtype int8    (a folder in C for a microcontroller: make run-m4 there)
"""


SUFFIXES = (".onnx", ".pt2", ".html", ".qrn")
PACKED = (".qrn", ".html")


def export(
    model: ModelFile,
    out: Annotated[
        Path,
        typer.Argument(
            help="What to write: .onnx, .pt2 (torch.export), .qrn (C runtime), .html (runs in a browser); or a folder."
        ),
    ],
    mcu: Annotated[
        bool, typer.Option("--mcu", help="Write a new folder in C that builds for a microcontroller, raw bytes in.")
    ] = False,
    dtype: Annotated[
        Literal["float32", "float16", "int8"],
        typer.Option(
            metavar="<type>", help="Numbers of a .qrn or .html file, or of --mcu: float32, float16 (weights) or int8."
        ),
    ] = "float32",
    pixels: Annotated[
        Literal["none", "uint8", "float32"] | None,
        typer.Option(
            help="Take raw images, bytes or numbers from 0 to 1, and normalise them inside. [none, with --mcu uint8]",
            show_default=False,
        ),
    ] = None,
    int8: Annotated[bool, typer.Option("--int8", help="Weights and activations in 8 bits (.onnx).")] = False,
    calibration: Annotated[int, typer.Option(help="Training images to find the ranges of int8 with.")] = 512,
    dataset: DatasetToCheck = None,
    data_dir: DataDir = None,
    json_: Json = False,
) -> None:
    """Write a network for other programs, checked against the original on real images first."""
    if not mcu and out.suffix not in SUFFIXES:
        raise QuernError(
            f"{out} ends in neither {', '.join(SUFFIXES[:-1])} nor .qrn, so it is not clear what to write."
        )
    if mcu and out.suffix in SUFFIXES:
        raise QuernError(f"--mcu writes a folder, but {out} is the name of a file: leave one of them.")
    packs = mcu or out.suffix in PACKED
    if int8 and (mcu or out.suffix != ".onnx"):
        raise QuernError("--int8 is for .onnx files: say --dtype int8 for a .qrn or .html file, or --mcu.")
    if dtype != "float32" and not packs:
        raise QuernError("--dtype is for .qrn and .html files and --mcu: say --int8 for an .onnx file in 8 bits.")
    page = out.suffix == ".html"
    if page and pixels not in (None, "uint8"):
        raise QuernError("a page has images as bytes: leave out --pixels.")
    if calibration < 1:
        raise QuernError(f"--calibration is {calibration}, but there must be at least one image.")
    check_out(out, folder=mcu)
    import torch  # only now: it takes seconds, and what is wrong with the command is said at once

    from quern import export as exporting
    from quern import runtime
    from quern.report import write_network_page

    network, header = open_network(model)
    if page:  # without these there is none, whatever images there are
        _pixels(header, "uint8", model)
        image_shape(header, model)
    images = images_to_check(header, dataset, data_dir, model)
    if (int8 or dtype == "int8") and images is None:
        raise QuernError("int8 needs images to find the ranges of numbers with: say --dataset.")
    if mcu and images is None:
        raise QuernError("--mcu needs an image to put in the folder: say --dataset.")
    raw = _pixels(header, pixels or ("uint8" if mcu or page else "none"), model)
    if raw is not None and images is not None and raw.top != images.top:
        raise QuernError(
            f"white is {raw.top} in the images of the network and {images.top} in those of {images.name}: "
            "check with others, or without --pixels."
        )

    def prepared(part: Any) -> Any:
        """Images as the file will take them."""
        if raw is None:
            assert images is not None
            return images.normalize(part)
        return part.float() / raw.top if raw.dtype == "float32" else part

    def typical() -> Any:
        """Some training images, the same ones every time."""
        assert images is not None
        chosen = torch.randperm(len(images.train), generator=torch.Generator().manual_seed(0))[:calibration]
        return prepared(images.train.pixels[chosen])

    if images is not None:
        example = prepared(images.test.pixels[:64])
    elif raw is not None and raw.dtype == "uint8":
        example = torch.randint(0, raw.top + 1, (8, *image_shape(header, model)), dtype=torch.uint8)
    else:
        example = torch.rand(8, *image_shape(header, model))
    console = err_console if json_ else out_console
    result: dict[str, Any] = {"file": printable(out)}
    tests = None if images is None else (prepared(images.test.pixels), images.test.labels)
    with tempfile.TemporaryDirectory(prefix="quern-export-") as folder:
        if packs:
            inputs, file = typical() if dtype == "int8" else example, Path(folder) / "packed.qrn" if page else out
            if mcu:
                made = exporting.to_mcu(network, out, inputs, example[0], dtype=dtype, pixels=raw)
                report, packed = made.packed, made.network
                result |= {"device_arena": made.network.device_arena, "image_class": made.image_class}
            else:
                report = exporting.to_packed(network, file, inputs, dtype=dtype, pixels=raw)
                packed = runtime.load(file)
            if page:
                write_network_page(file, out, header["images"], header["builder"] or "A network")
            result |= _packed(report, packed, out, network, dtype, tests, raw, console)
            if mcu:
                say(f"{printable(out)} builds by itself: make -C {printable(shlex.quote(str(out)))} host", console)
            if json_:
                typer.echo(json.dumps(result))
            return
        plain = Path(folder) / "plain.onnx" if int8 else out
        report = (exporting.to_onnx if out.suffix == ".onnx" else exporting.to_pt2)(network, plain, example, pixels=raw)
        what = f"{'float32: ' if int8 else f'{out}: '}{report.bytes:,} bytes, scores within {report.difference:.1e}"
        result |= {"bytes": report.bytes, "difference": report.difference}
        if tests is not None and out.suffix == ".onnx":
            result["accuracy"] = exporting.accuracy(plain, *tests)
            what += f", {result['accuracy']:.2%} of the test images right"
        say(what, console)
        if int8:
            assert tests is not None
            exporting.to_int8(plain, out, typical())
            accuracy = exporting.accuracy(out, *tests)
            result |= {"int8_bytes": out.stat().st_size, "int8_accuracy": accuracy}
            say(f"int8: {out}: {out.stat().st_size:,} bytes, {_lost(result['accuracy'], accuracy)}", console)
    if json_:
        typer.echo(json.dumps(result))


def _lost(before: float, after: float) -> str:
    cost = 100 * (before - after)
    return f"{after:.2%} of the test images right: {abs(cost):.2f} points {'less' if cost >= 0 else 'more'}"


def _packed(
    report: "PackedReport",
    packed: "PackedNetwork",
    out: Path,
    network: "nn.Module",
    dtype: str,
    tests: Any,
    raw: "Pixels | None",
    console: "Console",
) -> dict[str, Any]:
    """What is said of a packed network, which is in the file ``out``, and as numbers."""
    import torch
    from rich.table import Table

    inside = "" if out.suffix != ".html" else f"{out.stat().st_size:,} bytes, of the network "
    what = f"{printable(out)}: {inside}{report.bytes:,} bytes, {report.arena:,} bytes of working memory"
    say(f"{what}; on a microcontroller {report.ram:,}, stack included", console)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("layer", "stored", "of", "storage", "bytes"):
        table.add_column(name, justify="left" if name in ("layer", "storage") else "right", no_wrap=True)
    for layer in report.layers:
        kind = "sparse" if layer.sparse else "dense"
        table.add_row(layer.name, f"{layer.stored:,}", f"{layer.total:,}", kind, f"{layer.bytes:,}")
    console.print(table)
    result = {"bytes": report.bytes, "arena": report.arena, "least_arena": report.least_arena}
    result |= {"ram": report.ram, "difference": report.difference, "layers": [asdict(layer) for layer in report.layers]}
    summary = f"scores within {report.difference:.1e} of the network's"
    if tests is not None:
        images, labels = tests
        scores = torch.from_numpy(packed(images.numpy()))
        result["accuracy"] = float((scores.argmax(1) == labels).float().mean())
        summary += f", {result['accuracy']:.2%} of the test images right"
        if dtype != "float32":
            result["float32_accuracy"] = _accuracy(network, images, labels, raw)
            summary = summary.rpartition(", ")[0] + f", {_lost(result['float32_accuracy'], result['accuracy'])}"
    say(summary, console)
    return result


def _accuracy(network: "nn.Module", images: Any, labels: Any, raw: "Pixels | None") -> float:
    """Of the network in torch, on images as the file takes them."""
    import torch

    from quern.export import normalized

    with torch.inference_mode():
        parts = zip(images.split(500), labels.split(500), strict=True)
        right = sum(int((network(normalized(x, raw)).argmax(1) == y).sum()) for x, y in parts)
    return right / len(labels)


def _pixels(header: dict[str, Any], kind: Literal["none", "uint8", "float32"], path: Path) -> "Pixels | None":
    from quern.export import Pixels

    if kind == "none":
        return None
    images = header.get("images") or {}
    if "mean" not in images or "std" not in images:
        raise QuernError(
            f"{path} does not say how its images are normalised: save it with images=, or say --pixels none."
        )
    return Pixels(tuple(images["mean"]), tuple(images["std"]), kind, images.get("top", 255))
