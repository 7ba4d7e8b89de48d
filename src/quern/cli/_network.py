"""Networks from files and folders of runs, and images to check them with, for ``compact``, ``export`` and ``bench``."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quern import zoo
from quern._files import foreign_kind
from quern.cli._console import Fetching, err_console, say
from quern.cli._folder import how_to_go_on
from quern.errors import QuernError

if TYPE_CHECKING:
    from torch import nn

    from quern.data import ImageSet


def network_file(path: Path) -> Path:
    """A run's folder stands for its network, and ``zoo:NAME`` for one that comes with quern."""
    if str(path).startswith(zoo.PREFIX):
        return zoo.path_of(str(path).removeprefix(zoo.PREFIX), ".safetensors")
    if not path.is_dir():
        if kind := foreign_kind(path):
            raise QuernError(f"{path} is {kind}: give a network as a .safetensors file of quern, or a run's folder.")
        return path
    for file in (path / "model.safetensors", path / "small" / "model.safetensors"):  # of quern train, of compress
        if file.exists():
            return file
    if (path / "config.json").exists():
        raise QuernError(f"{path} is a run that is not finished: go on with {how_to_go_on(path)}.")
    if runs := sorted(path.glob("*/config.json")):
        raise QuernError(f"{path} is not a run, but holds some: give one, such as {runs[0].parent}.")
    raise QuernError(f"{path} holds no model.safetensors: give the folder of a run, or a file.")


def load_network(path: Path) -> "nn.Module":
    """A network of a file, of a run's folder, or of the zoo, which keeps its files in 16 bits."""
    from quern import io

    network = io.load(network_file(path))
    return network.float() if str(path).startswith(zoo.PREFIX) else network


def open_network(path: Path) -> tuple["nn.Module", dict[str, Any]]:
    """A network, and what the header of its file says of it."""
    from quern import io

    return load_network(path), io.describe(network_file(path))


def image_shape(header: dict[str, Any], path: Path) -> tuple[int, ...]:
    shape = (header.get("images") or {}).get("shape")
    if shape is None:
        raise QuernError(f"{path} does not say what images it takes: save it with images=.")
    return tuple(shape)


def images_to_check(
    header: dict[str, Any], dataset: str | None, data_dir: Path | None, path: Path
) -> "ImageSet | None":
    """The images that were asked for, else those the network was trained on, if they are here already."""
    from quern import data

    name = str(dataset or (header.get("images") or {}).get("name"))
    if dataset is None and data_dir is None:
        if name not in data.NAMES:
            say("not checked on images: say --dataset to name some", err_console)
            return None
        if name != "digits" and not data.cache_file(name).exists():
            say(f"not checked on images: {name} is not here; say --dataset {name} to fetch it", err_console)
            return None
    channels, height, width = image_shape(header, path)
    folder = name not in data.NAMES and Path(name).is_dir()  # to be read as the network knows images
    size, gray = (height if height == width else None, channels == 1) if folder else (None, None)
    with Fetching(quiet=False) as progress:
        images = data.load(name, data_dir, size, progress, gray)
    known = header.get("images") or {}
    if "mean" in known and "std" in known and len(known["mean"]) == images.shape[0]:  # as the network knows images
        images = replace(images, mean=tuple(known["mean"]), std=tuple(known["std"]))
    if images.shape != image_shape(header, path):
        takes, are = (" x ".join(map(str, s)) for s in (image_shape(header, path), images.shape))
        raise QuernError(f"the network takes images of {takes}, but those of {name} are {are}.")
    return images
