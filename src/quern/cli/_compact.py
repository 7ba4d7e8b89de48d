"""``quern compact``."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from quern.cli._console import err_console, out_console, say
from quern.cli._folder import check_out
from quern.cli._network import image_shape, images_to_check, network_file, open_network
from quern.cli._options import DataDir, DatasetToCheck, Json, ModelFile
from quern.errors import QuernError

if TYPE_CHECKING:
    from torch import nn

    from quern.data import ImageSet

EXAMPLES = """
Examples:

  quern compact runs/mnist-rql --out small.safetensors

  quern compact model.safetensors --tol 1e-3 --out small.safetensors    (what the paper counts as zero)

  quern compact runs/photos --dataset photos/ --out small.safetensors    (checked on these images)
"""


def compact(
    model: ModelFile,
    out: Annotated[Path, typer.Option(help="File for the smaller network.")],
    tol: Annotated[float, typer.Option(help="Weights up to this count as zero; above 0, outputs change.")] = 0.0,
    dataset: DatasetToCheck = None,
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
    network, header = open_network(model)
    example = torch.randn(2, *image_shape(header, model), generator=torch.Generator().manual_seed(0))
    plan = compaction.plan(network, example, tol)
    if plan.dead:
        compaction.warn_dead()
    small = compaction.compact(network, plan)
    images = images_to_check(header, dataset, data_dir, model)
    lines, metrics = [str(plan)], dict(header["metrics"])
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
    io.save(small, out, metrics=metrics, images=header["images"])
    sizes = [size, out.stat().st_size]
    lines.append(f"{out}: {sizes[1]:,} bytes (before {sizes[0]:,})")
    say("\n".join(lines), err_console if json_ else out_console)
    if json_:
        typer.echo(json.dumps(result | {"bytes": sizes, "plan": plan.to_dict()}))


def _scores(network: "nn.Module", images: "ImageSet") -> Any:
    import torch

    with torch.no_grad():
        return torch.cat([network(images.normalize(part)) for part in images.test.pixels.split(1000)])
