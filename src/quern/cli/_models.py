"""``quern compact``, ``quern export`` and ``quern bench``: what to do with a network that was trained."""

import json
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from quern._files import foreign_kind, printable, write_text
from quern.cli._console import Fetching, err_console, out_console, say
from quern.cli._folder import check_out, how_to_go_on
from quern.errors import QuernError

if TYPE_CHECKING:
    from torch import nn

    from quern.data import ImageSet
    from quern.export import Pixels

COMPACT_EXAMPLES = """
Examples:

  quern compact runs/mnist-rql --out small.safetensors

  quern compact model.safetensors --tol 1e-3 --out small.safetensors    (what the paper counts as zero)

  quern compact runs/photos --dataset photos/ --out small.safetensors    (checked on these images)
"""
EXPORT_EXAMPLES = """
Examples:

  quern export runs/demo small.onnx

  quern export runs/demo small.onnx --pixels uint8    (takes images as they are in files)

  quern export small.safetensors small-int8.onnx --int8 --dataset mnist

  quern export small.safetensors small.pt2
"""
BENCH_EXAMPLES = """
Examples:

  quern bench runs/mnist-rql    (before and after compaction)

  quern bench runs/demo/dense runs/demo/small --batch 1 --threads 1

  quern bench small.safetensors small-int8.onnx --out bench.json
"""

ModelFile = Annotated[Path, typer.Argument(help="A network: the folder of a run, or a .safetensors file of quern.")]
Tol = Annotated[float, typer.Option(help="Weights up to this count as zero; above 0, outputs change.")]
Json = Annotated[
    bool, typer.Option("--json", help="The result as JSON on standard output, all else on standard error.")
]
DataSet = Annotated[
    str | None, typer.Option(help="Images to check with.", show_default="what it was trained on, if that is here")
]
DataDir = Annotated[Path | None, typer.Option(help="A folder with the original files of the data set.")]


def network_file(path: Path) -> Path:
    """A run's folder stands for its network."""
    if not path.is_dir():
        if kind := foreign_kind(path):
            raise QuernError(f"{path} is {kind}: give a network as a .safetensors file of quern, or a run's folder.")
        return path
    for found in (path / "model.safetensors", path / "small" / "model.safetensors"):  # of quern train, of compress
        if found.exists():
            return found
    if (path / "config.json").exists():
        raise QuernError(f"{path} is a run that is not finished: go on with {how_to_go_on(path)}.")
    if runs := sorted(path.glob("*/config.json")):
        raise QuernError(f"{path} is not a run, but holds some: give one, such as {runs[0].parent}.")
    raise QuernError(f"{path} holds no model.safetensors: give the folder of a run, or a file.")


def _open(path: Path) -> tuple["nn.Module", dict[str, Any]]:
    from quern import io

    path = network_file(path)
    return io.load(path), io.describe(path)


def _shape(about: dict[str, Any], path: Path) -> tuple[int, ...]:
    shape = (about.get("images") or {}).get("shape")
    if shape is None:
        raise QuernError(f"{path} does not say what images it takes: save it with images=.")
    return tuple(shape)


def _images(about: dict[str, Any], dataset: str | None, data_dir: Path | None, path: Path) -> "ImageSet | None":
    """The images that were asked for, else those the network was trained on, if they are here already."""
    from quern import data

    name = str(dataset or (about.get("images") or {}).get("name"))
    if dataset is None and data_dir is None:
        if name not in data.NAMES:
            say("not checked on images: say --dataset to name some", err_console)
            return None
        if name != "digits" and not data.cache_file(name).exists():
            say(f"not checked on images: {name} is not here; say --dataset {name} to fetch it", err_console)
            return None
    channels, height, width = _shape(about, path)
    folder = name not in data.NAMES and Path(name).is_dir()  # to be read as the network knows images
    size, gray = (height if height == width else None, channels == 1) if folder else (None, None)
    with Fetching(quiet=False) as progress:
        found = data.load(name, data_dir, size, progress, gray)
    known = about.get("images") or {}
    if "mean" in known and "std" in known and len(known["mean"]) == found.shape[0]:  # as the network knows images
        found = replace(found, mean=tuple(known["mean"]), std=tuple(known["std"]))
    if found.shape != _shape(about, path):
        takes, are = (" x ".join(map(str, s)) for s in (_shape(about, path), found.shape))
        raise QuernError(f"the network takes images of {takes}, but those of {name} are {are}.")
    return found


def compact(
    model: ModelFile,
    out: Annotated[Path, typer.Option(help="File for the smaller network.")],
    tol: Tol = 0.0,
    dataset: DataSet = None,
    data_dir: DataDir = None,
    json_: Json = False,
) -> None:
    """Remove what died from a network; its outputs stay the same."""
    import torch

    from quern import compact as compaction
    from quern import io

    if not 0 <= tol < float("inf"):
        raise QuernError(f"--tol is {tol}, but it must be a finite number that is not negative.")
    check_out(out)
    network, about = _open(model)
    example = torch.randn(2, *_shape(about, model), generator=torch.Generator().manual_seed(0))
    plan = compaction.plan(network, example, tol)
    if plan.dead:
        compaction.warn_dead()
    small = compaction.compact(network, plan)
    images = _images(about, dataset, data_dir, model)
    lines, metrics = [str(plan)], dict(about["metrics"])
    result: dict[str, Any] = {"parameters": plan.parameters, "neurons": plan.neurons}
    if images is not None:
        before, after = (_scores(m, images) for m in (network, small))
        right = [int((s.argmax(1) == images.test.labels).sum()) for s in (before, after)]
        differ = int((before.argmax(1) != after.argmax(1)).sum())
        count = len(images.test)
        lines.append(
            f"{images.name}, {count:,} test images: {right[0] / count:.2%} right before, {right[1] / count:.2%} after; "
            f"{differ} of them are classified differently; scores differ by up to {(before - after).abs().max():.1e} "
            f"(of {before.abs().max():.1f})"
        )
        metrics["test_accuracy"] = right[1] / count
        result |= {"right": right, "images": count, "classified_differently": differ}
    size = network_file(model).stat().st_size  # now: the new file may be to take its place
    io.save(small, out, metrics=metrics, images=about["images"])
    sizes = [size, out.stat().st_size]
    lines.append(f"{out}: {sizes[1]:,} bytes (before {sizes[0]:,})")
    say("\n".join(lines), err_console if json_ else out_console)
    if json_:
        typer.echo(json.dumps(result | {"bytes": sizes, "plan": plan.to_dict()}))


def _scores(network: "nn.Module", images: "ImageSet") -> Any:
    import torch

    with torch.no_grad():
        return torch.cat([network(images.normalize(part)) for part in images.test.pixels.split(1000)])


def export(
    model: ModelFile,
    out: Annotated[Path, typer.Argument(help="File to write: .onnx, or .pt2 for torch.export.")],
    pixels: Annotated[
        Literal["none", "uint8", "float32"],
        typer.Option(help="Take raw images, bytes or numbers from 0 to 1, and normalise them inside."),
    ] = "none",
    int8: Annotated[bool, typer.Option("--int8", help="Weights and activations in 8 bits (.onnx).")] = False,
    calibration: Annotated[int, typer.Option(help="Training images to find the ranges of --int8 with.")] = 512,
    dataset: DataSet = None,
    data_dir: DataDir = None,
    json_: Json = False,
) -> None:
    """Write a network for other programs, checked against the original on real images first."""
    import torch

    from quern import export as exporting

    kinds = {".onnx": exporting.to_onnx, ".pt2": exporting.to_pt2}
    if out.suffix not in kinds:
        raise QuernError(f"{out} ends in neither .onnx nor .pt2, so it is not clear what to write.")
    if int8 and out.suffix != ".onnx":
        raise QuernError("--int8 is for .onnx files.")
    if calibration < 1:
        raise QuernError(f"--calibration is {calibration}, but there must be at least one image.")
    check_out(out)
    network, about = _open(model)
    images = _images(about, dataset, data_dir, model)
    if int8 and images is None:
        raise QuernError("--int8 needs images to find the ranges of numbers with: say --dataset.")
    raw = _pixels(about, pixels, model)
    if raw is not None and images is not None and raw.top != images.top:
        said = f"white is {raw.top} in the images of the network and {images.top} in those of {images.name}"
        raise QuernError(f"{said}: check with others, or without --pixels.")

    def prepared(part: Any) -> Any:
        """Images as the file will take them."""
        if raw is None:
            assert images is not None
            return images.normalize(part)
        return part.float() / raw.top if raw.dtype == "float32" else part

    if images is not None:
        example = prepared(images.test.pixels[:64])
    elif raw is not None and raw.dtype == "uint8":
        example = torch.randint(0, raw.top + 1, (8, *_shape(about, model)), dtype=torch.uint8)
    else:
        example = torch.rand(8, *_shape(about, model))
    console = err_console if json_ else out_console
    result: dict[str, Any] = {"file": printable(out)}
    with tempfile.TemporaryDirectory(prefix="quern-export-") as folder:
        plain = Path(folder) / "plain.onnx" if int8 else out
        report = kinds[out.suffix](network, plain, example, pixels=raw)
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
            found = exporting.accuracy(out, prepared(images.test.pixels), images.test.labels)
            cost = 100 * (result["accuracy"] - found)
            result |= {"int8_bytes": out.stat().st_size, "int8_accuracy": found}
            say(
                f"int8: {out}: {out.stat().st_size:,} bytes, {found:.2%} of the test images right: "
                f"{abs(cost):.2f} points {'less' if cost >= 0 else 'more'}",
                console,
            )
    if json_:
        typer.echo(json.dumps(result))


def _pixels(about: dict[str, Any], kind: Literal["none", "uint8", "float32"], path: Path) -> "Pixels | None":
    from quern.export import Pixels

    if kind == "none":
        return None
    images = about.get("images") or {}
    if "mean" not in images or "std" not in images:
        raise QuernError(f"{path} does not say how its images are normalised: save it with images=, or leave --pixels.")
    return Pixels(tuple(images["mean"]), tuple(images["std"]), kind, images.get("top", 255))


def bench(
    models: Annotated[list[Path], typer.Argument(help="Folders of runs, .safetensors files, or .onnx files.")],
    batch: Annotated[list[int] | None, typer.Option(help="Images per call.", show_default="1 and 64")] = None,
    threads: Annotated[list[int] | None, typer.Option(help="CPU threads.", show_default="1 and 2")] = None,
    repeats: Annotated[int, typer.Option(help="Rounds; the median counts.")] = 30,
    out: Annotated[Path | None, typer.Option(help="File for the numbers, as JSON.")] = None,
    json_: Json = False,
) -> None:
    """Time networks next to each other, in torch and in onnxruntime. One network is compared with itself, compacted."""
    from quern import bench as benching
    from quern.bench.machine import facts

    if out is not None:
        check_out(out)
    chosen: dict[str, Any] = {}
    shape: tuple[int, ...] | None = None
    for path in models:
        if path.suffix == ".onnx":
            if not path.is_file():
                raise QuernError(f"{path} is not there.")
            chosen[_unused(printable(path.name), chosen)] = path
            continue
        network, about = _open(path)
        shape = shape or _shape(about, path)
        if len(models) > 1:
            chosen[_unused(printable(path.name), chosen)] = network
        else:
            chosen |= _dense_and_compacted(network, about, shape)
    if shape is None:
        raise QuernError("give at least one .safetensors file or run besides .onnx files.")
    found = benching.bench(
        chosen,
        shape,
        batches=batch or (1, 64),
        threads=threads or (1, 2),
        repeats=repeats,
        progress=lambda what: say(what, err_console),
    )
    record = {"environment": facts(), "files": [printable(path) for path in models], **found.to_dict()}
    if out is not None:
        write_text(out, json.dumps(record, indent=1) + "\n")
    if json_:
        typer.echo(json.dumps(record))
    else:
        out_console.print(found)


def _unused(name: str, taken: dict[str, Any]) -> str:
    return next(n for n in (name, *(f"{name} ({k})" for k in range(2, len(taken) + 3))) if n not in taken)


def _dense_and_compacted(network: "nn.Module", about: dict[str, Any], shape: tuple[int, ...]) -> dict[str, Any]:
    """The network before and after compaction. If it was compacted already, before is as it was built: how fast that
    is does not depend on its weights."""
    import torch

    from quern import models
    from quern.compact import compact as compacted

    example = torch.randn(2, *shape, generator=torch.Generator().manual_seed(0))
    dense = network
    if any("compact" in step for step in about["steps"]) and about["builder"] is not None:
        dense = models.BUILDERS[about["builder"]](**about["arguments"]).eval()
        say("it was compacted before: dense is the network as it was built, with new weights", err_console)
    return {"dense": dense, "compacted": compacted(network, example)}
