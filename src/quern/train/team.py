"""One training over several processes, started by torchrun; with one process all of this does nothing."""

import itertools
import os
import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import nn

from quern.errors import Lost, QuernError, Repeated

__all__ = ["Team", "team"]

T = TypeVar("T")


@dataclass(frozen=True)
class Team:
    """The processes that train together: this one's number, and how many there are."""

    rank: int = 0
    size: int = 1

    @property
    def leads(self) -> bool:
        """Whether this process writes files and speaks."""
        return self.rank == 0

    def launch(self, command: str, folder: Path) -> str:
        """How to go on with what is in a folder."""
        program = "quern" if self.size == 1 else f"torchrun ... (with {self.size} processes) -m quern"
        return f"{program} {command} --resume --out {shlex.quote(str(folder))}"

    def device(self, device: torch.device) -> torch.device:
        """The very ``device`` of this process, which has a GPU of its own."""
        if device.type != "cuda" or device.index is not None:
            return device
        return torch.device("cuda", torch.cuda.current_device())

    def share(self, count: int) -> slice:
        """This process's part of ``count`` things."""
        return slice(self.rank * count // self.size, (self.rank + 1) * count // self.size)

    def dealt(self, things: Iterable[T]) -> Iterator[T]:
        """This process's of ``things`` that are dealt out in turn."""
        return itertools.islice(things, self.rank, None, self.size)

    def collected(self, things: Sequence[T]) -> list[T]:
        """What was dealt, of all processes, in its order again."""
        missing = object()
        rounds = itertools.zip_longest(*self.gathered(list(things)), fillvalue=missing)
        return [thing for one_round in rounds for thing in one_round if thing is not missing]

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

    def led(self, do: Callable[[], T]) -> T:
        """What ``do`` gives in the leading process, which alone does it, for all; they share its errors, too."""
        if self.size == 1:
            return do()
        thing, error = None, None
        if self.leads:
            try:
                thing = do()
            except QuernError as reason:
                error = reason
        thing, wrong = self.from_leader((thing, error and str(error)))
        if error is not None:
            raise error
        if wrong is not None:
            raise Repeated(wrong)
        return thing

    def gathered(self, thing: Any) -> list[Any]:
        """What every process has, in the order of their numbers."""
        if self.size == 1:
            return [thing]
        things: list[Any] = [None] * self.size
        dist.all_gather_object(things, thing)
        return things

    @torch.no_grad()
    def equalize_buffers(self, model: nn.Module) -> None:
        """Running statistics are those of the leading process everywhere, as DistributedDataParallel has them."""
        if self.size > 1:
            for buffer in model.buffers():
                dist.broadcast(buffer, 0)

    @torch.no_grad()
    def equalize(self, model: nn.Module) -> None:
        """So are weights."""
        self.equalize_buffers(model)
        if self.size > 1:
            for parameter in model.parameters():
                dist.broadcast(parameter, 0)

    @contextmanager
    def complete(self, place: Callable[[], str]) -> Iterator[None]:
        """One sentence if another process is no longer there; ``place`` says where that was noticed, and what to do."""
        try:
            yield
        except RuntimeError as reason:
            words = ("gloo", "NCCL", "Connection", "peer")
            if self.size > 1 and (isinstance(reason, dist.DistError) or any(word in str(reason) for word in words)):
                raise Lost(f"another process of this training was lost in {place()}") from reason
            raise

    def _device(self) -> torch.device:
        return self.device(torch.device("cuda" if dist.get_backend() == "nccl" else "cpu"))


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
