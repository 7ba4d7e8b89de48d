"""The errors a user can mend, and the warnings: their text is one sentence that says what was wrong and what to do."""

__all__ = ["CompactionError", "DataError", "DeadNetworkWarning", "ExportError", "FileError", "FoldingError"]
__all__ += ["LastPathWarning", "NotFiniteWarning", "QuernError", "QuernWarning", "RecordError", "Stopped"]
__all__ += ["TraceError", "TrainingError"]


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


class DataError(QuernError):
    """A data set cannot be had, or is not what it should be."""


class ExportError(QuernError):
    """A network cannot be handed over in the form that was asked for."""


class FileError(QuernError):
    """A file of a network cannot be read or written, or is not what it should be."""


class RecordError(QuernError):
    """What is kept of an experiment cannot be read, or does not hold what was asked for."""


class TrainingError(QuernError):
    """A training cannot start or go on."""


class FoldingError(QuernError):
    """A normalisation cannot be folded."""


class TraceError(QuernError):
    """The forward of a network cannot be followed."""


class Diverged(TrainingError):
    """The loss of a training is no longer a number, or beyond all measure."""


class Stopped(TrainingError):
    """Ctrl-C or SIGTERM arrived while training; the state was saved. ``signal`` is the number of the signal."""

    def __init__(self, said: str, signal: int) -> None:
        super().__init__(said)
        self.signal = signal
