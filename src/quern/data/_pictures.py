"""PNG and JPEG files, read by someone who trusts none of them."""

import os
import warnings
from io import BufferedReader, BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from quern._files import open_regular
from quern.data._limits import IMAGE_FILE_BYTES, IMAGE_PIXELS, SET_BYTES, size
from quern.errors import DataError, words_of

if TYPE_CHECKING:
    from PIL.Image import Image


def decoded(file: BufferedReader | BytesIO, gray: bool = False) -> "Image":
    """The image in a file, turned as its camera says, in RGB or gray; an exception of some kind if there is none."""
    from PIL import Image, ImageOps

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PIL warns of sizes, which are checked here, and of what it can read anyway
        # No other format: PIL would hand PostScript, whatever the file's name, to another program.
        with Image.open(file, formats=("PNG", "JPEG")) as opened:
            if opened.width * opened.height > IMAGE_PIXELS:
                raise ValueError(f"its {opened.width} x {opened.height} pixels are more than {IMAGE_PIXELS:,}")
            image = ImageOps.exif_transpose(opened)
            if image.mode.startswith("I"):  # 16 bits a pixel, which convert would cut off at 255
                image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
            return image.convert("L" if gray else "RGB")


def read_pictures(files: list[Path], side: int | None, gray: bool | None) -> NDArray[np.uint8]:
    """The images as one array ``(n, channels, height, width)``, resized to ``side`` if that is given. If ``gray`` is
    None there is one channel unless some pixel has a colour."""
    from PIL import Image

    channels = 3 if gray is False else 1
    pixels = _array(len(files), channels, side, side) if side is not None else None
    for number, path in enumerate(files):
        image = _read(path, bool(gray))
        if side is not None:
            image = image.resize((side, side), Image.Resampling.BILINEAR)
        if pixels is None:
            pixels = _array(len(files), channels, image.height, image.width)
        height, width = pixels.shape[2:]
        if image.size != (width, height):
            raise DataError(
                f"{path} has {image.width} x {image.height} pixels, others {width} x {height}: "
                "say --image-size (size=) to make all images equal."
            )
        values = np.asarray(image).reshape(height, width, -1).transpose(2, 0, 1)
        if gray is None and len(pixels[0]) == 1:
            if (values == values[:1]).all():
                values = values[:1]
            else:  # the first with a colour: those before it get three equal channels
                so_far = pixels[:number]
                pixels = _array(len(files), 3, height, width)
                pixels[:number] = so_far
        pixels[number] = values
    assert pixels is not None
    return pixels


def _array(count: int, channels: int, height: int, width: int) -> NDArray[np.uint8]:
    if (wanted := count * channels * height * width) > SET_BYTES:
        raise DataError(
            f"{count:,} images of {height} x {width} pixels take {size(wanted)} of memory, more than the "
            f"{size(SET_BYTES)} a set may have: say a smaller --image-size (size=), or give fewer images."
        )
    try:
        return np.empty((count, channels, height, width), np.uint8)
    except MemoryError:
        raise DataError(
            f"the memory does not suffice for {count:,} images of {height} x {width} pixels: say a smaller "
            "--image-size (size=), or give fewer images."
        ) from None


def _read(path: Path, gray: bool) -> "Image":
    try:
        with open_regular(path) as file:
            if (there := os.fstat(file.fileno()).st_size) > IMAGE_FILE_BYTES:
                raise ValueError(f"its {size(there)} are more than {size(IMAGE_FILE_BYTES)}")
            return decoded(file, gray)
    except Exception as reason:  # PIL has many ways to say that a file is damaged
        raise DataError(f"{path} cannot be read as an image ({words_of(reason)}): mend or remove it.") from reason
