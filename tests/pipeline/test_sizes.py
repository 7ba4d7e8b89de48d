"""Sizes are those of what will be written."""

from pathlib import Path

from quern import io
from quern.compact import compact
from quern.pipeline._sizes import planned_size
from quern.records import Budget
from tests.small_tasks import few_digits, shallow


def test_a_size_is_that_of_the_file_that_will_be_written(tmp_path: Path) -> None:
    """Accuracies such as 2/3 take more digits than most."""
    net, images = shallow(hidden=16), few_digits()
    example = images.normalize(images.train.pixels[:2])
    guessed = planned_size(net, example, Budget(max_bytes=5000), images.about())
    io.save(
        compact(net, example),
        tmp_path / "net.safetensors",
        metrics={"test_accuracy": 2 / 3, "val_accuracy": 2 / 3},
        images=images.about(),
    )
    assert guessed is not None
    assert guessed.bytes >= (tmp_path / "net.safetensors").stat().st_size
