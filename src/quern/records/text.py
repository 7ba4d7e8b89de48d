"""Times and epochs in words, for those who show a run; no torch."""

from quern.records._training import Epoch, in_epochs
from quern.records.schema import visible

__all__ = ["clock", "in_epochs", "shown_value", "summary"]


def clock(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"


def shown_value(line: Epoch) -> str:
    """What an epoch was judged by: accuracy in percent, or another metric with its name."""
    if line.val_accuracy is not None:
        return f"{line.val_accuracy:.2%}"
    return f"{visible(line.metric or 'metric')} {line.val:.5g}"


def summary(line: Epoch, total: int) -> str:
    """One epoch of a history in one line."""
    parameters = "" if line.parameters is None else f"{line.parameters:,} parameters  "  # older histories lack them
    return (
        f"epoch {line.epoch:>{len(str(total))}}/{total} {line.phase:<6}  loss {line.loss:.4f}  "
        f"val {shown_value(line)}  zero: components {line.component_sparsity:.1%}, "
        f"quaternions {line.quaternion_sparsity:.1%}, neurons {line.neuron_sparsity:.1%}  "
        f"{parameters}{line.seconds:.1f} s"
    )
