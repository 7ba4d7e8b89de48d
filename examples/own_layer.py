"""Make a layer of your own known to quern: then it is penalised, measured, compacted, folded and exported like any.

Run it with ``python examples/own_layer.py``. It takes a few seconds, and prints how the network becomes small.
"""

from typing import Any

import torch
from torch import Tensor, nn

from quern import compact, functional, graph
from quern import nn as qnn
from quern.export import to_real
from quern.functional.products import block_weight
from quern.graph.layers.bases import Apart, real_layer
from quern.graph.layers.linear import Linear
from quern.graph.spec import take
from quern.optim import ProximalAdam
from quern.penalties import RQ
from quern.sparsity import measure


class Squash(nn.Module):
    """An activation: x / (1 + |x|) for each real channel."""

    def forward(self, x: Tensor) -> Tensor:
        return x / (1 + x.abs())


class QGainLinear(qnn.QLinear):
    """A quaternion linear layer with a real gain for each neuron: y = g (W ⊗ x) + b."""

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__(in_features, out_features)
        self.gain = nn.Parameter(torch.ones(out_features // 4))

    def forward(self, input: Tensor) -> Tensor:
        assert self.bias is not None
        return functional.linear(input, self.weight) * self.gain.repeat(4) + self.bias.flatten()


class GainSpec(Linear):
    """What is different from a linear layer: a neuron with gain 0 is a constant, and gains go with their neurons."""

    def scales(self, layer: Any) -> tuple[str, ...]:
        return ("gain",)

    def edges(self, layer: Any) -> Tensor:
        return super().edges(layer) & (layer.gain != 0).cpu().unsqueeze(1)

    def pushed(self, layer: Any, numbers: Tensor) -> Tensor:
        return super().pushed(layer, numbers) * layer.gain

    def selections(self, layer: Any, plan: graph.LayerPlan) -> dict[str, Any]:
        return super().selections(layer, plan) | {"gain": take(0, plan.left[1])}

    def shapes(self, layer: Any, ins: int | None, outs: int | None, constants: bool) -> dict[str, Any] | None:
        return (super().shapes(layer, ins, outs, constants) or {}) | {"gain": (outs,)}

    def to_real(self, writer: Any, name: str, layer: Any, input: Any) -> Any:
        def build() -> nn.Module:
            weight = block_weight(layer.weight * layer.gain.unsqueeze(1))
            sizes = (layer.in_features, layer.out_features)
            return real_layer(nn.Linear, *sizes, weight=weight, bias=layer.bias.flatten())

        return writer.call(name, build, input)


graph.register(Squash, Apart())  # each output channel depends on the same input channel alone
graph.register(QGainLinear, GainSpec(4))


def network() -> nn.Sequential:
    return nn.Sequential(
        *(QGainLinear(16, 64), qnn.QBatchNorm1d(64), Squash()),
        *(QGainLinear(64, 64), qnn.QBatchNorm1d(64), Squash(), nn.Linear(64, 2)),
    )


def main(steps: int = 150) -> dict[str, float]:
    """Train under a penalty, then make the network small; returns what was left and how far the outputs are."""
    torch.manual_seed(0)
    model, x = network(), torch.randn(256, 16)
    wanted = torch.stack([x[:, 0] * x[:, 1], x[:, 2].abs()], 1)
    optimizer = ProximalAdam(model, RQ(30.0), lr=1e-2)
    for _ in range(steps):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), wanted).backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        model[3].gain[:4] = 0  # as good as no weights
    size = measure(model, x)
    plan = compact.plan(model, x)
    small = compact.compact(model, plan)
    real = to_real(compact.fold(small), x)
    print(RQ(30.0).describe(model), size, plan, real, sep="\n\n")
    with torch.no_grad():
        gaps = {name: float((net(x) - model(x)).abs().max()) for name, net in (("small", small), ("real", real))}
    return {
        "zero_quaternions": size.quaternion_sparsity,
        "dead_neurons": size.neurons - size.neurons_left,
        "removed_neurons": plan.neurons[0] - plan.neurons[1],
        "parameters": size.parameters,
        "parameters_left": sum(p.numel() for p in small.parameters()),
        **gaps,
    }


if __name__ == "__main__":
    main()
