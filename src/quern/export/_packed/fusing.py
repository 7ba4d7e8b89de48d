"""Fewer operations, and fewer buffers, for the same network."""

from collections import Counter
from collections.abc import Sequence

from quern.export._packed.operations import Buffer, Operation
from quern.runtime import format as qrn

_LIMITS = {qrn.IDENTITY, qrn.RELU, qrn.CLAMP}
_MONOTONE = {qrn.RELU, qrn.CLAMP, qrn.TANH, qrn.SIGMOID, qrn.SELU, qrn.SOFTPLUS, qrn.HARDSIGMOID, qrn.LOGSIGMOID}


def fused(operations: list[Operation], outputs: Sequence[Buffer], int8: bool) -> list[Operation]:
    """The same with activations and poolings as part of the product before them, without what nobody needs. In
    ``int8``, activations that are more than limits stay alone: they become tables."""
    return _fused(_needed(operations, outputs), set(outputs), _LIMITS if int8 else None)


def in_place(operations: list[Operation], outputs: Sequence[Buffer], inputs: Sequence[Buffer]) -> list[Operation]:
    """The same with what is computed number by number in the place of its input, if nobody needs that later."""
    kept = {*inputs, *outputs}
    for n, operation in enumerate(operations):
        if operation.code != "UNARY":
            continue
        x, y = operation.fields["X"].buffer, operation.fields["Y"].buffer
        later = any(x in (*other.reads, *other.writes) for other in operations[n + 1 :])
        if x not in kept and not later and x.numbers is None:
            for other in operations[n:]:
                other.replace(y, x)
            if y in kept:  # an output: the other way round
                for other in operations:
                    other.replace(x, y)
    return operations


def _needed(operations: list[Operation], outputs: Sequence[Buffer]) -> list[Operation]:
    needed, kept = set(outputs), list[Operation]()
    for operation in reversed(operations):
        if any(buffer in needed for buffer in operation.writes):
            needed.update(operation.reads)
            kept.append(operation)
    return kept[::-1]


def _fused(operations: list[Operation], outputs: set[Buffer], activations: set[int] | None) -> list[Operation]:
    readers = Counter(buffer for operation in operations for buffer in set(operation.reads))
    producers: dict[Buffer, Operation] = {}
    kept: list[Operation] = []
    for operation in operations:
        before = producers.get(operation.fields["X"].buffer) if operation.code in ("UNARY", "POOL") else None
        alone = before is not None and readers[operation.fields["X"].buffer] == 1
        if (
            before is not None
            and alone
            and operation.fields["X"].buffer not in outputs
            and _joins(before, operation, activations)
        ):
            before.fields["Y"] = operation.fields["Y"]
            if operation.code == "UNARY":
                before.fields |= {
                    "ACTIVATION": operation.fields["KIND"],
                    "A": operation.fields["A"],
                    "B": operation.fields["B"],
                }
            else:
                before.fields["POOL"] = 1
            producers[before.fields["Y"].buffer] = before
            continue
        kept.append(operation)
        if operation.code in ("CONV", "LINEAR"):
            producers[operation.fields["Y"].buffer] = operation
    return kept


def _joins(product: Operation, operation: Operation, activations: set[int] | None) -> bool:
    if operation.code == "UNARY":
        taken = activations is None or operation.fields["KIND"] in activations
        return taken and product.fields["ACTIVATION"] == qrn.IDENTITY
    fields = operation.fields
    halves = all(fields[name] == (2, 2) for name in ("KERNEL", "STRIDE")) and fields["PADDING"] == (0, 0)
    plain = fields["KIND"] == qrn.POOL_MAX and fields["DILATION"] == (1, 1) and halves
    # The maximum of what was activated is the activated maximum. A row that is too short to be pooled would be lost.
    monotone = product.fields["ACTIVATION"] in {qrn.IDENTITY, *_MONOTONE}
    whole = all(out == size // 2 for out, size in zip(fields["OUT"], (fields["HEIGHT"], fields["WIDTH"]), strict=True))
    return product.code == "CONV" and not product.fields["POOL"] and plain and monotone and whole
