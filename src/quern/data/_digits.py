"""The images of digits that come with scikit-learn."""

from importlib.util import find_spec
from pathlib import Path

import numpy as np

from quern.data._images import ImageSet, images_of, means_and_deviations, split
from quern.data._sources import sums
from quern.errors import DataError

DIGITS_SUMS = {
    "images": "8f26b2bd9d135c256808f68f14fdabddde6d9c7f869ae419704b051f0f14b3b3",
    "labels": "8ba4f891220f5e4c9c819638d1602d74b83618f167043c6da52a2a247841ddf0",
}


def digits() -> ImageSet:
    """1,797 gray images of 8 x 8 pixels that come with scikit-learn: 360 to test, 200 for validation."""
    arrays = _arrays()
    if sums(arrays) != DIGITS_SUMS:
        raise DataError("scikit-learn's digits are not the ones quern knows: install another version of scikit-learn.")
    everything = images_of(arrays["images"], arrays["labels"])
    rest, test = split(everything, 360)
    train, val = split(rest, 200)
    mean, std = means_and_deviations(train, 16)
    classes = tuple("0123456789")
    return ImageSet("digits", train, val, test, classes, mean, std, top=16, sums=DIGITS_SUMS)


def _arrays() -> dict[str, np.ndarray]:
    """Of the file in scikit-learn, a line for each image with its label last: importing the package takes a second."""
    spec = find_spec("sklearn")
    path = Path(spec.origin if spec and spec.origin else "").parent / "datasets" / "data" / "digits.csv.gz"
    try:
        numbers = np.loadtxt(path, np.uint8, delimiter=",", ndmin=2)
    except (OSError, ValueError) as reason:
        raise DataError(f"scikit-learn's digits cannot be read ({reason}): install scikit-learn again.") from reason
    return {"images": numbers[:, :-1].reshape(-1, 1, 8, 8), "labels": numbers[:, -1].copy()}
