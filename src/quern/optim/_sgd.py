"""Stochastic gradient descent with a proximal step."""

# The operations on lists of tensors are documented, in spite of their names.
# pyright: reportPrivateImportUsage=false

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from quern.optim._proximal import Parameters, Proximal, check_positive
from quern.penalties import Penalty


class ProximalSGD(Proximal):
    r"""Stochastic gradient descent with momentum, then the proximal map of ``penalty``.

    As ``torch.optim.SGD`` with the same arguments. The threshold is :math:`\eta\lambda/(1-\mu)`: with momentum a steady
    gradient moves the weights by :math:`\eta g/(1-\mu)`, and the penalty has to keep pace for λ to mean what it says.
    """

    def __init__(
        self,
        model: nn.Module,
        penalty: Penalty | None = None,
        lr: float = 1e-2,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
        *,
        params: Parameters | None = None,
    ) -> None:
        check_positive("lr", lr, zero=True)
        check_positive("weight_decay", weight_decay, zero=True)
        if not 0 <= momentum < 1:
            raise ValueError(f"momentum is {momentum}, but it must be at least 0 and below 1.")
        if nesterov and not momentum:
            raise ValueError("nesterov needs a momentum above 0.")
        defaults = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "nesterov": nesterov}
        super().__init__(model, penalty, params, defaults)

    def _move(self, group: dict[str, Any], parameters: list[Tensor]) -> tuple[float, None]:
        lr, momentum = float(group["lr"]), group["momentum"]
        directions: Any = [p.grad for p in parameters]
        if group["weight_decay"]:
            directions = torch._foreach_add(directions, parameters, alpha=group["weight_decay"])
        if momentum:
            new = [p for p in parameters if "momentum_buffer" not in self.state[p]]
            for p in new:
                self.state[p]["momentum_buffer"] = torch.zeros_like(p, memory_format=torch.preserve_format)
            buffers = [self.state[p]["momentum_buffer"] for p in parameters]
            torch._foreach_mul_(buffers, momentum)
            torch._foreach_add_(buffers, directions)
            directions = torch._foreach_add(directions, buffers, alpha=momentum) if group["nesterov"] else buffers
        torch._foreach_add_(parameters, directions, alpha=-lr)
        return lr / (1 - momentum), None

    def _rates(self, group: dict[str, Any], parameters: Sequence[Tensor]) -> tuple[float, None]:  # noqa: ARG002
        return float(group["lr"]) / (1 - group["momentum"]), None
