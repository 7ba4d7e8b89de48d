"""A training as it stands: the network, its optimizer, its zeros, and where it is; how it is saved and goes on."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from quern.compact import Plan, compact_, plan
from quern.errors import TrainingError
from quern.graph import Example
from quern.nn import convert_sync_batchnorm, revert_sync_batchnorm
from quern.optim import FrozenZeros, ProximalAdam, ProximalSGD, freeze_zeros
from quern.penalties import Penalty
from quern.sparsity import measure
from quern.train._average import Average
from quern.train._files import Files
from quern.train._resume import (
    State,
    check_frozen,
    check_network,
    check_place,
    moved,
    optimizer_tensors,
    restore_optimizer,
)
from quern.train._settings import Settings
from quern.train._task import Task
from quern.train.team import Team


class Training:
    """All that changes is in ``model``, ``optimizer``, ``frozen`` and ``state``; ``best`` are the tensors of the best
    network, where this process has seen it.

    ``whole`` is what the network was at first: shares of zeros are shares of that, also after compaction. ``penalty``
    is that of the settings, weighed for the network as it was then. ``average`` is the mean of its weights, in phases
    that have one. ``steps`` are those of an epoch. With ``steered``,
    a plan that leaves nothing alive is not done.
    """

    def __init__(
        self,
        model: nn.Module,
        example: Example,
        steps: int,
        settings: Settings,
        files: Files,
        crew: Team,
        task: Task,
        steered: bool,
    ) -> None:
        self.model, self.example, self.steps, self.settings = model, example, steps, settings
        self.files, self.crew, self.task, self.steered = files, crew, task, steered
        self.penalty = settings.penalty and settings.penalty.weighed(model, example)
        self.optimizer = _optimizer(model, settings, self.penalty)
        self.whole = measure(model, example)
        self.parallel: nn.Module = model
        self.frozen: FrozenZeros | None = None
        self.state = State.at_first(settings, crew.size, task.metric)
        self.best: dict[str, Tensor] | None = None
        self.average: Average | None = None

    def wrap(self) -> None:
        """Let the processes share the network as it is now."""
        self.parallel = DistributedDataParallel(self.model) if self.crew.size > 1 else self.model
        self.parallel.train()

    @contextmanager
    def synchronized(self) -> Iterator[None]:
        """Within the block, batch statistics are those of the whole batch, of which each process has a part."""
        if self.crew.size == 1:
            yield
            return
        convert_sync_batchnorm(self.model)
        try:
            yield
        finally:
            revert_sync_batchnorm(self.model)

    def follow(self) -> None:
        """All is as the leading process has it, which alone steers λ."""
        self.crew.equalize(self.model)
        self.state.steered = self.crew.from_leader(self.state.steered)
        if isinstance(self.optimizer, (ProximalAdam, ProximalSGD)):
            self.optimizer.weigh(self.crew.from_leader(self.optimizer.costs))

    def freeze(self) -> None:
        """Hold the zeros that there are now."""
        self.frozen = freeze_zeros(self.model)

    def begin_average(self) -> None:
        """A mean of the weights from here on, if this phase has one; zeros are to be held before."""
        self.average = Average(self.model, self.settings.ema) if self.settings.averages(self.state.epoch) else None

    @contextmanager
    def judged(self) -> Iterator[None]:
        """The network as it is judged and kept: the mean of its weights, where there is one."""
        if self.average is None:
            yield
            return
        with self.average.in_place():
            self.crew.equalize_buffers(self.model)
            yield

    def compact(self, removed: Plan | None = None) -> None:
        """Remove from the network, and from the optimizer's state, what died or what a plan says."""
        if removed is None:
            removed = self.crew.from_leader(plan(self.model, self.example) if self.crew.leads else None)
        assert removed is not None
        if removed.dead and self.steered:  # left whole, with a weaker λ it comes back to life
            return
        if not removed.layers:
            return
        if self.frozen is not None:
            self.frozen.remove()
        compact_(self.model, removed, self.optimizer)
        before = self.state.plan
        self.state.plan = (Plan.from_dict(before).then(removed) if before else removed).structure().to_dict()
        self.wrap()
        if self.frozen is not None:
            self.freeze()

    def save(self, name: str) -> None:
        """Write the checkpoint ``last``, with all that is needed to go on, or ``best``."""
        tensors = {f"model.{key}": value for key, value in self.model.state_dict().items()}
        costs, path = getattr(self.optimizer, "costs", {}), getattr(self.optimizer, "path", None)
        if name == "last":
            tensors |= {f"optimizer.{k}": v for k, v in optimizer_tensors(self.optimizer).items()}
            tensors |= {f"frozen.{k}": v for k, v in (self.frozen.state_dict() if self.frozen else {}).items()}
            tensors |= {f"average.{k}": v for k, v in (self.average.tensors if self.average else {}).items()}
        averaged = self.average.steps if self.average else 0
        state = replace(self.state, costs=costs, path=path, moved=moved(self.optimizer), averaged=averaged)
        self.files.save(name, tensors, state)
        if name == "last":
            self.files.write_history(self.state.history)

    def keep_as_best(self) -> None:
        """Let the network of this epoch be the best."""
        self.save("best")
        self.best = {name: t.detach().clone() for name, t in self.model.state_dict().items()}

    def restore(self) -> None:
        """Go on from the checkpoint; TrainingError, with nothing changed on disk, unless it is of this training."""
        assert self.files.folder is not None
        tensors, state = self.crew.led(lambda: self.files.load("last"))
        self._check_settings(state)
        if state.metric != self.task.metric:
            raise TrainingError(
                f"{self.files.folder} was judged by {state.metric.title}, and goes on with that: here it is "
                f"{self.task.metric.title}."
            )
        if state.processes != self.crew.size:
            raise TrainingError(
                f"{self.files.folder} was trained by {state.processes} processes, and goes on with as many: "
                f"here are {self.crew.size}."
            )
        try:
            check_place(state, self.settings, self.steps)
            if state.plan is not None:
                compact_(self.model, Plan.from_dict(state.plan), self.optimizer)
        except Exception as reason:  # whatever it is: a plan for another network may fail anywhere
            wrong = str(reason).rstrip(".")
            raise TrainingError(
                f"{self.files.folder}/last.safetensors is not of this training ({wrong}): "
                "begin again in another folder."
            ) from reason
        self._check_network("last", network := _part(tensors, "model."))
        self.model.load_state_dict(network)
        try:
            restore_optimizer(self.optimizer, _part(tensors, "optimizer."), state.moved)
            check_frozen(masks := _part(tensors, "frozen."), self.model)
            if isinstance(self.optimizer, (ProximalAdam, ProximalSGD)):
                self.optimizer.weigh(state.costs)
                if state.path is not None:
                    self.optimizer.restore_path(dict(state.path))
        except ValueError as reason:
            raise TrainingError(
                f"{self.files.folder}/last.safetensors does not hold the state of this training ({reason}): "
                "begin again in another folder."
            ) from reason
        self.state = replace(state, settings=self.settings)
        if masks:
            self.frozen = freeze_zeros(self.model, masks)
        if mean := _part(tensors, "average."):
            self._check_network("last", mean)
            self.average = Average(self.model, self.settings.ema, state.averaged)
            self.average.tensors = {k: v.copy_(mean[k]) for k, v in self.average.tensors.items()}
        if self.crew.leads and self._keeps_best():
            tensors, best = self.files.load("best")
            self._check_settings(best)
            self._check_network("best", network := _part(tensors, "model."))
            self.best = network

    def _check_settings(self, state: State) -> None:
        ours, theirs = self.settings.to_dict(), state.settings.to_dict()
        if changed := [key for key in ours if ours[key] != theirs[key]]:
            raise TrainingError(f"{self.files.folder} was trained with other settings: {', '.join(changed)} differ.")

    def _check_network(self, name: str, tensors: dict[str, Tensor]) -> None:
        try:
            check_network(tensors, self.model)
        except ValueError as reason:
            wrong = f"{self.files.folder}/{name}.safetensors holds another network than this one: {reason}."
            raise TrainingError(wrong) from reason

    def _keeps_best(self) -> bool:
        """Whether the best network so far may be that of the end; else this epoch's takes its place."""
        if self.state.epoch == self.settings.total:
            return True
        phase, place, _ = self.settings.phase(self.state.epoch)
        return place > 0 and phase != "grind"


def _part(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}


def _optimizer(model: nn.Module, settings: Settings, penalty: Penalty | None) -> torch.optim.Optimizer:
    if settings.optimizer == "proximal-adam":
        return ProximalAdam(model, penalty, settings.lr, weight_decay=settings.weight_decay)
    if settings.optimizer == "proximal-sgd":
        return ProximalSGD(model, penalty, settings.lr, momentum=0.9, weight_decay=settings.weight_decay)
    kind = torch.optim.AdamW if settings.weight_decay else torch.optim.Adam
    return kind(model.parameters(), lr=settings.lr, weight_decay=settings.weight_decay)
