"""Networks that run in a page: packed, beside the C runtime as WebAssembly, with what the page must know of images."""

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any, TypedDict

import numpy as np

from quern.errors import PackedError
from quern.records import DATASETS, ImageFormat
from quern.records.schema import visible
from quern.report._tables import amount

STAGE = 560  # pixels of the longer side of what one draws on


class Frame(TypedDict):
    """How the drawings of a data set are framed, in pixels: they fit ``width`` and ``height``, are ``stretched`` to
    all of the height or keep their proportions, and have their centre, or their centre of mass, in the middle; ``pen``
    is about the width of their lines."""

    width: int
    height: int
    stretched: bool
    by_mass: bool
    pen: float


# Of sets of drawings; those of other sets are taken as they are drawn.
FRAMES: dict[str, Frame] = {
    "mnist": {"width": 20, "height": 20, "stretched": False, "by_mass": True, "pen": 2.8},
    "digits": {"width": 6, "height": 8, "stretched": True, "by_mass": False, "pen": 1.7},
}


@dataclass(frozen=True)
class LiveNetwork:
    name: str
    bytes: int


@dataclass(frozen=True)
class Live:
    """The panel: its networks, the size of what one draws on, and what its script takes."""

    networks: tuple[LiveNetwork, ...]
    stage: tuple[int, int]
    data: dict[str, Any]


@dataclass(frozen=True)
class NetworkPage:
    title: str
    summary: str
    live: Live


def read_live(packed: Mapping[str, Path], images: ImageFormat | None, most: int | None = None) -> Live:
    """Packed networks by their names, ready for a page: of at most so many bytes, if ``most`` says how many. They take
    the same images; one sentence if they do not, or if a page cannot give what they take."""
    from quern import runtime

    if images is None or "shape" not in images:
        raise PackedError("it is not known what images they take.")
    networks = {name: runtime.load(path) for name, path in packed.items()}
    total = sum(network.bytes for network in networks.values())
    if most is not None and total > most:
        raise PackedError(f"packed, they take {amount(total)} bytes, and a report carries {amount(most)} at most.")
    shape, scores = tuple(images["shape"]), 0
    if len(shape) != 3 or shape[0] not in (1, 3):
        sizes = " x ".join(map(str, shape))
        raise PackedError(f"the shape of their images is {sizes or 'empty'}, and a page has 1 or 3 channels of rows.")
    for network in networks.values():
        inputs, outputs = network.inputs, network.outputs
        if [(one.dtype, one.shape) for one in inputs] != [(np.uint8, shape)]:
            raise PackedError("they were not packed for images in bytes: say pixels uint8.")
        if [(one.dtype, len(one.shape)) for one in outputs] != [(np.float32, 1)]:
            raise PackedError("they do not give one score for each class.")
        scores = outputs[0].shape[0]
    channels, height, width = shape
    top = images.get("top", 255)
    dark = (images.get("mean") or [0.0])[0] < 0.5
    frame = FRAMES.get(images.get("name", ""))
    data = {
        "wasm": _text(files("quern.runtime").joinpath("quern_rt.wasm").read_bytes()),
        "networks": [_text(path.read_bytes()) for path in packed.values()],
        "shape": shape,
        "top": top,
        "classes": [visible(name) for name in images.get("classes", ())],
        "scores": scores,
        "draw": channels == 1,
        "ink": "white" if dark and channels == 1 else "black",
        "frame": frame if frame and channels == 1 else None,
        "pen": 0.07,
    }
    longer = max(height, width)
    stage = round(STAGE * width / longer), round(STAGE * height / longer)
    return Live(tuple(LiveNetwork(name, network.bytes) for name, network in networks.items()), stage, data)


def read_network(packed: Path, images: ImageFormat, name: str) -> NetworkPage:
    """The page of one network."""
    dataset = images.get("name")
    known = "" if dataset is None else f" for {DATASETS.get(dataset, Path(dataset).name)}"
    summary = "The network is in this page, and runs here: nothing is sent anywhere, and no connection is needed."
    return NetworkPage(visible(f"{name}{known}"), summary, read_live({"Answer": packed}, images))


def _text(content: bytes) -> str:
    return base64.b64encode(content).decode("ascii")
