"""Which neurons go, and whether they matter: what happens when their outputs are exchanged between samples."""

import copy
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from quern import nn as qnn
from quern.graph import spec_of
from quern.graph.reader import read

F64 = torch.float64


CONVOLUTIONS = (qnn.QConv1d, qnn.QConv2d, qnn.QConv3d, qnn.QConvTranspose1d, qnn.QConvTranspose2d, qnn.QConvTranspose3d)


REAL_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)


NORMS = (qnn.QBatchNorm1d, qnn.QBatchNorm2d, qnn.QBatchNorm3d, qnn.QWhiteningBatchNorm2d)


REAL_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


RECURRENT = (qnn.QRNN, qnn.QLSTM, qnn.QGRU)


REAL_RECURRENT = (nn.RNN, nn.LSTM, nn.GRU)


def removed(model: nn.Module, *inputs: Any) -> tuple[dict[str, Tensor], list[str]]:
    """Which outputs of each layer with neurons go, by its name, and what was noted."""
    facts, _, _ = read(copy.deepcopy(model).eval(), inputs, keep_unknown=True)
    kept = facts.settle()
    records = [record for record in facts.records.values() if spec_of(record.layer).neurons(record.layer)]
    return {record.name: ~kept[record.outputs] for record in records}, facts.notes


def dead(model: nn.Module, *shape: int) -> dict[str, list[int]]:
    """The numbers of the dead neurons by layer, for a batch of inputs of this shape; everything was followed."""
    model = copy.deepcopy(model).double()
    gone, notes = removed(model, torch.randn(2, *shape, dtype=F64))
    assert notes == []
    return {name: which.nonzero().flatten().tolist() for name, which in gone.items()}


def kill(layer: nn.Module, rows: tuple[int, ...] = (), columns: tuple[int, ...] = ()) -> None:
    """Weights of neurons (``rows``) or of inputs (``columns``) of a quaternion layer to zero."""
    weight = layer.get_parameter("weight").data
    weight[:, list(rows)] = 0
    weight[:, :, list(columns)] = 0


@torch.no_grad()
def random_values(model: nn.Module) -> nn.Module:
    """Every number random and none at a special value: biases, scales, shifts and statistics too."""
    for p in model.parameters():
        p.copy_(torch.randn_like(p))
    for name, b in model.named_buffers():
        if name.endswith("running_mean"):
            b.copy_(torch.randn_like(b))
        elif name.endswith("running_var"):
            b.copy_(torch.rand_like(b) + 0.5)
        elif name.endswith("running_cov"):
            root = torch.randn(b.shape[2], 4, 4, dtype=b.dtype) / 4 + torch.eye(4, dtype=b.dtype)
            b.copy_((root @ root.mT).permute(1, 2, 0))
    return model.double().eval()


def some(*shape: int, keep: float) -> Tensor:
    return torch.rand(shape) < keep


@torch.no_grad()
def random_zeros(model: nn.Module, keep: float = 0.7, taps: bool = False) -> nn.Module:
    """Single weights (of all positions of a kernel, or each with ``taps``), rows, columns and scales become zero."""
    for layer in model.modules():
        if isinstance(layer, (*RECURRENT, *REAL_RECURRENT)):
            parts = 4 if isinstance(layer, RECURRENT) else 1
            for name, p in layer.named_parameters():
                if name.startswith("weight"):
                    w = p.view(parts, -1, layer.hidden_size // parts, p.shape[-1])  # components, gates, units, inputs
                    w.mul_(some(1, *w.shape[1:], keep=keep))
                    w.mul_(some(w.shape[2], 1, keep=0.8)).mul_(some(w.shape[3], keep=0.9))
            continue
        weight = getattr(layer, "weight", None)
        if weight is None:
            continue
        if isinstance(layer, (*NORMS, *REAL_NORMS, qnn.QEmbedding, nn.Embedding)):
            weight.mul_(some(weight.shape[-1], keep=0.8))
            continue
        w = weight if isinstance(layer, (qnn.QLinear, *CONVOLUTIONS)) else weight.unsqueeze(0)
        ones = [1] * len(w.shape[3:])
        w.mul_(some(1, *w.shape[1:3], *(w.shape[3:] if taps else ones), keep=keep))
        w.mul_(some(w.shape[1], 1, *ones, keep=0.9)).mul_(some(w.shape[2], *ones, keep=0.9))
    return model


def run_exchanged(model: nn.Module, x: Tensor, units: dict[str, Tensor]) -> Any:
    """The output of ``model`` if these neurons of these layers have the values of another sample of the batch."""

    def exchange(which: Tensor, layer: nn.Module, inputs: Any, output: Tensor) -> Tensor:
        axis = 1 if isinstance(layer, (*CONVOLUTIONS, *REAL_CONVOLUTIONS)) else -1
        y = output.movedim(axis, -1).clone()
        parts = torch.arange(y.shape[-1] // len(which))
        channels = (len(which) * parts.unsqueeze(1) + which.nonzero().flatten()).flatten()
        y[..., channels] = y.roll(1, 0)[..., channels]
        return y.movedim(-1, axis)

    handles = [
        model.get_submodule(name).register_forward_hook(partial(exchange, which))
        for name, which in units.items()
        if not isinstance(model.get_submodule(name), (*RECURRENT, *REAL_RECURRENT))
    ]
    with torch.no_grad():
        y = model(x)
    for handle in handles:
        handle.remove()
    return y


def assert_dead_do_not_matter(model: nn.Module, x: Tensor) -> tuple[int, int]:
    """The law of soundness; says how many neurons were dead and alive."""
    gone, _ = removed(model, x)
    result = run_exchanged(model, x, gone)
    torch.testing.assert_close(result, run_exchanged(model, x, {}), rtol=1e-9, atol=1e-9)
    going = sum(int(which.sum()) for which in gone.values())
    return going, sum(map(len, gone.values())) - going


def linears(*sizes: tuple[int, int]) -> dict[str, nn.Module]:
    return {name: qnn.QLinear(*size) for name, size in zip("abc", sizes, strict=False)}


def convs(*sizes: tuple[int, int]) -> dict[str, nn.Module]:
    return {name: qnn.QConv2d(*size, 1) for name, size in zip("abc", sizes, strict=False)}


def moduli() -> nn.Module:
    return nn.Sequential(qnn.QLinear(8, 16), qnn.Modulus())


@torch.no_grad()
def one_column(model: nn.Module, where: float) -> None:
    """The last layer hears one of its inputs only, the first (0) to the last (1)."""
    last = [layer for layer in model.modules() if isinstance(layer, (qnn.QLinear, *CONVOLUTIONS, nn.Linear))][-1]
    columns = last.weight.movedim(1 if isinstance(last, nn.Linear) else 2, 0)
    columns[torch.arange(len(columns)) != int(where * len(columns))] = 0


def mlp(*sizes: int) -> nn.Sequential:
    """Linear layers "0", "1", ... with ReLU between; sizes count quaternions."""
    torch.manual_seed(0)
    model = nn.Sequential()
    for n, (inner, out) in enumerate(pairwise(sizes)):
        model.add_module(str(n), qnn.QLinear(4 * inner, 4 * out))
        if n < len(sizes) - 2:
            model.add_module(f"relu{n}", nn.ReLU())
    return model


def layer(model: nn.Module, name: str) -> Any:
    return model.get_submodule(name)
