r"""Penalties that see a quaternion weight, or a whole neuron, as one thing: their values and their proximal maps.

With :math:`w` over the :math:`Q` quaternion weights of a network and :math:`\gamma` over the scales :math:`\Gamma` of
its quaternion batch normalisations:

=================================  ===========================================================================
``L2(λ)``                          :math:`\frac\lambda Q \sum_w |w|^2`
``L1(λ)``                          :math:`\frac\lambda Q \sum_w |w_r| + |w_i| + |w_j| + |w_k|`
``RQ(λ)``                          :math:`\frac\lambda Q \sum_w |w|`
``RQL(λ)``                         ``RQ(λ) + L1(λ)``
``GammaL1(λ)``                     :math:`\frac\lambda{|\Gamma|} \sum_\gamma |\gamma|`
``GammaL1(λ, with_beta=True)``     :math:`\frac\lambda{|\Gamma|} \sum_\gamma \sqrt{\gamma^2 + |\beta|^2}`
``NeuronNorm(λ)``                  :math:`\frac\lambda N \sum_n \sqrt{d_n}\,|W_n|`
=================================  ===========================================================================

``normalize=False`` leaves out the :math:`1/Q` or :math:`1/|\Gamma|`. Penalties add up: ``RQ(1e-2) + GammaL1(1e-3)``.
Those of weights take ``by_cost``, which weighs each quaternion by the multiply-adds that it costs when the network runs
(:class:`OfWeights` has the formula)::

    penalty = RQ(50.0, by_cost=0.5).weighed(model, example)

``GammaL1`` and ``NeuronNorm`` also act on networks without quaternions, on the scales of torch's batch normalisations
and on neurons of real numbers. Else biases and real-valued layers are left out, and so are parameters that are not
trained (``requires_grad`` is False).

Use one as a term of the loss, ``loss + penalty(model)``, with any optimizer; or give it to an optimizer of
:mod:`quern.optim`, which applies its proximal map and so reaches exact zeros.

A penalty of your own is a class: sums, optimizers and records take it as they take ours. ``maps`` are those below, or
a :class:`ProximalMap` of your own::

    class ElasticNet(OfWeights):
        maps = (COMPONENTS, SQUARES)
"""

from quern.penalties._maps import COMPONENTS, GROUPS, SQUARES, NeuronTarget, ProximalMap, Shrinking, Target, shrink_
from quern.penalties._terms import L1, L2, RQ, RQL, GammaL1, NeuronNorm, OfScales, OfWeights, Penalty, Sum, Term

__all__ = ["COMPONENTS", "GROUPS", "L1", "L2", "RQ", "RQL", "SQUARES", "GammaL1", "OfScales", "OfWeights", "Penalty"]
__all__ += ["NeuronNorm", "NeuronTarget", "ProximalMap", "Shrinking", "Sum", "Target", "Term", "shrink_"]
