"""One training loop: warm up, grind with a penalty, heal with the zeros frozen; checkpoints, resume, several processes.

Everything random in a step is drawn from numbers made of (seed, epoch, step), so a training that is stopped anywhere
and resumed ends with exactly the weights of one that was not.
"""

import hashlib
import json
import math
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from quern import checkpoint
from quern.data import Images, ImageSet
from quern.distributed import Team, team
from quern.errors import TrainingError
from quern.files import write_text
from quern.optim import FrozenZeros, ProximalAdam, ProximalSGD, freeze_zeros, ramp
from quern.penalties import Penalty
from quern.sparsity import Sparsity, measure

__all__ = ["Result", "Settings", "Stopped", "Watcher", "evaluate", "fit"]

Phase = Literal["warmup", "train", "grind", "heal"]
EVALUATION_BATCH = 1000


class Stopped(TrainingError):
    """Ctrl-C or SIGTERM arrived; the state was saved."""


@dataclass(frozen=True)
class Settings:
    """How to train. Epochs are counted as ``warmup + epochs + heal``.

    ``warmup`` epochs go without the penalty, ``epochs`` with it (λ rises linearly over the share ``ramp`` of them),
    ``heal`` without it and with every zero frozen. With ``schedule="cosine"`` the learning rate falls to zero along
    half a cosine in the last of these phases; "constant" leaves it. ``heal_lr`` is the rate to heal with, if not
    ``lr``; ``heal_dropout=False`` switches dropout off while healing. ``optimizer`` is "proximal-adam" or
    "proximal-sgd" (exact zeros), or "adam" (the penalty's gradient, as in the paper). ``crop`` shifts each image at
    random by up to that many pixels, ``flip`` mirrors half of them. ``batch`` counts images over all processes.
    """

    epochs: int = 20
    warmup: int = 0
    heal: int = 0
    penalty: Penalty | None = None
    ramp: float = 0.5
    batch: int = 400
    lr: float = 2e-3
    heal_lr: float | None = None
    heal_dropout: bool = True
    schedule: Literal["cosine", "constant"] = "cosine"
    optimizer: Literal["proximal-adam", "proximal-sgd", "adam"] = "proximal-adam"
    weight_decay: float = 0.0
    label_smoothing: float = 0.0
    crop: int = 0
    flip: bool = False
    seed: int = 0
    device: str = "cpu"
    precision: Literal["float32", "bfloat16"] = "float32"

    def __post_init__(self) -> None:
        wrong = next((said for holds, said in self._rules() if not holds), None)
        if wrong:
            raise TrainingError(f"{wrong}.")

    def _rules(self) -> Iterator[tuple[bool, str]]:
        for name in ("epochs", "warmup", "heal", "crop"):
            yield getattr(self, name) >= 0, f"{name} is {getattr(self, name)}, but cannot be negative"
        yield self.warmup + self.epochs + self.heal > 0, "there are no epochs to train for"
        yield self.batch >= 1, f"the batch is {self.batch}, but needs at least one image"
        yield 0 < self.lr < math.inf, f"lr is {self.lr}, but must be a positive number"
        yield self.heal_lr is None or 0 < self.heal_lr < math.inf, f"heal_lr is {self.heal_lr}, but must be positive"
        yield 0 <= self.weight_decay < math.inf, f"weight_decay is {self.weight_decay}, but cannot be negative"
        yield 0 <= self.label_smoothing < 1, f"label_smoothing is {self.label_smoothing}, but must be in 0..1"
        yield 0 <= self.ramp <= 1, f"ramp is {self.ramp}, but must be a share of the epochs, from 0 to 1"
        for name in ("schedule", "optimizer", "precision"):
            choices = Settings.__annotations__[name].__args__
            yield getattr(self, name) in choices, f"{name} is {getattr(self, name)}, but must be {' or '.join(choices)}"

    @property
    def total(self) -> int:
        return self.warmup + self.epochs + self.heal

    def phase(self, epoch: int) -> tuple[Phase, int, int]:
        """The phase of an epoch (from 0), where in it the epoch is, and how long it is."""
        if epoch < self.warmup:
            return "warmup", epoch, self.warmup
        if epoch < self.warmup + self.epochs:
            return "grind" if self.penalty else "train", epoch - self.warmup, self.epochs
        return "heal", epoch - self.warmup - self.epochs, self.heal

    def lr_at(self, epoch: int, progress: float) -> float:
        """The learning rate in ``epoch`` after the share ``progress`` of it."""
        phase, place, length = self.phase(epoch)
        lr = self.heal_lr if phase == "heal" and self.heal_lr is not None else self.lr
        if self.schedule == "constant" or epoch - place + length < self.total:
            return lr
        return lr * (1 + math.cos(math.pi * (place + progress) / length)) / 2

    def strength_at(self, epoch: int, step: int, steps: int) -> float:
        """The factor of the penalty at a step of ``epoch``: the ramp while grinding, 0 before and after."""
        phase, place, _ = self.phase(epoch)
        return ramp(place * steps + step + 1, round(self.ramp * self.epochs * steps)) if phase == "grind" else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for records."""
        return {**asdict(self), "penalty": self.penalty.to_list() if self.penalty else None}

    @staticmethod
    def from_dict(values: dict[str, Any]) -> "Settings":
        known = {f.name for f in fields(Settings)}
        terms = values.get("penalty")
        penalty = Penalty.from_list(terms) if terms else None
        return Settings(**{**{k: v for k, v in values.items() if k in known}, "penalty": penalty})


@runtime_checkable
class Watcher(Protocol):
    """Something that is told how the training goes: a progress bar, a log, event files."""

    def start(self, settings: Settings, epoch: int, steps: int) -> None: ...
    def step(self, epoch: int, phase: Phase, step: int, steps: int, loss: float) -> None: ...
    def epoch(self, line: dict[str, Any]) -> None: ...
    def end(self) -> None: ...


@dataclass(frozen=True)
class Result:
    """What a training reached: the kept epoch's validation accuracy, the test accuracy, and the network's sparsity."""

    history: tuple[dict[str, Any], ...]
    best_epoch: int
    val_accuracy: float
    test_accuracy: float
    test_loss: float
    sparsity: Sparsity
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "history": list(self.history), "sparsity": self.sparsity.to_dict()}

    @staticmethod
    def from_dict(values: dict[str, Any]) -> "Result":
        own = {f.name: values[f.name] for f in fields(Result)}
        own["sparsity"] = Sparsity.from_dict(own["sparsity"])
        return Result(**{**own, "history": tuple(own["history"])})


def derived_seed(*parts: int | str) -> int:
    """A seed from several numbers, as good as independent of the seeds from any others."""
    return int.from_bytes(hashlib.blake2b(repr(parts).encode(), digest_size=4).digest(), "little")


def augment(pixels: Tensor, crop: int, flip: bool, generator: torch.Generator) -> Tensor:
    """Each image of ``(n, c, h, w)`` shifted by up to ``crop`` pixels with a black margin, and mirrored or not."""
    n, _, height, width = pixels.shape
    if crop:
        down, right = torch.randint(0, 2 * crop + 1, (2, n), generator=generator).unbind()
        rows = (down[:, None] + torch.arange(height))[:, :, None]
        columns = (right[:, None] + torch.arange(width))[:, None, :]
        padded = F.pad(pixels, (crop,) * 4)
        pixels = padded[torch.arange(n)[:, None, None], :, rows, columns].permute(0, 3, 1, 2)
    if flip:
        mirrored = torch.rand(n, generator=generator) < 0.5
        pixels = torch.where(mirrored[:, None, None, None], pixels.flip(3), pixels)
    return pixels


@torch.no_grad()
def evaluate(
    model: nn.Module, images: Images, normalize: Callable[[Tensor], Tensor], crew: Team
) -> tuple[float, float]:
    """Mean cross-entropy and accuracy in eval mode; the model is left in the mode it was in."""
    training = model.training
    device = next(model.parameters()).device
    model.eval()
    mine = crew.share(len(images))
    loss, right = 0.0, 0.0
    for pixels, labels in zip(
        images.pixels[mine].split(EVALUATION_BATCH), images.labels[mine].split(EVALUATION_BATCH), strict=True
    ):
        scores, labels = model(normalize(pixels.to(device))), labels.to(device)
        loss += float(F.cross_entropy(scores.float(), labels, reduction="sum"))
        right += float((scores.argmax(1) == labels).sum())
    model.train(training)
    loss, right = crew.sum(loss, right)
    return loss / len(images), right / len(images)


def fit(
    model: nn.Module,
    data: ImageSet,
    settings: Settings,
    out: Path | None = None,
    resume: bool = False,
    watchers: Sequence[Watcher] = (),
) -> Result:
    """Train ``model`` on ``data`` and leave it with the weights of the best epoch, in eval mode.

    The best epoch is the one of highest validation accuracy in the last phase; if that phase is grinding, where every
    epoch has more zeros than the one before, it is the last one. The test images are looked at once, at the end.

    With ``out`` the folder gets, after every epoch, ``last.safetensors`` (all that is needed to go on), the best
    network as ``best.safetensors`` and ``history.jsonl``; at the end ``result.json``. ``resume`` goes on from there, or
    begins if no epoch was finished.
    Under torchrun the processes share each batch, by DistributedDataParallel.
    """
    device = torch.device(settings.device)
    with team(device) as crew, torch.random.fork_rng(devices=[] if device.type == "cpu" else None):
        return _Run(model.to(device), data, settings, out, crew, watchers if crew.leads else ()).run(resume)


class _Run:
    """A training in progress. All that changes is in ``model``, ``optimizer``, ``frozen`` and ``state``."""

    def __init__(
        self,
        model: nn.Module,
        data: ImageSet,
        settings: Settings,
        out: Path | None,
        crew: Team,
        watchers: Sequence[Watcher],
    ) -> None:
        self.model, self.data, self.settings, self.out, self.crew = model, data, settings, out, crew
        self.watchers = watchers
        if len(data.train) < settings.batch:
            raise TrainingError(
                f"the batch is {settings.batch}, but there are {len(data.train)} images to train on: "
                f"say --batch {len(data.train)} or less."
            )
        if settings.batch < crew.size:
            raise TrainingError(f"a batch of {settings.batch} cannot be shared by {crew.size} processes.")
        self.steps = len(data.train) // settings.batch
        self.device = torch.device(settings.device)
        self.optimizer = _optimizer(model, settings)
        self.frozen: FrozenZeros | None = None
        # Plain values, so that they are saved as they are. `epoch` and `step` are the next ones to do.
        self.state: dict[str, Any] = {"epoch": 0, "step": 0, "loss": 0.0, "seconds": 0.0, "history": [], "best": None}
        self.best: dict[str, Tensor] | None = None  # the best network, where this process has seen it
        self.stop_signal: int | None = None

    def run(self, resume: bool) -> Result:
        self._prepare_folder(resume)
        if self.crew.from_leader(resume and self.out is not None and (self.out / "last.safetensors").exists()):
            self._restore()
        parallel = DistributedDataParallel(self.model) if self.crew.size > 1 else self.model
        parallel.train()
        for watcher in self.watchers:
            watcher.start(self.settings, self.state["epoch"], self.steps)
        try:
            with self._signals():
                while self.state["epoch"] < self.settings.total:
                    self._epoch(parallel)
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
            for watcher in self.watchers:
                watcher.end()

    def _epoch(self, parallel: nn.Module) -> None:
        settings, state, started = self.settings, self.state, time.perf_counter()
        epoch, before = state["epoch"], state["seconds"]
        phase, place, _ = settings.phase(epoch)
        if phase == "heal" and self.frozen is None:
            self.frozen = freeze_zeros(self.model)
        self._set_dropout(phase)
        generator = torch.Generator().manual_seed(derived_seed(settings.seed, "order", epoch))
        order = torch.randperm(len(self.data.train), generator=generator)
        while state["step"] < self.steps:
            self._step(parallel, epoch, state["step"], order, phase)
            state["step"] += 1
            state["seconds"] = before + time.perf_counter() - started
            if self._must_stop():
                self._save("last")
                raise Stopped(f"stopped by {signal.Signals(self.stop_signal).name}: {self._how_to_go_on()}")
        self.crew.equalize_buffers(self.model)
        val_loss, val_accuracy = evaluate(self.model, self.data.val, self.data.normalize, self.crew)
        found = measure(self.model)
        line = {
            "epoch": epoch + 1,
            "phase": phase,
            "loss": state["loss"] / self.steps,
            "penalty": self._penalty(),
            "strength": settings.strength_at(epoch, self.steps - 1, self.steps),
            "lr": settings.lr_at(epoch, 0.0),
            "val_loss": val_loss,
            "val_accuracy": val_accuracy,
            "component_sparsity": found.component_sparsity,
            "quaternion_sparsity": found.quaternion_sparsity,
            "neuron_sparsity": found.neuron_sparsity,
            "neurons_left": found.neurons_left,
            "seconds": before + time.perf_counter() - started,
            "images_per_second": self.steps * settings.batch / state["seconds"],
            "peak_memory_mb": _peak_memory_mb(),
        }
        state["history"].append(line)
        state.update(epoch=epoch + 1, step=0, loss=0.0, seconds=0.0)
        best = state["best"]
        if best is None or place == 0 or phase == "grind" or val_accuracy >= best["val_accuracy"]:
            state["best"] = {"epoch": epoch + 1, "val_accuracy": val_accuracy}
            self._save("best")  # before `last`: killed in between, this epoch is done again and gives the same
            self.best = {name: t.detach().clone() for name, t in self.model.state_dict().items()}
        self._save("last")
        for watcher in self.watchers:
            watcher.epoch(line)

    def _step(self, parallel: nn.Module, epoch: int, step: int, order: Tensor, phase: Phase) -> None:
        settings, train = self.settings, self.data.train
        chosen = order[step * settings.batch : (step + 1) * settings.batch]
        mine = self.crew.share(settings.batch)
        pixels, labels = train.pixels[chosen[mine]], train.labels[chosen[mine]].to(self.device)
        if settings.crop or settings.flip:
            generator = torch.Generator().manual_seed(derived_seed(settings.seed, "augment", epoch, step, mine.start))
            pixels = augment(pixels, settings.crop, settings.flip, generator)
        torch.manual_seed(derived_seed(settings.seed, "step", epoch, step, mine.start))
        strength = settings.strength_at(epoch, step, self.steps)
        for group in self.optimizer.param_groups:
            group["lr"] = settings.lr_at(epoch, step / self.steps)
        x = self.data.normalize(pixels.to(self.device))
        self.optimizer.zero_grad(set_to_none=True)
        precision = getattr(torch, settings.precision)
        with torch.autocast(self.device.type, precision) if precision != torch.float32 else nullcontext():
            scores = parallel(x)
        # Gradients are averaged over processes; this makes the average that of the whole batch for any shares of it.
        share = self.crew.size * len(labels) / settings.batch
        loss = share * F.cross_entropy(scores.float(), labels, label_smoothing=settings.label_smoothing)
        if isinstance(self.optimizer, (ProximalAdam, ProximalSGD)):
            self.optimizer.scale_penalty(strength)
            loss.backward()
        elif settings.penalty is not None and strength:
            (loss + strength * settings.penalty(self.model)).backward()
        else:
            loss.backward()
        value = self.crew.sum(float(loss.detach()))[0] / self.crew.size
        if not value <= 1000 * math.log(max(2, len(self.data.classes))):  # NaN compares as False
            self._diverged(value, epoch, step)
        self.optimizer.step()
        self.state["loss"] += value
        for watcher in self.watchers:
            watcher.step(epoch + 1, phase, step + 1, self.steps, value)

    def _set_dropout(self, phase: Phase) -> None:
        if not self.settings.heal_dropout and phase == "heal":
            for layer in self.model.modules():
                if "Dropout" in type(layer).__name__:
                    layer.train(False)

    def _penalty(self) -> float:
        with torch.no_grad():
            return float(self.settings.penalty(self.model)) if self.settings.penalty else 0.0

    def _diverged(self, loss: float, epoch: int, step: int) -> None:
        kept = "there is no checkpoint yet"
        if self.out is not None and (self.out / "last.safetensors").exists():
            kept = f"the last good checkpoint is {self.out / 'last.safetensors'} ({self.state['epoch']} epochs done)"
        raise TrainingError(
            f"the loss is {loss:g} in epoch {epoch + 1}, step {step + 1}: the training diverged; {kept}. "
            "Try a smaller learning rate or penalty."
        )

    def _finish(self) -> Result:
        if self.crew.leads and self.best is None:
            assert self.out is not None  # only a resumed run has its best network on disk alone
            tensors, _ = checkpoint.load(self.out / "best.safetensors")
            self.best = {name.removeprefix("model."): t for name, t in tensors.items()}
        self.model.load_state_dict(self.crew.from_leader(self.best if self.crew.leads else None))
        self.model.eval()
        test_loss, test_accuracy = evaluate(self.model, self.data.test, self.data.normalize, self.crew)
        history, best = self.state["history"], self.state["best"]
        example = self.data.normalize(self.data.test.pixels[:1].to(self.device))
        result = Result(
            history=tuple(history),
            best_epoch=best["epoch"],
            val_accuracy=best["val_accuracy"],
            test_accuracy=test_accuracy,
            test_loss=test_loss,
            sparsity=measure(self.model, example),
            seconds=sum(line["seconds"] for line in history),
        )
        if self.out is not None and self.crew.leads:
            with self._writing("result.json"):
                write_text(self.out / "result.json", json.dumps(result.to_dict(), indent=1))
        return result

    # Files.

    def _prepare_folder(self, resume: bool) -> None:
        if self.out is None:
            if resume:
                raise TrainingError("there is nothing to resume without the folder of a run: say out=.")
            return
        if not self.crew.leads:
            return
        if resume and not self.out.is_dir():
            raise TrainingError(f"{self.out} is not there, so there is no run to resume.")
        if not resume and (self.out / "last.safetensors").exists():
            raise TrainingError(f"{self.out} already holds a run: go on with --resume, or choose another folder.")
        with self._writing(""):
            self.out.mkdir(parents=True, exist_ok=True)

    def _save(self, name: str) -> None:
        if self.out is None or not self.crew.leads:
            return
        tensors = {f"model.{key}": value for key, value in self.model.state_dict().items()}
        state = {"settings": self.settings.to_dict(), **self.state}
        if name == "last":
            tensors |= {f"optimizer.{k}": v for k, v in checkpoint.optimizer_tensors(self.optimizer).items()}
            tensors |= {f"frozen.{k}": v for k, v in (self.frozen.state_dict() if self.frozen else {}).items()}
        with self._writing(f"{name}.safetensors"):
            checkpoint.save(self.out / f"{name}.safetensors", tensors, state)
            if name == "last":
                lines = "".join(json.dumps(line) + "\n" for line in self.state["history"])
                write_text(self.out / "history.jsonl", lines)

    @contextmanager
    def _writing(self, name: str) -> Iterator[None]:
        assert self.out is not None
        try:
            yield
        except OSError as reason:
            raise TrainingError(
                f"{self.out / name} could not be written ({reason.strerror or reason}): make room or choose another "
                "folder; the files that were there are as they were."
            ) from reason

    def _restore(self) -> None:
        found = checkpoint.load(self.out / "last.safetensors") if self.crew.leads and self.out else None
        tensors, state = self.crew.from_leader(found)
        ours = json.loads(json.dumps(self.settings.to_dict()))
        if changed := [key for key in ours if ours[key] != state["settings"].get(key)]:
            raise TrainingError(f"{self.out} was trained with other settings: {', '.join(changed)} differ.")

        def part(prefix: str) -> dict[str, Tensor]:
            return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}

        try:
            self.model.load_state_dict(part("model."))
        except RuntimeError as reason:
            raise TrainingError(f"{self.out} holds another network than this one: {reason}.") from reason
        checkpoint.restore_optimizer(self.optimizer, part("optimizer."))
        self.state = {key: state[key] for key in self.state}
        if self.settings.phase(min(self.state["epoch"], self.settings.total - 1))[0] == "heal" and part("frozen."):
            self.frozen = freeze_zeros(self.model, part("frozen."))

    # Being stopped.

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """Ctrl-C and SIGTERM end the training after the current step; a second one ends it at once."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

        def note(number: int, _: object) -> None:
            self.stop_signal = number
            for each, handler in before.items():
                signal.signal(each, handler)

        for number in before:
            signal.signal(number, note)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _must_stop(self) -> bool:
        if self.crew.size > 1:  # all stop after the same step, whichever was told to
            told = int(self.crew.sum(float(self.stop_signal or 0))[0])
            self.stop_signal = self.stop_signal or (signal.SIGTERM if told else None)
        return self.stop_signal is not None

    def _place(self) -> str:
        return f"epoch {self.state['epoch'] + 1}, step {self.state['step']} of {self.steps}"

    def _how_to_go_on(self) -> str:
        if self.out is None:
            return f"{self._place()}; nothing was saved, because no folder was given."
        return f"{self._place()}; go on with: quern train --resume --out {self.out}"


def _optimizer(model: nn.Module, settings: Settings) -> torch.optim.Optimizer:
    if settings.optimizer == "proximal-adam":
        return ProximalAdam(model, settings.penalty, settings.lr, weight_decay=settings.weight_decay)
    if settings.optimizer == "proximal-sgd":
        return ProximalSGD(model, settings.penalty, settings.lr, momentum=0.9, weight_decay=settings.weight_decay)
    kind = torch.optim.AdamW if settings.weight_decay else torch.optim.Adam
    return kind(model.parameters(), lr=settings.lr, weight_decay=settings.weight_decay)


def _peak_memory_mb() -> float:
    """Peak resident memory of this process; Linux counts it in KiB, macOS in bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return round(peak / (2**20 if sys.platform == "darwin" else 2**10), 1)
