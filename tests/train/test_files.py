"""The folder of a training."""

from pathlib import Path

import pytest

from quern.data import ImageSet
from quern.errors import TrainingError
from quern.train import fit
from tests.train.short_runs import SHORT, build

pytestmark = pytest.mark.filterwarnings("ignore::quern.errors.LastPathWarning")  # so short a training takes a large λ


def test_a_folder_that_cannot_be_written(images: ImageSet, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(TrainingError, match=r"could not be written \(Not a directory\)"):
        fit(build(), images, SHORT, tmp_path / "file" / "run")
