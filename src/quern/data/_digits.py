"""The images of digits that come with scikit-learn."""

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
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    arrays = {
        "images": np.asarray(pixels).astype(np.uint8).reshape(-1, 1, 8, 8),
        "labels": np.asarray(labels).astype(np.uint8),
    }
    if sums(arrays) != DIGITS_SUMS:
        raise DataError("scikit-learn's digits are not the ones quern knows: install another version of scikit-learn.")
    everything = images_of(arrays["images"], arrays["labels"])
    rest, test = split(everything, 360)
    train, val = split(rest, 200)
    mean, std = means_and_deviations(train, 16)
    classes = tuple("0123456789")
    return ImageSet("digits", train, val, test, classes, mean, std, top=16, sums=DIGITS_SUMS)
