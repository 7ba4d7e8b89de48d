"""What a network is shown: batches of images or of the user's own, seeds, random shifts."""

import hashlib
from collections.abc import Iterable, Iterator, Sized
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from quern.data import Images, ImageSet
from quern.errors import TrainingError
from quern.graph import Example
from quern.graph.values import evaluating
from quern.train._inputs import as_arguments, count_of, digest, first, inputs_and_targets, part, tensors_in
from quern.train._settings import Settings
from quern.train._task import Task, check_labels, check_loss, evaluate, run
from quern.train.team import Team

EVALUATION_BATCH = 250  # larger ones take longer for each image, as what passes between layers leaves the cache


def derived_seed(*parts: int | str) -> int:
    """A seed from several numbers, as good as independent of the seeds from any others."""
    return int.from_bytes(hashlib.blake2b(repr(parts).encode(), digest_size=4).digest(), "little")


def seed_global(device: torch.device, *parts: int | str) -> None:
    """Let what is drawn from torch's global generator from here on depend on these parts alone."""
    if device.type == "cpu":
        # torch.manual_seed also notes the seed, and who gave it, for every kind of device that may be asked for later:
        # that takes longer than a step of a very small network.
        torch.default_generator.manual_seed(derived_seed(*parts))
    else:
        torch.manual_seed(derived_seed(*parts))


def augment(
    pixels: Tensor,
    crop: int,
    flip: bool,
    generator: torch.Generator,
    part: slice = slice(None),
    whole: int | None = None,
) -> Tensor:
    """Each image of ``(n, c, h, w)`` shifted by up to ``crop`` pixels with a black margin, and mirrored or not.

    The images may be a ``part`` of a batch of ``whole`` images; they come out as if all of it had been drawn for.
    """
    n, _, height, width = pixels.shape
    whole = n if whole is None else whole
    if crop:
        down, right = torch.randint(0, 2 * crop + 1, (2, whole), generator=generator)[:, part].unbind()
        rows = (down[:, None] + torch.arange(height))[:, :, None]
        columns = (right[:, None] + torch.arange(width))[:, None, :]
        padded = F.pad(pixels, (crop,) * 4)
        pixels = padded[torch.arange(n)[:, None, None], :, rows, columns].permute(0, 3, 1, 2)
    if flip:
        mirrored = torch.rand(whole, generator=generator)[part] < 0.5
        pixels = torch.where(mirrored[:, None, None, None], pixels.flip(3), pixels)
    return pixels


@dataclass(frozen=True, eq=False)
class Loaders:
    """Batches of your own: each is an iterable of pairs (inputs, targets), such as a ``DataLoader``.

    Inputs are a tensor, a tuple or list of positional arguments of the network, or a table of arguments by name; the
    first axis of every tensor in them is the batch. Targets are class numbers ``(batch,)``, or whatever the loss takes.

    ``train`` is gone through once an epoch and needs a length; what it draws from torch's global generator is the same
    in a training that was resumed. The others are gone through several times. Without ``test``
    there is no accuracy, or other metric, of a test.

    Under torchrun every process goes through the same loaders, and takes its part of each batch: a batch must be the
    same in all of them, so a loader draws from torch's global generator alone and needs no ``DistributedSampler``.
    """

    train: Iterable[Any]
    val: Iterable[Any]
    test: Iterable[Any] | None = None


class Batch(NamedTuple):
    """Inputs, targets, the teacher's outputs if there is one, and the batch's weight among the processes."""

    inputs: Example
    targets: Any
    taught: Any
    share: float

    @property
    def size(self) -> int:
        return count_of(self.inputs)


@runtime_checkable
class Source(Protocol):
    """Where a training gets its batches from. ``val()`` and ``test()`` are dealt out among the processes; ``test()`` is
    None where there is nothing to test with. ``shown`` is the first pair of ``val()`` in all of them, ``example`` an
    input or two. ``image_format()`` is what the network's file says of the images."""

    steps: int
    crew: Team
    device: torch.device
    example: Example

    @property
    def shown(self) -> tuple[Example, Any]: ...
    def batches(self, epoch: int, first: int, teacher: nn.Module | None) -> Iterator[Batch]: ...
    def val(self) -> Iterator[tuple[Example, Any]]: ...
    def test(self) -> Iterator[tuple[Example, Any]] | None: ...
    def image_format(self) -> dict[str, Any] | None: ...


def check_data(data: Any) -> None:
    """One sentence if this is nothing to train on."""
    if not isinstance(data, ImageSet | Loaders):
        remedy = f"load it by quern.data.load({data!r})" if isinstance(data, str) else "wrap them, Loaders(train, val)"
        wanted = "a quern.data.ImageSet or quern.train.Loaders"
        raise TrainingError(f"the data must be {wanted}, but is of type {type(data).__name__}: {remedy}.")


@torch.no_grad()
def check_fits(model: nn.Module, data: ImageSet | Loaders, batches: Source, task: Task) -> None:
    """One sentence if the network does not take the inputs, if its outputs are not what the task needs, or if the loss
    or the metric is no number."""
    training, shapes = model.training, " and ".join(str(tuple(t.shape)) for t in tensors_in(batches.example))
    try:
        outputs = model.eval()(*as_arguments(batches.example))
    except Exception as reason:  # whatever a network says to an input that is not its own
        wrong = (str(reason).strip().splitlines() or [type(reason).__name__])[0].rstrip(".")
        raise TrainingError(f"the network does not take inputs of shape {shapes}: {wrong}.") from reason
    finally:
        model.train(training)
    if task.trains_classes:
        if not isinstance(outputs, Tensor) or outputs.dim() != 2 or len(outputs) != count_of(batches.example):
            given = (
                f"a tensor of shape {tuple(outputs.shape)}" if isinstance(outputs, Tensor) else type(outputs).__name__
            )
            raise TrainingError(
                f"for inputs of shape {shapes} the network gives {given}, but must give scores (batch, classes): for "
                "anything but classification say loss= and metric=."
            )
        if isinstance(data, ImageSet):
            for images in (data.train, data.val, data.test):
                check_labels(images.labels, outputs)
    else:
        check_loss(task, model, *batches.shown)
    if not task.classifies:
        evaluate(model, batches.val(), batches.crew, task)


@torch.no_grad()
def check_teaches(teacher: nn.Module, model: nn.Module, batches: Source) -> None:
    """One sentence if a teacher does not give outputs of the shapes of the network's."""
    given = []
    for name, network in (("teacher", teacher), ("network", model)):
        try:
            with evaluating(network):
                given.append([tuple(t.shape) for t in tensors_in(run(network, batches.example))])
        except Exception as reason:  # whatever a network says to an input that is not its own
            wrong = (str(reason).strip().splitlines() or [type(reason).__name__])[0].rstrip(".")
            shapes = " and ".join(str(tuple(t.shape)) for t in tensors_in(batches.example))
            raise TrainingError(f"the {name} does not take inputs of shape {shapes}: {wrong}.") from reason
    taught, own = given
    if taught != own or not own:
        of_teacher, of_network = (" and ".join(map(str, shapes)) or "no tensors" for shapes in given)
        raise TrainingError(
            f"the teacher gives outputs of shape {of_teacher}, but the network {of_network}: it can teach only a "
            "network with the same outputs."
        )


def held_out(batches: Source) -> Iterator[tuple[Example, Any]]:
    """What two networks are compared on: the inputs to test with, or without such those to validate with."""
    return batches.val() if (tests := batches.test()) is None else tests


def source(
    data: ImageSet | Loaders, settings: Settings, crew: Team, device: torch.device, model: nn.Module, task: Task
) -> Source:
    """The batches of ``data``, as ``model`` takes them, on ``device``."""
    if isinstance(data, ImageSet):
        return _FromImages(data, settings, crew, device)
    return _FromLoaders(data, settings, crew, device, model, task)


class _FromImages:
    def __init__(self, data: ImageSet, settings: Settings, crew: Team, device: torch.device) -> None:
        self.data, self.settings, self.crew, self.device = data, settings, crew, device
        if len(data.train) < settings.batch:
            raise TrainingError(
                f"the batch is {settings.batch}, but there are {len(data.train)} images to train on: "
                f"say --batch {len(data.train)} or less."
            )
        if settings.batch < crew.size:
            raise TrainingError(f"a batch of {settings.batch} cannot be shared by {crew.size} processes.")
        self.steps = len(data.train) // settings.batch
        self.example: Example = data.normalize(data.train.pixels[:2].to(device))
        self.taught: Tensor | None = None

    def batches(self, epoch: int, first: int, teacher: nn.Module | None) -> Iterator[Batch]:
        settings, train, mine = self.settings, self.data.train, self.crew.share(self.settings.batch)
        if teacher is not None and self.taught is None:
            self.taught = self._teach(teacher)
        generator = torch.Generator().manual_seed(derived_seed(settings.seed, "order", epoch))
        order = torch.randperm(len(train), generator=generator)
        for step in range(first, self.steps):
            chosen = order[step * settings.batch : (step + 1) * settings.batch][mine]
            pixels, labels = train.pixels[chosen], train.labels[chosen].to(self.device, torch.long)
            if settings.crop or settings.flip:
                generator = torch.Generator().manual_seed(derived_seed(settings.seed, "augment", epoch, step))
                pixels = augment(pixels, settings.crop, settings.flip, generator, mine, settings.batch)
            # Gradients are averaged over processes; the share makes that the average of the whole batch.
            share = self.crew.size * len(labels) / settings.batch
            taught = self.taught[chosen].to(self.device) if teacher is not None and self.taught is not None else None
            yield Batch(self.data.normalize(pixels.to(self.device)), labels, taught, share)

    @torch.no_grad()
    def _teach(self, teacher: nn.Module) -> Tensor:
        """The teacher's scores for every image, once: not for every way to shift it, and where images are mirrored the
        mean of both ways."""
        scores = []
        for pixels in self.data.train.pixels.split(EVALUATION_BATCH):
            x = self.data.normalize(pixels.to(self.device))
            seen = teacher(x).float()
            scores.append(((seen + teacher(x.flip(3)).float()) / 2 if self.settings.flip else seen).cpu())
        return torch.cat(scores)

    def val(self) -> Iterator[tuple[Tensor, Tensor]]:
        return self._pairs(self.data.val, self.crew)

    def test(self) -> Iterator[tuple[Tensor, Tensor]]:
        return self._pairs(self.data.test, self.crew)

    @property
    def shown(self) -> tuple[Tensor, Tensor]:
        return next(self._pairs(self.data.val, Team()))

    def _pairs(self, images: Images, crew: Team) -> Iterator[tuple[Tensor, Tensor]]:
        batch = max(1, min(EVALUATION_BATCH, -(-len(images) // crew.size)))
        for pixels, labels in crew.dealt(zip(images.pixels.split(batch), images.labels.split(batch), strict=True)):
            yield self.data.normalize(pixels.to(self.device)), labels.to(self.device, torch.long)

    def image_format(self) -> dict[str, Any]:
        return self.data.about()


class _FromLoaders:
    def __init__(
        self,
        data: Loaders,
        settings: Settings,
        crew: Team,
        device: torch.device,
        model: nn.Module,
        task: Task,
    ) -> None:
        self.data, self.seed, self.crew, self.device, self.model, self.task = (
            data,
            settings.seed,
            crew,
            device,
            model,
            task,
        )
        if settings.crop or settings.flip:
            raise TrainingError("crop and flip are for images of quern.data: let your own loader do it.")
        if not isinstance(data.train, Sized) or len(data.train) == 0:
            raise TrainingError("the loader to train with must have a length, of at least one batch.")
        for loader, what in ((data.val, "validate"), (data.test, "test")):
            if isinstance(loader, Iterator):
                raise TrainingError(
                    f"the loader to {what} with can be gone through only once: give a DataLoader or a list of batches."
                )
        self.steps = len(data.train)
        self._check_alike(self.steps)
        shown = next(map(self._pair, data.val), None)
        if shown is None or not count_of(shown[0]):
            raise TrainingError("the loader to validate with has no batches.")
        self.shown = shown
        self.example = first(shown[0], 2)

    def batches(self, epoch: int, first: int, teacher: nn.Module | None) -> Iterator[Batch]:
        seed_global(self.device, self.seed, "order", epoch)
        pairs = iter(self.data.train)
        for step in range(self.steps):
            seed_global(self.device, self.seed, "load", epoch, step)
            pair = next(pairs, None)
            if pair is None:
                raise TrainingError(f"the loader to train with ended after {step} of its {self.steps} batches.")
            if step < first:
                continue  # done before the training was stopped
            inputs, targets = self._pair(pair)
            if step == first:
                self._check_alike(digest((inputs, targets)) if self.crew.size > 1 else None)
            whole = count_of(inputs)
            inputs, targets = self._mine(inputs, targets)
            with torch.no_grad():
                taught = run(teacher, inputs) if teacher is not None else None
            yield Batch(inputs, targets, taught, self.crew.size * count_of(inputs) / whole)

    def _mine(self, inputs: Example, targets: Any) -> tuple[Example, Any]:
        """This process's part of a batch."""
        if self.crew.size == 1:
            return inputs, targets
        if (count := count_of(inputs)) < self.crew.size:
            raise TrainingError(
                f"a batch of {count} cannot be shared by {self.crew.size} processes: let the loader give larger ones, "
                "and with drop_last=True no smaller one at the end."
            )
        return part((inputs, targets), self.crew.share(count), count)

    def _check_alike(self, own: int | str | None) -> None:
        if len(set(self.crew.gathered(own))) > 1:
            raise TrainingError(
                "the loaders of the processes do not give the same batches, of which each process takes its part: use "
                "no DistributedSampler, and draw what is random from torch's global generator."
            )

    def val(self) -> Iterator[tuple[Example, Any]]:
        return map(self._pair, self.crew.dealt(self.data.val))

    def test(self) -> Iterator[tuple[Example, Any]] | None:
        return None if self.data.test is None else map(self._pair, self.crew.dealt(self.data.test))

    def _pair(self, batch: Any) -> tuple[Example, Any]:
        inputs, targets = inputs_and_targets(batch, self.model, self.device)
        if not self.task.trains_classes:
            return inputs, targets
        if not isinstance(targets, Tensor) or targets.dim() != 1 or targets.is_floating_point():
            given = type(targets).__name__
            if isinstance(targets, Tensor):
                given = f"labels of shape {tuple(targets.shape)} and type {targets.dtype}"
            raise TrainingError(
                f"a loader gave {count_of(inputs)} inputs with {given}, but each input needs one class number: for "
                "anything but classification say loss= and metric=."
            )
        if len(targets) != count_of(inputs):
            raise TrainingError(
                f"a loader gave {count_of(inputs)} inputs with labels of shape {tuple(targets.shape)} and type "
                f"{targets.dtype}, but each input needs one class number."
            )
        return inputs, targets.long()

    def image_format(self) -> None:
        return None
