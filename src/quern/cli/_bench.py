"""``quern bench``."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from quern._files import printable, write_text
from quern.cli._console import err_console, out_console, say
from quern.cli._folder import check_out
from quern.cli._network import image_shape, open_network
from quern.cli._options import Json
from quern.errors import QuernError

if TYPE_CHECKING:
    from torch import nn

EXAMPLES = """
Examples:

  quern bench runs/mnist-rql    (before and after compaction)

  quern bench runs/demo/dense runs/demo/small --batch 1 --threads 1

  quern bench small.safetensors small-int8.onnx --out bench.json

  quern bench --machine    (which kernels are in use here)
"""


def bench(
    models: Annotated[
        list[Path] | None,
        typer.Argument(help="Folders of runs, .safetensors, .onnx or .qrn files.", show_default=False),
    ] = None,
    batch: Annotated[list[int] | None, typer.Option(help="Images per call.", show_default="1 and 64")] = None,
    threads: Annotated[list[int] | None, typer.Option(help="CPU threads.", show_default="1 and 2")] = None,
    repeats: Annotated[int, typer.Option(help="Rounds; the median counts.")] = 30,
    out: Annotated[Path | None, typer.Option(help="File for the numbers, as JSON.")] = None,
    machine: Annotated[bool, typer.Option("--machine", help="Only say which kernels are in use here.")] = False,
    json_: Json = False,
) -> None:
    """Time networks next to each other: in torch, in onnxruntime, and packed in the C runtime. One network is compared
    with itself, compacted."""
    if machine:
        _show_machine(bool(models), out, json_)
        return
    if not models:
        raise QuernError("say which networks to time, or --machine for what is in use here.")
    from quern import bench as benching
    from quern.bench.machine import facts

    if out is not None:
        check_out(out)
    chosen: dict[str, Any] = {}
    headers: dict[str, dict[str, Any]] = {}
    shape: tuple[int, ...] | None = None
    for path in models:
        if path.suffix in (".onnx", ".qrn"):
            if not path.is_file():
                raise QuernError(f"{path} is not there.")
            chosen[_unused(printable(path.name), chosen)] = path
            continue
        network, header = open_network(path)
        shape = shape or image_shape(header, path)
        if len(models) > 1:
            networks = {_unused(printable(path.name), chosen): network}
        else:
            networks = _dense_and_compacted(network, header, shape)
        chosen |= networks
        headers |= dict.fromkeys(networks, header)
    if shape is None:
        raise QuernError("give at least one .safetensors file or run besides .onnx and .qrn files.")
    timings = benching.bench(
        chosen,
        shape,
        batches=batch or (1, 64),
        threads=threads or (1, 2),
        repeats=repeats,
        progress=lambda what: say(what, err_console),
        headers=headers,
    )
    record = {"environment": facts(), "files": [printable(path) for path in models], **timings.to_dict()}
    if out is not None:
        write_text(out, json.dumps(record, indent=1) + "\n")
    if json_:
        typer.echo(json.dumps(record))
    else:
        out_console.print(timings)


def _show_machine(any_models: bool, out: Path | None, json_: bool) -> None:
    from quern.bench.machine import machine

    if any_models or out is not None:
        raise QuernError("--machine times nothing: leave the networks and --out away.")
    facts = machine()
    if json_:
        typer.echo(json.dumps(asdict(facts)))
    else:
        out_console.print(facts)


def _unused(name: str, taken: dict[str, Any]) -> str:
    return next(n for n in (name, *(f"{name} ({k})" for k in range(2, len(taken) + 3))) if n not in taken)


def _dense_and_compacted(network: "nn.Module", header: dict[str, Any], shape: tuple[int, ...]) -> dict[str, Any]:
    """The network before and after compaction. If it was compacted already, before is as it was built: how fast that
    is does not depend on its weights."""
    import torch

    from quern import models
    from quern.compact import compact as compacted

    example = torch.randn(2, *shape, generator=torch.Generator().manual_seed(0))
    dense = network
    if any("compact" in step for step in header["steps"]) and header["builder"] is not None:
        dense = models.BUILDERS[header["builder"]](**header["arguments"]).eval()
        say("it was compacted before: dense is the network as it was built, with new weights", err_console)
    return {"dense": dense, "compacted": compacted(network, example)}
