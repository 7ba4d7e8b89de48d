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


def in_pair(function: Callable[..., Any], *arguments: Any, killed: int | None = None) -> list[Any]:
    """What ``function(*arguments)`` gives in each of two processes of one gloo group, by their numbers; that of one
    that is ``killed`` is None."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        processes = [ready.Process(target=_one, args=(rank, place, function, arguments)) for rank in (0, 1)]
        for process in processes:
            process.start()
        for process in processes:
            process.join(120)
            process.kill()  # if it hangs
            process.join()
        errors = [path.read_text() for path in sorted(place.glob("error*"))]
        assert not errors, "\n".join(errors)
        assert [process.exitcode for process in processes] == [-9 if rank == killed else 0 for rank in (0, 1)]
        results = [place / f"result{rank}" for rank in (0, 1)]
        return [torch.load(path, weights_only=False) if path.exists() else None for path in results]


def _one(rank: int, place: Path, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    torch.set_num_threads(1)
    try:
        dist.init_process_group("gloo", init_method=f"file://{place}/store", rank=rank, world_size=2)
        torch.save(function(*arguments), place / f"result{rank}")
    except BaseException:
        (place / f"error{rank}").write_text(traceback.format_exc())
        os._exit(1)
    os._exit(0)  # taking leave of the other one would wait for it
