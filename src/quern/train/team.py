"""One training over several processes, started by torchrun; with one process all of this does nothing."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

__all__ = ["Team", "team"]


@dataclass(frozen=True)
class Team:
    """The processes that train together: this one's number, and how many there are."""

    rank: int = 0
    size: int = 1

    @property
    def leads(self) -> bool:
        """Whether this process writes files and speaks."""
        return self.rank == 0

    def share(self, count: int) -> slice:
        """This process's part of ``count`` things."""
        return slice(self.rank * count // self.size, (self.rank + 1) * count // self.size)

    def sum(self, *numbers: float) -> tuple[float, ...]:
        """Each number summed over all processes."""
        if self.size == 1:
            return numbers
        total = torch.tensor(numbers, dtype=torch.float64, device=self._device())
        dist.all_reduce(total)
        return tuple(total.tolist())

    def from_leader(self, thing: Any) -> Any:
        """What the leading process has, for all."""
        if self.size == 1:
            return thing
        box = [thing]
        dist.broadcast_object_list(box, device=self._device())
        return box[0]

    def gathered(self, thing: Any) -> list[Any]:
        """What every process has, in the order of their numbers."""
        if self.size == 1:
            return [thing]
        things: list[Any] = [None] * self.size
        dist.all_gather_object(things, thing)
        return things

    def equalize_buffers(self, model: nn.Module) -> None:
        """Running statistics are those of the leading process everywhere, as DistributedDataParallel has them."""
        if self.size > 1:
            for buffer in model.buffers():
                dist.broadcast(buffer, 0)

    def _device(self) -> torch.device:
        on_gpu = dist.get_backend() == "nccl"
        return torch.device("cuda", torch.cuda.current_device()) if on_gpu else torch.device("cpu")


@contextmanager
def team(device: torch.device) -> Iterator[Team]:
    """The team that torchrun's environment variables describe; a team already set up is used and left in place."""
    if dist.is_available() and dist.is_initialized():
        yield Team(dist.get_rank(), dist.get_world_size())
        return
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield Team()
        return
    if device.type == "cuda":
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        yield Team(dist.get_rank(), dist.get_world_size())
    finally:
        dist.destroy_process_group()
