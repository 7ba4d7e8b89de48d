"""Batch statistics of two processes, against one process with the joined batch."""

import copy
import random
from collections.abc import Iterator
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from quern import compact, io
from quern import nn as qnn
from quern.errors import QuernWarning
from quern.functional import norms
from quern.nn._synchronized import is_synchronized
from tests.pairs import in_pair

Q_NORMS = (qnn.QBatchNorm1d, qnn.QBatchNorm2d, qnn.QBatchNorm3d, qnn.QWhiteningBatchNorm2d)
NORMS = (*Q_NORMS, nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
CASES = 60
TOLERANCE: dict[torch.dtype, Any] = {torch.float32: 2e-4, torch.float64: 1e-7}


def _cases() -> Iterator[tuple[Any, dict[str, Any], Tensor, int, bool]]:
    """A normalisation and its options, a batch, how many of it the first process has, and whether under autocast."""
    chance = random.Random(0)
    torch.manual_seed(0)
    for n in range(CASES):
        kind = NORMS[n % len(NORMS)]
        axes = int(kind.__name__[-2])
        space = [chance.randint(1, 4) for _ in range(axes if axes > 1 else chance.randint(0, 1))]
        batch, dtype = chance.randint(3, 8), chance.choice((torch.float64, torch.float32))
        options = {"affine": chance.random() < 0.8, "momentum": chance.choice((0.1, None)), "dtype": dtype}
        options |= {"track_running_stats": chance.random() < 0.8, "eps": chance.choice((1e-5, 0.1))}
        x = torch.randn(batch, 4 * chance.randint(1, 5), *space, dtype=dtype) * 2 + 3
        if x.dim() == 4 and chance.random() < 0.5:
            x = x.contiguous(memory_format=torch.channels_last)
        yield kind, options, x, chance.randint(0, batch), chance.random() < 0.2


def _moved(layer: nn.Module, x: Tensor, weight: Tensor, autocast: bool) -> tuple[Tensor, Tensor]:
    """Outputs, and the gradient in ``x`` of the sum of outputs times ``weight``; parameters have theirs."""
    x = x.detach().clone(memory_format=torch.preserve_format).requires_grad_()
    with torch.autocast("cpu", torch.bfloat16) if autocast else nullcontext():
        y = layer(x)
    (y * weight).sum().backward()
    assert x.grad is not None
    return y.detach(), x.grad


def _bent(layer: nn.Module, x: Tensor, weight: Tensor) -> Tensor:
    """A gradient of gradients: that of the squares of the slopes in ``x``."""
    x = x.detach().clone().requires_grad_()
    (slope,) = torch.autograd.grad((layer(x).square() * weight).sum(), x, create_graph=True)
    return torch.autograd.grad(slope.square().sum(), x)[0]


def _layers_agree() -> int:
    done = 0
    for kind, options, x, cut, autocast in _cases():
        one = kind(x.shape[1], **options)
        for p in one.parameters():
            p.data += 0.3 * torch.randn_like(p)
        two = qnn.convert_sync_batchnorm(copy.deepcopy(one))
        weight, part = torch.randn_like(x), slice(0, cut) if dist.get_rank() == 0 else slice(cut, None)
        close = partial(torch.testing.assert_close, **dict.fromkeys(("rtol", "atol"), TOLERANCE[x.dtype]))
        wanted, slope = _moved(one, x, weight, autocast)
        found, own_slope = _moved(two, x[part], weight[part], autocast)
        close(found, wanted[part])
        close(own_slope, slope[part])
        for ours, theirs in zip(two.parameters(), one.parameters(), strict=True):
            assert ours.grad is not None
            dist.all_reduce(ours.grad)
            close(ours.grad, theirs.grad)
        close(dict(two.state_dict()), dict(one.state_dict()))
        if x.dtype == torch.float64:
            close(_bent(two, x[part], weight[part]), _bent(one, x, weight)[part])
        close(two.eval()(x), one.eval()(x))
        done += 1
    with pytest.raises(ValueError, match="more than one value per neuron"):
        qnn.convert_sync_batchnorm(qnn.QBatchNorm1d(4))(torch.ones(dist.get_rank(), 4))
    return done


def _network() -> nn.Sequential:
    torch.manual_seed(0)
    layers = (qnn.QConv2d(4, 16, 3, bias=False), qnn.QBatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 8, 3, bias=False))
    return nn.Sequential(*layers, nn.BatchNorm2d(8), nn.Tanh(), nn.Flatten(), nn.Linear(8 * 16, 3))


def _steps(network: nn.Module, batches: list[tuple[Tensor, Tensor]], part: float | None) -> dict[str, Tensor]:
    """Its state after a step with each batch, or with this process's part of each, of which the first has a share."""
    optimizer = torch.optim.SGD(network.parameters(), 0.1, momentum=0.9)
    for x, y in batches:
        whole = len(x)
        if part is not None:
            cut = round(part * whole)
            mine = slice(0, cut) if dist.get_rank() == 0 else slice(cut, None)
            x, y = x[mine], y[mine]
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(network(x), y)
        (loss if part is None else 2 * len(x) / whole * loss).backward()  # gradients are averaged over the two
        optimizer.step()
    return network.state_dict()


def _networks_agree() -> None:
    batches = [(torch.randn(12, 4, 8, 8), torch.randint(0, 3, (12,))) for _ in range(6)]
    one = _steps(_network(), batches, None)
    parallel = DistributedDataParallel(qnn.convert_sync_batchnorm(_network()))
    two = {name.removeprefix("module."): t for name, t in _steps(parallel, batches, 0.25).items()}
    torch.testing.assert_close(two, dict(one), rtol=1e-4, atol=1e-5)
    apart = {
        n.removeprefix("module."): t for n, t in _steps(DistributedDataParallel(_network()), batches, 0.25).items()
    }
    assert (apart["0.weight"] - one["0.weight"]).abs().max() > 1e-3  # it would be seen


def _all_agree() -> int:
    done = _layers_agree()
    torch.manual_seed(1)
    _networks_agree()
    return done


@pytest.mark.slow
def test_two_processes_normalise_as_one_with_the_joined_batch() -> None:
    assert in_pair(_all_agree) == [CASES, CASES]


def test_in_one_process_nothing_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[bool] = []

    def asked(*tensors: Any) -> bool:
        taken.append(can_take(*tensors))
        return taken[-1]

    can_take = norms.native_batch_norm.can_take
    monkeypatch.setattr(norms.native_batch_norm, "can_take", asked)
    x = torch.randn(5, 4, 8, 8).contiguous(memory_format=torch.channels_last)
    assert _network()(x).equal(qnn.convert_sync_batchnorm(_network())(x))
    assert len(taken) == 2
    assert taken[0] == taken[1]  # by native kernels, where they are


def test_a_converted_network_is_an_ordinary_one(tmp_path: Path) -> None:
    network = qnn.convert_sync_batchnorm(_network())
    plain = _network()
    assert [type(layer) for layer in network.modules()] == [type(layer) for layer in plain.modules()]
    assert network.state_dict().keys() == plain.state_dict().keys()
    assert repr(network) == repr(plain)
    x = torch.randn(5, 4, 8, 8)
    network(x)
    io.save(network.eval(), tmp_path / "net.safetensors")
    loaded = io.load(tmp_path / "net.safetensors", plain).eval()
    assert loaded(x).equal(network(x))
    assert all(is_synchronized(layer) for layer in (network[1], network[4]))
    assert not any(is_synchronized(layer) for layer in loaded.modules())
    for p in network[1].parameters():
        p.data[..., 1:3] = 0
    small = compact.compact(network, x)
    torch.testing.assert_close(small(x), network(x))
    assert sum(p.numel() for p in small.parameters()) < sum(p.numel() for p in network.parameters())
    copied = copy.deepcopy(network)
    nn.init.zeros_(copied[4].get_buffer("running_mean"))
    assert not copied(x).equal(network(x))  # its layers are its own
    qnn.revert_sync_batchnorm(network)
    assert not any(is_synchronized(layer) for layer in network)


def test_a_forward_of_its_own_is_named() -> None:
    class Act(nn.BatchNorm2d):
        def forward(self, input: Tensor) -> Tensor:
            return super().forward(input).relu()

    with pytest.warns(QuernWarning, match=r"1 \(Act\) has a forward of its own: .*\.$"):
        qnn.convert_sync_batchnorm(nn.Sequential(nn.Identity(), Act(4)))
