"""The loop itself: steps, epochs, milestones."""

import json
import math
import signal
import sys
import time
import warnings
from collections.abc import Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import replace

import torch
from torch import nn

from quern import io
from quern._files import write_text
from quern._size import size_of
from quern.bench.memory import peak_bytes
from quern.compact import plan
from quern.errors import CompactionError, Diverged, LastPathWarning, NoRuleError, Stopped, TrainingError
from quern.graph import Example
from quern.optim import ProximalAdam, ProximalSGD
from quern.records import Epoch, Phase, Result
from quern.records.text import in_epochs
from quern.sparsity import measure
from quern.train._batches import Batch, Source, seed_global
from quern.train._memory import kept_memory
from quern.train._protocols import Grinding, Steer, Watcher
from quern.train._resume import Best, State
from quern.train._signals import Signals
from quern.train._task import evaluate, loss_of, run
from quern.train._training import Training

MILESTONES = 20  # of a grinding that is steered, if it has the steps
STEPS_BETWEEN = 5  # milestones, at least: one takes as long as some steps, and λ needs a few of them to act
FINAL_PASSES = 5  # chances at its end to meet the goal, which a steering may move


def check_compacts(model: nn.Module, example: Example) -> None:
    """One sentence if ``model`` cannot be compacted while it is trained."""
    try:
        plan(model, example)
    except NoRuleError as reason:
        raise TrainingError(
            f"there is no rule for {reason.name}, so the network cannot be compacted while it is trained: train it by "
            "quern.train.fit without compact_every, and compact it then with keep_unknown=True."
        ) from reason


class Loop:
    """The steps and epochs of a training."""

    def __init__(
        self,
        training: Training,
        source: Source,
        watchers: Sequence[Watcher],
        teacher: nn.Module | None,
        steer: Steer | None,
    ) -> None:
        self.training, self.source, self.watchers, self.teacher, self.steer = training, source, watchers, teacher, steer
        self.settings, self.steps, self.files = training.settings, training.steps, training.files
        self.crew = training.crew
        self.model, self.optimizer, self.device = training.model, training.optimizer, source.device
        self.task, self.metric = training.task, training.task.metric
        self.loss = self.task.smoothed(self.settings.label_smoothing)
        if self.settings.compact_every:
            check_compacts(self.model, source.example)  # not after hours
        self.signals = Signals()

    @property
    def state(self) -> State:
        return self.training.state

    def run(self, resume: bool) -> Result:
        started: list[Watcher] = []
        try:
            with (
                ExitStack() as prepared,
                kept_memory(),
                self.crew.complete(self._how_to_go_on),
                self.training.synchronized(),
                warnings.catch_warnings(),
            ):
                if self.crew.size > 1:  # of small kernels, which a pass over the gradients does not notice
                    warnings.filterwarnings("ignore", "Grad strides do not match bucket view strides")
                self.crew.led(lambda: prepared.enter_context(self.files.prepared(resume)))
                if self.steer is not None:  # it chooses λ itself, and a weaker one next time
                    warnings.simplefilter("ignore", LastPathWarning)
                if self.crew.from_leader(resume and self.files.begun):
                    self.training.restore()
                self.training.wrap()
                for watcher in self.watchers:
                    watcher.start(self.settings, self.state.epoch, self.steps)
                    started.append(watcher)
                with self.signals:
                    while self.state.epoch < self.settings.total:
                        self._epoch()
                return self._finish()
        finally:
            if self.training.frozen is not None:
                self.training.frozen.remove()
            for watcher in started:
                watcher.end()

    @property
    def _milestones(self) -> int:
        return max(2, min(MILESTONES, self.settings.epochs * self.steps // STEPS_BETWEEN))

    def _milestone(self, place: int, step: int) -> int | None:
        """The number of the milestone that falls on a step of the grinding."""
        whole, number = self.settings.epochs * self.steps, place * self.steps + step
        now, before = (self._milestones * n // whole for n in (number, number - 1))
        return now if now > before else None

    def _steer(self, number: int) -> None:
        """Let the steering choose λ anew."""
        assert self.steer is not None
        assert isinstance(self.optimizer, (ProximalAdam, ProximalSGD))
        steps = self.settings.epochs * self.steps / self._milestones
        now = Grinding(self.model, self.optimizer, number, self._milestones, steps, self.state.steered)
        self.training.compact(self.crew.from_leader(self.steer.remove(now)))
        strength = self.crew.from_leader(self.steer.strength(now))
        self.training.follow()
        self.state.strength, self.state.enough = strength or 0.0, strength is None
        if self.state.enough:
            self.training.freeze()

    def _epoch(self) -> None:
        settings, state, started = self.settings, self.state, time.perf_counter()
        epoch, before = state.epoch, state.seconds
        phase, place, _ = settings.phase(epoch)
        steered = self.steer is not None and phase == "grind" and not state.enough
        if (
            state.step == 0
            and settings.compacts_before(epoch)
            and not (
                steered and self._milestone(place, 0) is not None  # which does it too
            )
        ):
            self.training.compact()
        if phase == "heal" and self.training.frozen is None:
            self.training.freeze()
        if state.step == 0 and place == 0:
            self.training.begin_average()
        teacher = self.teacher if settings.teaches(epoch) else None
        batches = self.source.batches(epoch, state.step, teacher)
        while state.step < self.steps:
            step = state.step
            if self.steer is not None and phase == "grind" and not state.enough:
                number = self._milestone(place, step)
                if number is not None:
                    self._steer(number)
            self._set_dropout(phase)
            self._step(epoch, step, next(batches), phase)
            state.step += 1
            state.seconds = before + time.perf_counter() - started
            if self._must_stop():
                assert self.signals.received is not None
                self._check_health(epoch)
                self.training.save("last")
                self.crew.sum(0.0)  # nobody leaves before the leader has saved: torchrun would end it
                name = signal.Signals(self.signals.received).name
                raise Stopped(f"stopped by {name}: {self._how_to_go_on()}", self.signals.received)
        if self.steer is not None and phase == "grind" and place == settings.epochs - 1:
            for _ in range(FINAL_PASSES):
                if not state.enough:
                    self._steer(self._milestones)
        self.crew.equalize_buffers(self.model)
        self._check_health(epoch)
        with self.training.judged():
            line = self._line(epoch, phase, started - before)
            state.history.append(line)
            state.epoch, state.step, state.loss, state.seconds, state.images = epoch + 1, 0, 0.0, 0.0, 0.0
            if state.best is None or place == 0 or phase == "grind" or self.metric.better(line.val, state.best.val):
                state.best = Best(epoch + 1, **self.metric.keyed(val=line.val))
                self.training.keep_as_best()  # before `last`: killed in between, this epoch is done again
        self.training.save("last")
        for watcher in self.watchers:
            watcher.epoch(line)

    def _line(self, epoch: int, phase: Phase, started: float) -> Epoch:
        """What there is to say of an epoch that is done."""
        settings, state = self.settings, self.state
        val_loss, value = evaluate(self.model, self.source.val(), self.crew, self.task)
        sparsity = measure(self.model, self.training.example, settings.tol).within(self.training.whole)
        line = Epoch(
            epoch=epoch + 1,
            phase=phase,
            loss=state.loss / self.steps,
            penalty=self._penalty(),
            strength=self._strength(epoch, self.steps - 1),
            lr=settings.lr_at(epoch, 0.0),
            val_loss=val_loss,
            metric=None if self.task.classifies else self.metric.name,
            **self.metric.keyed(val=value),
            component_sparsity=sparsity.component_sparsity,
            quaternion_sparsity=sparsity.quaternion_sparsity,
            neuron_sparsity=sparsity.neuron_sparsity,
            neurons_left=sparsity.neurons_left,
            parameters=size_of(self.model).parameters,
            seconds=time.perf_counter() - started,
            images_per_second=state.images / state.seconds,
            peak_memory_mb=_peak_memory_mb(self.device),
        )
        return self._with_curves(line) if settings.curves else line  # after the seconds were taken

    def _with_curves(self, line: Epoch) -> Epoch:
        """The epoch with what is recorded for figures alone."""
        tests = self.source.test()
        value = None if tests is None else evaluate(self.model, tests, self.crew, self.task)[1]
        try:
            neurons = plan(self.model, self.source.example, self.settings.tol).after.neurons
        except CompactionError:  # a network that cannot be made smaller can still be trained
            neurons = None
        return replace(line, **self.metric.keyed(test=value), compacted_neurons=neurons)

    def _strength(self, epoch: int, step: int) -> float:
        if self.steer is not None and self.settings.phase(epoch)[0] == "grind":
            return self.state.strength
        return self.settings.strength_at(epoch, step, self.steps)

    def _step(self, epoch: int, step: int, batch: Batch, phase: Phase) -> None:
        settings = self.settings
        first = self.crew.share(settings.batch).start
        seed_global(self.device, settings.seed, "step", epoch, step, first)
        strength = self._strength(epoch, step)
        for group in self.optimizer.param_groups:
            group["lr"] = settings.lr_at(epoch, step / self.steps)
        self.optimizer.zero_grad(set_to_none=True)
        precision = getattr(torch, settings.precision)
        with torch.autocast(self.device.type, precision) if precision != torch.float32 else nullcontext():
            outputs = run(self.training.parallel, batch.inputs)
        loss = loss_of(self.loss, outputs, batch.targets)
        if batch.taught is not None:
            loss = (1 - settings.distill) * loss + settings.distill * self.task.unlike(outputs, batch.taught)
        loss = batch.share * loss
        if isinstance(self.optimizer, (ProximalAdam, ProximalSGD)):
            self.optimizer.scale_penalty(strength)
            loss.backward()
        elif self.training.penalty is not None and strength:
            (loss + strength * self.training.penalty(self.model)).backward()
        else:
            loss.backward()
        value, images = self.crew.sum(float(loss.detach()), float(batch.size))
        value /= self.crew.size
        highest = 1000 * math.log(max(2, outputs.shape[1])) if self.task.trains_classes else sys.float_info.max
        if not abs(value) <= highest:  # NaN compares as False
            self._diverged(value, epoch, step)
        self.optimizer.step()
        if self.training.average is not None:
            self.training.average.step()
        self.state.loss += value
        self.state.images += images
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
            return float(self.training.penalty(self.model)) if self.training.penalty else 0.0

    def _check_health(self, epoch: int) -> None:
        """A loss can be finite and its gradient not; such weights are not to be saved."""
        if not all(torch.isfinite(t).all() for t in self.model.state_dict().values()):
            self._diverged(math.nan, epoch, self.state.step - 1)

    def _diverged(self, loss: float, epoch: int, step: int) -> None:
        kept = "there is no checkpoint yet"
        if self.files.begun:
            done = self.state.epoch
            kept = f"the last good checkpoint is {self.files.folder}/last.safetensors ({in_epochs(done)} done)"
        raise Diverged(
            f"the loss is {loss:g} in epoch {epoch + 1}, step {step + 1}: the training diverged; {kept}. "
            "Try a smaller learning rate or penalty."
        )

    def _finish(self) -> Result:
        self.model.load_state_dict(self.crew.from_leader(self.training.best if self.crew.leads else None))
        if self.settings.compact_every:
            self.training.compact()
        self.model.eval()
        tests = self.source.test()
        test_loss, value = (None, None) if tests is None else evaluate(self.model, tests, self.crew, self.task)
        history, best = self.state.history, self.state.best
        assert best is not None
        result = Result(
            history=tuple(history),
            best_epoch=best.epoch,
            **{"val_accuracy": None, "test_accuracy": None, **self.metric.keyed(val=best.val, test=value)},
            metric=self.metric,
            test_loss=test_loss,
            sparsity=measure(self.model, self.source.example, self.settings.tol).within(self.training.whole),
            seconds=sum(line.seconds for line in history),
        )
        if self.files.writes:
            with self.files.writing("model.safetensors") as path:
                io.save(self.model, path, metrics=result.metrics(), images=self.source.image_format())
            self.files.write_history(history)  # killed right after the last checkpoint, it may lack a line
            with self.files.writing("result.json") as path:
                write_text(path, json.dumps(result.to_dict(), indent=1))
        return result

    def _must_stop(self) -> bool:
        if self.crew.size > 1:  # all stop after the same step, whichever was told to
            told = int(self.crew.sum(float(self.signals.received or 0))[0])
            self.signals.received = self.signals.received or (signal.SIGTERM if told else None)
        return self.signals.received is not None

    def _place(self) -> str:
        return f"epoch {self.state.epoch + 1}, step {self.state.step} of {self.steps}"

    def _how_to_go_on(self) -> str:
        if self.files.folder is None:
            return f"{self._place()}; nothing was saved, because no folder was given."
        if self.files.config is None:
            return f"{self._place()}; go on with resume=True."
        return f"{self._place()}; go on with: {self.crew.launch('train', self.files.folder)}"


def _peak_memory_mb(device: torch.device) -> float | None:
    """The most memory that was in use at a time: of the GPU's, or resident memory of this process."""
    if device.type == "cuda":
        return round(torch.cuda.max_memory_allocated(device) / 2**20, 1)
    try:
        return round(peak_bytes() / 2**20, 1)
    except ImportError:  # Windows
        return None
