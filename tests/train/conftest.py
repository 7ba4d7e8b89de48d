"""What trainings of tests are shown."""

import dataclasses

import pytest

from quern.data import Images, ImageSet, digits


@pytest.fixture(scope="session")
def images() -> ImageSet:
    """The first few hundred digits."""
    whole = digits()
    part = Images(whole.train.pixels[:320], whole.train.labels[:320])
    return dataclasses.replace(whole, train=part, val=Images(whole.val.pixels[:100], whole.val.labels[:100]))
