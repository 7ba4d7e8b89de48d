"""The errors a user can mend, and the warnings: their text is one sentence that says what was wrong and what to do."""

from collections.abc import Iterable

__all__ = [
    "CompactionError",
    "ConversionError",
    "DataError",
    "DeadNetworkWarning",
    "ExportError",
    "FileError",
    "FoldingError",
]
__all__ += ["InputError", "LastPathWarning", "NoRuleError", "NotFiniteWarning", "QuernError", "QuernWarning"]
__all__ += ["NoRuntimeError", "PackedError", "RecordError", "Stopped", "TraceError", "TrainingError", "instead_of"]
__all__ += ["words_of"]


def instead_of(name: str, names: Iterable[str], otherwise: str | None = None) -> str:
    """What to say of a ``name`` that is none of ``names``: the one that was meant, else ``otherwise`` or all names."""
    from difflib import get_close_matches

    names = list(names)
    close = get_close_matches(name, names, n=1)
    return f"did you mean {close[0]}?" if close else otherwise or f"choose among {', '.join(names)}."


def words_of(reason: BaseException) -> str:
    """What an exception of another library says, on one line and without a full stop; its type if it says nothing."""
    words = reason.strerror if isinstance(reason, OSError) and reason.strerror else reason
    return " ".join(str(words).split()).rstrip(".") or type(reason).__name__


class QuernError(Exception):
    """What the command line prints as one sentence, without a traceback."""


class QuernWarning(UserWarning):
    """What the command line prints as one sentence on standard error, and goes on."""


class DeadNetworkWarning(QuernWarning):
    """The output of a network does not depend on its input any more."""


class LastPathWarning(QuernWarning):
    """A penalty is so strong that it would leave nothing of a network."""


class NotFiniteWarning(QuernWarning):
    """A network, or what it computes, holds NaN or infinity."""


class CompactionError(QuernError):
    """A network cannot be made smaller, or a plan does not fit it."""


class NoRuleError(CompactionError):
    """Compaction does not know what an operation does to channels. ``name`` is that of the operation."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"there is no rule for {name}: with keep_unknown=True, plan and compact keep all channels that it takes."
        )
        self.name = name


class ConversionError(QuernError, ValueError):
    """A network of torch cannot become one of quaternions."""


class DataError(QuernError):
    """A data set cannot be had, or is not what it should be."""


class ExportError(QuernError):
    """A network cannot be handed over in the form that was asked for."""


class PackedError(QuernError):
    """A packed network cannot be run."""


class NoRuntimeError(PackedError):
    """The C runtime is not there."""

    def __init__(self) -> None:
        super().__init__(
            "the C runtime was not built when quern was installed: install a C compiler (gcc, clang), then quern again."
        )


class FileError(QuernError):
    """A file of a network cannot be read or written, or is not what it should be."""


class RecordError(QuernError):
    """What is kept of an experiment cannot be read, or does not hold what was asked for."""


class InputError(QuernError):
    """What was given as a network, or as an example of its inputs, is none."""


class TrainingError(QuernError):
    """A training cannot start or go on."""


class ZooError(QuernError):
    """A network that is not in the zoo."""


class FoldingError(QuernError):
    """A normalisation cannot be folded."""


class TraceError(QuernError):
    """The forward of a network cannot be followed."""


class Diverged(TrainingError):
    """The loss of a training is no longer a number, or beyond all measure."""


class Lost(TrainingError):
    """Another of the processes that train together is no longer there."""


class Repeated(TrainingError):
    """What the leading one of the processes that train together has said already."""


class Stopped(TrainingError):
    """Ctrl-C or SIGTERM arrived while training; the state was saved. ``signal`` is the number of the signal."""

    def __init__(self, sentence: str, signal: int) -> None:
        super().__init__(sentence)
        self.signal = signal
