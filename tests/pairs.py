"""Two processes that train together, in tests: copies of one that has torch already."""

import os
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from tests.commands import ready


def in_pair(function: Callable[..., Any], *arguments: Any) -> list[Any]:
    """What ``function(*arguments)`` gives in each of two processes of one gloo group, by their numbers."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        processes = [
            ready.Process(target=_one, args=(rank, place, function, arguments), daemon=True) for rank in (0, 1)
        ]
        for process in processes:
            process.start()
        for process in processes:
            process.join(120)
        errors = [path.read_text() for path in sorted(place.glob("error*"))]
        assert not errors, "\n".join(errors)
        assert [process.exitcode for process in processes] == [0, 0]
        return [torch.load(place / f"result{rank}", weights_only=False) for rank in (0, 1)]


def _one(rank: int, place: Path, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    torch.set_num_threads(1)
    try:
        dist.init_process_group("gloo", init_method=f"file://{place}/store", rank=rank, world_size=2)
        torch.save(function(*arguments), place / f"result{rank}")
        dist.destroy_process_group()
    except BaseException:
        (place / f"error{rank}").write_text(traceback.format_exc())
        os._exit(1)  # without the other one, nothing here can be waited for
