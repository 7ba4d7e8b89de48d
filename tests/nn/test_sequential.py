"""Layers in a row: what is put into one pass is what torch's Sequential computes."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from quern import models
from quern import nn as qnn
from quern.functional import native
from quern.graph.trace import trace


def layers(container: type[nn.Sequential]) -> Any:
    torch.manual_seed(0)
    first, second = qnn.QConv2d(4, 12, 3), qnn.QConv2d(12, 8, 1)
    network: Any = container(first, qnn.QBatchNorm2d(12), nn.ReLU(inplace=True), second, qnn.QBatchNorm2d(8))
    return network.to(memory_format=torch.channels_last)


def step(form: Any, network: nn.Module, x: Tensor, added: Tensor) -> list[Tensor]:
    """Output, running statistics, and gradients of both inputs and all parameters."""
    x, added = x.clone().requires_grad_(), added.clone().requires_grad_()
    y = form(x, added)
    torch.manual_seed(1)
    gradients = torch.autograd.grad(y, [x, added, *network.parameters()], torch.randn_like(y))
    return [y.detach(), *(b for b in network.buffers()), *gradients]


def images() -> tuple[Tensor, Tensor]:
    torch.manual_seed(2)
    x, added = torch.randn(5, 4, 9, 7), torch.randn(5, 8, 7, 5)
    return x.to(memory_format=torch.channels_last), added.to(memory_format=torch.channels_last)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("kernels", ["1", "0"])
def test_it_computes_what_its_layers_do(training: bool, kernels: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUERN_NATIVE", kernels)
    ours, theirs = layers(qnn.Sequential).train(training), layers(nn.Sequential).train(training)
    assert list(ours.state_dict()) == list(theirs.state_dict())
    found = step(lambda x, added: ours.forward_and_add(x, added, relu=True), ours, *images())
    wanted = step(lambda x, added: torch.relu(theirs(x) + added), theirs, *images())
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.skipif(not native.is_available(), reason="THE TRAINING KERNELS ARE NOT BUILT HERE")
def test_the_pass_is_one() -> None:
    network, (x, added) = layers(qnn.Sequential), images()
    assert "NormedConvolutions" in type(network.forward_and_add(x, added, relu=True).grad_fn).__name__
    first = network[:3]
    assert type(first) is qnn.Sequential
    assert "BatchNorm" in type(first(x).grad_fn).__name__
    assert "BatchNorm" not in type(first(x.double().float().contiguous()).relu().grad_fn).__name__


@pytest.mark.parametrize("training", [True, False])
def test_a_normalisation_by_itself(training: bool) -> None:
    layer, (_, x) = qnn.QBatchNorm2d(8).train(training), images()
    for added, relu in ((x.flip(0), True), (x.flip(0), False), (None, True), (None, False)):
        wanted = copy.deepcopy(layer)(x)
        wanted = wanted if added is None else wanted + added
        found = copy.deepcopy(layer).forward_and_add(x, added, relu)
        torch.testing.assert_close(found, torch.relu(wanted) if relu else wanted, rtol=1e-4, atol=1e-4)


def test_who_looks_at_a_layer_sees_what_it_makes() -> None:
    x, added = images()
    for watched in (1, 2):
        network, seen = layers(qnn.Sequential), []
        network[watched].register_forward_hook(lambda _, __, y, seen=seen: seen.append(y.detach().clone()))
        network.forward_and_add(x, added)
        plain = layers(nn.Sequential)
        torch.testing.assert_close(seen, [plain[: watched + 1](x).detach()], rtol=1e-4, atol=1e-4)


def test_a_layer_of_ones_own_is_called() -> None:
    class Doubled(qnn.QBatchNorm2d):
        def forward(self, input: Tensor) -> Tensor:
            return 2 * super().forward(input)

    x = images()[1]
    torch.testing.assert_close(qnn.Sequential(Doubled(8))(x), 2 * qnn.QBatchNorm2d(8)(x))


def test_torch_fx_sees_every_layer() -> None:
    network = models.small_qcnn(8, depth=2)
    wanted = {name for name, module in network.named_modules() if isinstance(module, (nn.ReLU, qnn.QBatchNorm2d))}
    for training in (True, False):
        assert wanted <= {node.target for node in trace(network, training=training).nodes}


def test_derivatives_of_derivatives() -> None:
    x, added = (t[:, :, :4, :3] for t in images())

    def twice(network: nn.Module, form: Any) -> Tensor:
        given = x.clone().requires_grad_()
        (first,) = torch.autograd.grad(form(network, given).square().sum(), given, create_graph=True)
        return torch.autograd.grad(first.square().sum(), given)[0]

    ours = layers(qnn.Sequential)
    small = added[:, :, :2, :1]
    found = twice(ours, lambda network, given: network.forward_and_add(given, small, relu=True))
    theirs = copy.deepcopy(layers(nn.Sequential))
    wanted = twice(theirs, lambda network, given: torch.relu(network(given) + small))
    torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-3)


@pytest.mark.unchecked
@pytest.mark.slow
def test_it_is_compiled_and_exported() -> None:
    network, x = layers(qnn.Sequential), images()[0]
    wanted = copy.deepcopy(network)(x)
    compiled = torch.compile(copy.deepcopy(network), fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x), wanted, rtol=1e-4, atol=1e-4)
    program = torch.export.export(network.eval(), (x,))
    torch.testing.assert_close(program.module()(x), network(x), rtol=1e-4, atol=1e-4)
    residual = models.small_qcnn(8, depth=2)
    pictures = torch.randn(3, 3, 8, 8)
    wanted = copy.deepcopy(residual)(pictures)
    compiled = torch.compile(residual, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(pictures), wanted, rtol=1e-3, atol=1e-3)
