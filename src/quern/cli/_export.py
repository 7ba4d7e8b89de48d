"""``quern export``."""

import json
import tempfile
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
    from quern.export import Pixels

EXAMPLES = """
Examples:

  quern export runs/demo small.onnx

  quern export runs/demo small.onnx --pixels uint8    (takes images as they are in files)

  quern export small.safetensors small-int8.onnx --int8 --dataset mnist

  quern export small.safetensors small.pt2
"""


def export(
    model: ModelFile,
    out: Annotated[Path, typer.Argument(help="File to write: .onnx, or .pt2 for torch.export.")],
    pixels: Annotated[
        Literal["none", "uint8", "float32"],
        typer.Option(help="Take raw images, bytes or numbers from 0 to 1, and normalise them inside."),
    ] = "none",
    int8: Annotated[bool, typer.Option("--int8", help="Weights and activations in 8 bits (.onnx).")] = False,
    calibration: Annotated[int, typer.Option(help="Training images to find the ranges of --int8 with.")] = 512,
    dataset: DatasetToCheck = None,
    data_dir: DataDir = None,
    json_: Json = False,
) -> None:
    """Write a network for other programs, checked against the original on real images first."""
    if out.suffix not in (".onnx", ".pt2"):
        raise QuernError(f"{out} ends in neither .onnx nor .pt2, so it is not clear what to write.")
    if int8 and out.suffix != ".onnx":
        raise QuernError("--int8 is for .onnx files.")
    if calibration < 1:
        raise QuernError(f"--calibration is {calibration}, but there must be at least one image.")
    check_out(out)
    import torch  # only now: it takes seconds, and what is wrong with the command is said at once

    from quern import export as exporting

    network, header = open_network(model)
    images = images_to_check(header, dataset, data_dir, model)
    if int8 and images is None:
        raise QuernError("--int8 needs images to find the ranges of numbers with: say --dataset.")
    raw = _pixels(header, pixels, model)
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

    if images is not None:
        example = prepared(images.test.pixels[:64])
    elif raw is not None and raw.dtype == "uint8":
        example = torch.randint(0, raw.top + 1, (8, *image_shape(header, model)), dtype=torch.uint8)
    else:
        example = torch.rand(8, *image_shape(header, model))
    console = err_console if json_ else out_console
    result: dict[str, Any] = {"file": printable(out)}
    with tempfile.TemporaryDirectory(prefix="quern-export-") as folder:
        plain = Path(folder) / "plain.onnx" if int8 else out
        report = (exporting.to_onnx if out.suffix == ".onnx" else exporting.to_pt2)(network, plain, example, pixels=raw)
        what = f"{'float32: ' if int8 else f'{out}: '}{report.bytes:,} bytes, scores within {report.difference:.1e}"
        result |= {"bytes": report.bytes, "difference": report.difference}
        if images is not None and out.suffix == ".onnx":
            tests = prepared(images.test.pixels)
            result["accuracy"] = exporting.accuracy(plain, tests, images.test.labels)
            what += f", {result['accuracy']:.2%} of the test images right"
        say(what, console)
        if int8:
            assert images is not None
            chosen = torch.randperm(len(images.train), generator=torch.Generator().manual_seed(0))[:calibration]
            exporting.to_int8(plain, out, prepared(images.train.pixels[chosen]))
            accuracy = exporting.accuracy(out, prepared(images.test.pixels), images.test.labels)
            cost = 100 * (result["accuracy"] - accuracy)
            result |= {"int8_bytes": out.stat().st_size, "int8_accuracy": accuracy}
            say(
                f"int8: {out}: {out.stat().st_size:,} bytes, {accuracy:.2%} of the test images right: "
                f"{abs(cost):.2f} points {'less' if cost >= 0 else 'more'}",
                console,
            )
    if json_:
        typer.echo(json.dumps(result))


def _pixels(header: dict[str, Any], kind: Literal["none", "uint8", "float32"], path: Path) -> "Pixels | None":
    from quern.export import Pixels

    if kind == "none":
        return None
    images = header.get("images") or {}
    if "mean" not in images or "std" not in images:
        raise QuernError(f"{path} does not say how its images are normalised: save it with images=, or leave --pixels.")
    return Pixels(tuple(images["mean"]), tuple(images["std"]), kind, images.get("top", 255))
