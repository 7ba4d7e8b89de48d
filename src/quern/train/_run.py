"""The loop itself: steps, epochs, milestones; how it is saved and goes on."""

import json
import math
import shlex
import signal
import sys
import time
import warnings
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from quern import io
from quern._files import write_text
from quern.compact import Plan, compact_, plan
from quern.data import ImageSet
from quern.errors import CompactionError, Diverged, LastPathWarning, NoRuleError, Stopped, TrainingError
from quern.graph import check_module
from quern.optim import FrozenZeros, ProximalAdam, ProximalSGD, freeze_zeros
from quern.records import Result, respelled
from quern.sparsity import measure
from quern.train._batches import (
    Batch,
    Loaders,
    Source,
    check_data,
    check_fits,
    check_labels,
    derived_seed,
    evaluate,
    source,
)
from quern.train._files import Files
from quern.train._protocols import Grinding, Steer, Watcher
from quern.train._resume import (
    State,
    check_frozen,
    check_network,
    check_place,
    moved,
    optimizer_tensors,
    restore_optimizer,
)
from quern.train._settings import Phase, Settings
from quern.train._signals import Signals
from quern.train.team import Team, team

MILESTONES = 20  # of a grinding that is steered
FINAL_PASSES = 5  # chances at its end to meet the goal, which a steering may move
TEMPERATURE = 4.0


def find_device(name: str) -> torch.device:
    """The device of that name; one sentence if it is not here."""
    try:
        device = torch.device(name)
        if device.type != "cuda" or not torch.cuda.is_available():
            torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as reason:
        said = str(reason).splitlines()[0].rstrip(".")
        raise TrainingError(f"there is no device {name} here: {said}.") from reason
    return device


def check_compacts(model: nn.Module, example: Tensor) -> None:
    """One sentence if ``model`` cannot be compacted while it is trained."""
    try:
        plan(model, example)
    except NoRuleError as reason:
        raise TrainingError(
            f"there is no rule for {reason.name}, so the network cannot be compacted while it is trained: train it by "
            "quern.train.fit without compact_every, and compact it then with keep_unknown=True."
        ) from reason


def fit(
    model: nn.Module,
    data: ImageSet | Loaders,
    settings: Settings,
    out: Path | str | None = None,
    resume: bool = False,
    watchers: Sequence[Watcher] = (),
    *,
    about: dict[str, Any] | None = None,
    teacher: nn.Module | None = None,
    steer: Steer | None = None,
) -> Result:
    """Train ``model`` on ``data`` and leave it with the weights of the best epoch, in eval mode.

    The best epoch is the one of highest validation accuracy in the last phase; if that phase is grinding, where zeros
    grow in number from epoch to epoch, it is the last one. The test images are looked at once, at the end, or with
    ``settings.curves`` after every epoch; no weight, and no choice, depends on them.

    With ``out`` the folder gets ``config.json``, if ``about`` says what ``quern train`` was asked for, and every epoch
    ``last.safetensors`` (all that is needed to go on), ``best.safetensors`` (the best weights so far) and
    ``history.jsonl``; at the end ``result.json`` and the network as ``model.safetensors``, for :func:`quern.io.load`.
    ``resume`` goes on from there, or begins if no epoch was finished.
    Under torchrun the processes share each batch, by DistributedDataParallel.

    ``teacher`` gives the answers for ``settings.distill``; ``steer`` chooses λ in place of ``settings.ramp``.
    """
    check_module(model)
    check_data(data)
    if not isinstance(settings, Settings):
        raise TrainingError(f"settings must be a quern.train.Settings, but is of type {type(settings).__name__}.")
    device = find_device(settings.device)
    with team(device) as crew:
        if device.type == "cuda" and device.index is None:  # the one that the team chose for this process
            device = torch.device("cuda", torch.cuda.current_device())
        with torch.random.fork_rng(devices=[] if device.index is None else [device.index], device_type=device.type):
            if steer is not None and (crew.size > 1 or settings.optimizer == "adam" or settings.penalty is None):
                raise TrainingError("λ is steered in one process, with a penalty and a proximal optimizer.")
            if (teacher is None) == bool(settings.distill):
                raise TrainingError("distill needs a teacher, and a teacher a share to distill.")
            teacher = None if teacher is None else teacher.to(device).eval()
            batches = source(data, settings, crew, device)
            check_fits(model.to(device), data, batches)
            files = Files(None if out is None else Path(out), crew.leads, about)
            run = _Run(model, batches, settings, files, crew, watchers if crew.leads else (), teacher, steer)
            return run.run(resume)


class _Run:
    """A training in progress. All that changes is in ``model``, ``optimizer``, ``frozen`` and ``state``.

    ``whole`` is what the network was at first: shares of zeros are shares of that, also after compaction.
    """

    def __init__(
        self,
        model: nn.Module,
        source: Source,
        settings: Settings,
        files: Files,
        crew: Team,
        watchers: Sequence[Watcher],
        teacher: nn.Module | None,
        steer: Steer | None,
    ) -> None:
        self.model, self.source, self.settings, self.files, self.crew = model, source, settings, files, crew
        self.watchers, self.teacher, self.steer = watchers, teacher, steer
        self.steps, self.example = source.steps, source.example
        self.device = source.example.device
        self.optimizer = _optimizer(model, settings)
        self.whole = measure(model, self.example)
        if settings.compact_every:
            check_compacts(model, self.example)  # not after hours
        self.parallel: nn.Module = model
        self.frozen: FrozenZeros | None = None
        # Plain values, so that they are saved as they are. `epoch` and `step` are the next ones to do.
        self.state: dict[str, Any] = {"epoch": 0, "step": 0, "loss": 0.0, "seconds": 0.0, "history": [], "best": None}
        self.state |= {"processes": crew.size, "plan": None, "images": 0}
        self.state |= {"strength": 0.0, "steered": {}, "enough": False}
        self.best: dict[str, Tensor] | None = None  # the best network, where this process has seen it
        self.signals = Signals()

    def run(self, resume: bool) -> Result:
        started: list[Watcher] = []
        try:
            with self.files.prepared(resume), warnings.catch_warnings():
                if self.steer is not None:  # it chooses λ itself, and a weaker one next time
                    warnings.simplefilter("ignore", LastPathWarning)
                if self.crew.from_leader(resume and self.files.begun):
                    self._restore()
                self._wrap()
                for watcher in self.watchers:
                    watcher.start(self.settings, self.state["epoch"], self.steps)
                    started.append(watcher)
                with self.signals:
                    while self.state["epoch"] < self.settings.total:
                        self._epoch()
                return self._finish()
        except RuntimeError as reason:
            if self.crew.size > 1 and any(word in str(reason) for word in ("gloo", "NCCL", "Connection", "peer")):
                raise TrainingError(
                    f"another process of this training was lost in {self._place()}: {self._how_to_go_on()}"
                ) from reason
            raise
        finally:
            if self.frozen is not None:
                self.frozen.remove()
            for watcher in started:
                watcher.end()

    def _wrap(self) -> None:
        self.parallel = DistributedDataParallel(self.model) if self.crew.size > 1 else self.model
        self.parallel.train()

    def _compact(self, found: Plan | None = None) -> None:
        """Remove from the network, and from the optimizer's state, what died or what a plan says."""
        if found is None:
            found = self.crew.from_leader(plan(self.model, self.example) if self.crew.leads else None)
        assert found is not None
        if found.dead and self.steer is not None:  # left whole, with a weaker λ it comes back to life
            return
        if not found.layers:
            return
        if self.frozen is not None:
            self.frozen.remove()
        compact_(self.model, found, self.optimizer)
        before = self.state["plan"]
        self.state["plan"] = (Plan.from_dict(before).then(found) if before else found).structure().to_dict()
        self._wrap()
        if self.frozen is not None:
            self.frozen = freeze_zeros(self.model)

    def _milestone(self, place: int, step: int) -> int | None:
        """The number of the milestone that falls on a step of the grinding."""
        whole, number = self.settings.epochs * self.steps, place * self.steps + step
        now, before = (MILESTONES * n // whole for n in (number, number - 1))
        return now if now > before else None

    def _steer(self, number: int) -> None:
        """Let the steering choose λ anew."""
        assert self.steer is not None
        assert isinstance(self.optimizer, (ProximalAdam, ProximalSGD))
        steps = self.settings.epochs * self.steps / MILESTONES
        now = Grinding(self.model, self.optimizer, number, steps, self.state["steered"])
        self._compact(self.steer.remove(now))
        strength = self.steer.strength(now)
        self.state["strength"], self.state["enough"] = strength or 0.0, strength is None
        if self.state["enough"]:
            self.frozen = freeze_zeros(self.model)

    def _epoch(self) -> None:
        settings, state, started = self.settings, self.state, time.perf_counter()
        epoch, before = state["epoch"], state["seconds"]
        phase, place, _ = settings.phase(epoch)
        steered = self.steer is not None and phase == "grind" and not state["enough"]
        if (
            state["step"] == 0
            and settings.compacts_before(epoch)
            and not (
                steered and self._milestone(place, 0) is not None  # which does it too
            )
        ):
            self._compact()
        if phase == "heal" and self.frozen is None:
            self.frozen = freeze_zeros(self.model)
        teacher = self.teacher if phase == "heal" else None
        batches = self.source.batches(epoch, state["step"], teacher)
        while state["step"] < self.steps:
            step = state["step"]
            if self.steer is not None and phase == "grind" and not state["enough"]:
                number = self._milestone(place, step)
                if number is not None:
                    self._steer(number)
            self._set_dropout(phase)
            self._step(epoch, step, next(batches), phase)
            state["step"] += 1
            state["seconds"] = before + time.perf_counter() - started
            if self._must_stop():
                assert self.signals.received is not None
                self._check_health(epoch)
                self._save("last")
                self.crew.sum(0.0)  # nobody leaves before the leader has saved: torchrun would end it
                name = signal.Signals(self.signals.received).name
                raise Stopped(f"stopped by {name}: {self._how_to_go_on()}", self.signals.received)
        if self.steer is not None and phase == "grind" and place == settings.epochs - 1:
            for _ in range(FINAL_PASSES):
                if not state["enough"]:
                    self._steer(MILESTONES)
        self.crew.equalize_buffers(self.model)
        val_loss, val_accuracy = evaluate(self.model, self.source.val(), self.crew)
        self._check_health(epoch)
        found = measure(self.model, self.example, settings.tol).within(self.whole)
        line = {
            "epoch": epoch + 1,
            "phase": phase,
            "loss": state["loss"] / self.steps,
            "penalty": self._penalty(),
            "strength": self._strength(epoch, self.steps - 1),
            "lr": settings.lr_at(epoch, 0.0),
            "val_loss": val_loss,
            "val_accuracy": val_accuracy,
            "component_sparsity": found.component_sparsity,
            "quaternion_sparsity": found.quaternion_sparsity,
            "neuron_sparsity": found.neuron_sparsity,
            "neurons_left": found.neurons_left,
            "parameters": sum(p.numel() for p in self.model.parameters()),
            "seconds": before + time.perf_counter() - started,
            "images_per_second": state["images"] / state["seconds"],
            "peak_memory_mb": _peak_memory_mb(self.device),
        }
        if settings.curves:  # after the seconds were taken
            line |= self._curves()
        state["history"].append(line)
        state.update(epoch=epoch + 1, step=0, loss=0.0, seconds=0.0, images=0)
        best = state["best"]
        if best is None or place == 0 or phase == "grind" or val_accuracy >= best["val_accuracy"]:
            state["best"] = {"epoch": epoch + 1, "val_accuracy": val_accuracy}
            self._save("best")  # before `last`: killed in between, this epoch is done again and gives the same
            self.best = {name: t.detach().clone() for name, t in self.model.state_dict().items()}
        self._save("last")
        for watcher in self.watchers:
            watcher.epoch(line)

    def _curves(self) -> dict[str, Any]:
        """What an epoch is recorded with for figures alone."""
        tests = self.source.test()
        tested = {} if tests is None else {"test_accuracy": evaluate(self.model, tests, self.crew)[1]}
        try:
            neurons = plan(self.model, self.example, self.settings.tol).neurons[1]
        except CompactionError:  # a network that cannot be made smaller can still be trained
            neurons = None
        return {**tested, "compacted_neurons": neurons}

    def _strength(self, epoch: int, step: int) -> float:
        if self.steer is not None and self.settings.phase(epoch)[0] == "grind":
            return self.state["strength"]
        return self.settings.strength_at(epoch, step, self.steps)

    def _step(self, epoch: int, step: int, batch: Batch, phase: Phase) -> None:
        settings = self.settings
        first = self.crew.share(settings.batch).start
        torch.manual_seed(derived_seed(settings.seed, "step", epoch, step, first))
        strength = self._strength(epoch, step)
        for group in self.optimizer.param_groups:
            group["lr"] = settings.lr_at(epoch, step / self.steps)
        self.optimizer.zero_grad(set_to_none=True)
        precision = getattr(torch, settings.precision)
        with torch.autocast(self.device.type, precision) if precision != torch.float32 else nullcontext():
            scores = self.parallel(batch.x).float()
        check_labels(batch.labels, scores)
        loss = F.cross_entropy(scores, batch.labels, label_smoothing=settings.label_smoothing)
        if batch.taught is not None:
            loss = (1 - settings.distill) * loss + settings.distill * _unlike(scores, batch.taught)
        loss = batch.share * loss
        if isinstance(self.optimizer, (ProximalAdam, ProximalSGD)):
            self.optimizer.scale_penalty(strength)
            loss.backward()
        elif settings.penalty is not None and strength:
            (loss + strength * settings.penalty(self.model)).backward()
        else:
            loss.backward()
        value, images = self.crew.sum(float(loss.detach()), float(len(batch.labels)))
        value /= self.crew.size
        if not value <= 1000 * math.log(max(2, scores.shape[1])):  # NaN compares as False
            self._diverged(value, epoch, step)
        self.optimizer.step()
        self.state["loss"] += value
        self.state["images"] += images
        for watcher in self.watchers:
            watcher.step(epoch + 1, phase, step + 1, self.steps, value)

    def _set_dropout(self, phase: Phase) -> None:
        if not self.settings.heal_dropout and phase == "heal":
            for layer in self.model.modules():
                if "Dropout" in type(layer).__name__:
                    layer.train(False)

    def _penalty(self) -> float:
        with torch.no_grad():
            if isinstance(self.optimizer, (ProximalAdam, ProximalSGD)):
                return float(self.optimizer.penalty())
            return float(self.settings.penalty(self.model)) if self.settings.penalty else 0.0

    def _check_health(self, epoch: int) -> None:
        """A loss can be finite and its gradient not; such weights are not to be saved."""
        if not all(torch.isfinite(t).all() for t in self.model.state_dict().values()):
            self._diverged(math.nan, epoch, self.state["step"] - 1)

    def _diverged(self, loss: float, epoch: int, step: int) -> None:
        kept = "there is no checkpoint yet"
        if self.files.begun:
            done = self.state["epoch"]
            kept = f"the last good checkpoint is {self.files.folder}/last.safetensors ({done} epochs done)"
        raise Diverged(
            f"the loss is {loss:g} in epoch {epoch + 1}, step {step + 1}: the training diverged; {kept}. "
            "Try a smaller learning rate or penalty."
        )

    def _finish(self) -> Result:
        self.model.load_state_dict(self.crew.from_leader(self.best if self.crew.leads else None))
        if self.settings.compact_every:
            self._compact()
        self.model.eval()
        tests = self.source.test()
        test_loss, test_accuracy = (None, None) if tests is None else evaluate(self.model, tests, self.crew)
        history, best = self.state["history"], self.state["best"]
        result = Result(
            history=tuple(history),
            best_epoch=best["epoch"],
            val_accuracy=best["val_accuracy"],
            test_accuracy=test_accuracy,
            test_loss=test_loss,
            sparsity=measure(self.model, self.example, self.settings.tol).within(self.whole),
            seconds=sum(line["seconds"] for line in history),
        )
        if self.files.writes:
            with self.files.writing("model.safetensors") as path:
                io.save(self.model, path, metrics=result.accuracies(), images=self.source.about())
            self.files.write_history(history)  # killed right after the last checkpoint, it may lack a line
            with self.files.writing("result.json") as path:
                write_text(path, json.dumps(result.to_dict(), indent=1))
        return result

    def _save(self, name: str) -> None:
        tensors = {f"model.{key}": value for key, value in self.model.state_dict().items()}
        state = {"settings": self.settings.to_dict(), **self.state, "costs": getattr(self.optimizer, "costs", {})}
        state |= {"path": getattr(self.optimizer, "path", None), "moved": moved(self.optimizer)}
        if name == "last":
            tensors |= {f"optimizer.{k}": v for k, v in optimizer_tensors(self.optimizer).items()}
            tensors |= {f"frozen.{k}": v for k, v in (self.frozen.state_dict() if self.frozen else {}).items()}
        self.files.save(name, tensors, state)
        if name == "last":
            self.files.write_history(self.state["history"])

    def _restore(self) -> None:
        """Go on from the checkpoint; TrainingError, with nothing changed on disk, unless it is of this training."""
        assert self.files.folder is not None
        tensors, state = self.crew.from_leader(self.files.load("last") if self.crew.leads else None)
        self._check_settings(state)
        if state["processes"] != self.crew.size:
            raise TrainingError(
                f"{self.files.folder} was trained by {state['processes']} processes, and goes on with as many: "
                f"here are {self.crew.size}."
            )
        try:
            check_place(state, self.settings, self.steps)
            if state["plan"] is not None:
                compact_(self.model, Plan.from_dict(state["plan"]), self.optimizer)
        except Exception as reason:  # whatever it is: a plan for another network may fail anywhere
            said = str(reason).rstrip(".")
            raise TrainingError(
                f"{self.files.folder}/last.safetensors is not of this training ({said}): begin again in another folder."
            ) from reason
        self._check_network("last", network := _part(tensors, "model."))
        self.model.load_state_dict(network)
        try:
            restore_optimizer(self.optimizer, _part(tensors, "optimizer."), state["moved"])
            check_frozen(masks := _part(tensors, "frozen."), self.model)
            if isinstance(self.optimizer, (ProximalAdam, ProximalSGD)):
                self.optimizer.weigh(state["costs"])
                if state["path"] is not None:
                    self.optimizer.restore_path(dict(state["path"]))
        except ValueError as reason:
            raise TrainingError(
                f"{self.files.folder}/last.safetensors does not hold the state of this training ({reason}): "
                "begin again in another folder."
            ) from reason
        self.state = {key: value for key, value in state.items() if key in self.state}
        if masks:
            self.frozen = freeze_zeros(self.model, masks)
        if self.crew.leads and self._keeps_best():
            tensors, best = self.files.load("best")
            self._check_settings(best)
            self._check_network("best", found := _part(tensors, "model."))
            self.best = found

    def _check_settings(self, state: State) -> None:
        ours = json.loads(json.dumps(self.settings.to_dict()))
        theirs = Settings().to_dict() | respelled(state["settings"])  # older checkpoints lack newer settings
        if changed := [key for key in ours if ours[key] != theirs.get(key)]:
            raise TrainingError(f"{self.files.folder} was trained with other settings: {', '.join(changed)} differ.")

    def _check_network(self, name: str, tensors: dict[str, Tensor]) -> None:
        try:
            check_network(tensors, self.model)
        except ValueError as reason:
            said = f"{self.files.folder}/{name}.safetensors holds another network than this one: {reason}."
            raise TrainingError(said) from reason

    def _keeps_best(self) -> bool:
        """Whether the best network so far may be that of the end; else this epoch's takes its place."""
        if self.state["epoch"] == self.settings.total:
            return True
        phase, place, _ = self.settings.phase(self.state["epoch"])
        return place > 0 and phase != "grind"

    def _must_stop(self) -> bool:
        if self.crew.size > 1:  # all stop after the same step, whichever was told to
            told = int(self.crew.sum(float(self.signals.received or 0))[0])
            self.signals.received = self.signals.received or (signal.SIGTERM if told else None)
        return self.signals.received is not None

    def _place(self) -> str:
        return f"epoch {self.state['epoch'] + 1}, step {self.state['step']} of {self.steps}"

    def _how_to_go_on(self) -> str:
        if self.files.folder is None:
            return f"{self._place()}; nothing was saved, because no folder was given."
        if self.files.about is None:
            return f"{self._place()}; go on with resume=True."
        launch = "quern" if self.crew.size == 1 else f"torchrun ... (with {self.crew.size} processes) -m quern"
        return f"{self._place()}; go on with: {launch} train --resume --out {shlex.quote(str(self.files.folder))}"


def _part(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}


def _optimizer(model: nn.Module, settings: Settings) -> torch.optim.Optimizer:
    if settings.optimizer == "proximal-adam":
        return ProximalAdam(model, settings.penalty, settings.lr, weight_decay=settings.weight_decay)
    if settings.optimizer == "proximal-sgd":
        return ProximalSGD(model, settings.penalty, settings.lr, momentum=0.9, weight_decay=settings.weight_decay)
    kind = torch.optim.AdamW if settings.weight_decay else torch.optim.Adam
    return kind(model.parameters(), lr=settings.lr, weight_decay=settings.weight_decay)


def _unlike(scores: Tensor, taught: Tensor) -> Tensor:
    r"""How far answers are from the teacher's: :math:`T^2 \mathrm{KL}(\mathrm{softmax}(t/T) \| \mathrm{softmax}(s/T))`
    for scores ``(batch, classes)``; the factor keeps its gradients as large as those of the labels."""
    s, t = (F.log_softmax(x / TEMPERATURE, 1) for x in (scores, taught))
    return TEMPERATURE**2 * F.kl_div(s, t, reduction="batchmean", log_target=True)


def _peak_memory_mb(device: torch.device) -> float | None:
    """The most memory that was in use at a time: of the GPU's, or resident memory of this process."""
    if device.type == "cuda":
        return round(torch.cuda.max_memory_allocated(device) / 2**20, 1)
    try:
        import resource
    except ImportError:  # Windows
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # Linux counts it in KiB, macOS in bytes
    return round(peak / (2**20 if sys.platform == "darwin" else 2**10), 1)
