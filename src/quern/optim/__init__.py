r"""Optimizers that apply the proximal map of a penalty after every step, and so reach exact zeros.

A penalty under plain gradient descent only makes weights small. A proximal step minimises the penalty and the distance
to where the gradient step led, measured as the optimizer measures it; for the penalties of :mod:`quern.penalties` the
answer is a threshold: what lies below it becomes zero. The fixed points are those of the penalised loss, whatever the
optimizer, so one λ means the same for all of them.

    optimizer = ProximalAdam(model, RQL(0.1), lr=2e-3)
    ...                                                   # an ordinary loop: loss.backward(), optimizer.step()
    with freeze_zeros(model):                             # "healing", fine-tuning what is left: the zeros stay
        ...
"""

from quern.optim._adam import ProximalAdam
from quern.optim._frozen_zeros import FrozenZeros, freeze_zeros
from quern.optim._ramp import ramp
from quern.optim._sgd import ProximalSGD

__all__ = ["FrozenZeros", "ProximalAdam", "ProximalSGD", "freeze_zeros", "ramp"]
