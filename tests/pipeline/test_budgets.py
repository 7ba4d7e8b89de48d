"""Budgets that no network can meet are refused, and no others."""

import pytest
import torch
from torch import nn

from quern import models
from quern import nn as qnn
from quern.compact import plan
from quern.errors import TrainingError
from quern.penalties import RQ, GammaL1, Penalty
from quern.pipeline._budgets import check_budget
from quern.records import Budget
from tests.small_tasks import shallow


@pytest.mark.slow
@pytest.mark.parametrize("penalty", [GammaL1(1.0), GammaL1(1.0, with_beta=True), RQ(1.0)], ids=repr)
@pytest.mark.parametrize("builder", ["digits", "residual", "shallow"])
def test_what_is_refused_is_what_cannot_be(builder: str, penalty: Penalty) -> None:
    """The least that is accepted is what is left when the penalty does all it can without killing the network: fewer
    parameters than by killing neurons one by one, in any order, there never are."""
    torch.manual_seed(0)
    net, x = {
        "digits": lambda: (models.digits_qcnn(norm="after_conv"), torch.randn(2, 1, 8, 8)),
        "residual": lambda: (models.qresnet20(widths=(8, 8, 16)), torch.randn(2, 3, 8, 8)),
        "shallow": lambda: (shallow(hidden=16), torch.randn(2, 1, 8, 8)),
    }[builder]()
    for p in net.parameters():
        p.data = torch.randn_like(p)  # biases and shifts too, as training leaves them
    with pytest.raises(TrainingError, match="the smallest network that can come of this one has") as refused:
        check_budget(Budget(max_params=1), net, penalty, x)
    least = int(str(refused.value).split(" has ")[1].split(", with")[0].replace(",", ""))
    check_budget(Budget(max_params=least), net, penalty, x)
    with pytest.raises(TrainingError):
        check_budget(Budget(max_params=least - 1), net, penalty, x)
    random = torch.Generator().manual_seed(1)
    for target in penalty.targets(net):
        for p in target.parameters:
            neurons = p if p.dim() == 1 else p.transpose(0, 1)
            neurons.data[torch.randperm(len(neurons), generator=random)[1:]] = 0
    found = plan(net, x)
    assert found.dead or found.parameters[1] >= least


def test_layers_of_which_the_least_is_not_known_are_not_refused() -> None:
    net = nn.Sequential(qnn.QEmbedding(7, 16), qnn.QLinear(16, 8))
    check_budget(Budget(max_params=1), net, RQ(1.0), torch.zeros(2, 3, dtype=torch.long))
