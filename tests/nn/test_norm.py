"""What is particular to normalisation: statistics, identity covariance, batches of one."""

import pytest
import torch
from torch import Tensor, nn

from quern import nn as qnn


def components(x: Tensor) -> Tensor:
    """(batch, 4*C, ...) to (4, C, everything else)."""
    return x.unflatten(1, (4, -1)).movedim(0, 2).flatten(2)


def test_batch_norm_gives_zero_mean_and_unit_quaternion_variance() -> None:
    x = torch.randn(50, 8, 4, 4) * torch.rand(8, 1, 1) * 3 + torch.randn(8, 1, 1)
    q = components(qnn.QBatchNorm2d(8)(x))
    torch.testing.assert_close(q.mean(2), torch.zeros(4, 2), atol=1e-5, rtol=0)
    torch.testing.assert_close(q.square().sum(0).mean(1), torch.ones(2), atol=1e-3, rtol=0)


def test_batch_norm_commutes_with_a_scaling_and_keeps_directions() -> None:
    norm = qnn.QBatchNorm1d(4, affine=False, eps=0.0)
    x = torch.randn(100, 4, dtype=torch.float64)
    torch.testing.assert_close(norm(3 * x), norm(x))
    centred = x - x.mean(0)
    ratio = norm(x) / centred
    torch.testing.assert_close(ratio, ratio[0, 0].expand_as(ratio))


@pytest.mark.parametrize("momentum", [0.1, None])
@pytest.mark.parametrize("make", [qnn.QBatchNorm2d, qnn.QWhiteningBatchNorm2d], ids=["batch_norm", "whitening"])
def test_running_statistics_follow_as_in_torch(make, momentum: float | None) -> None:
    """Against torch's own batch norm, whose per-channel variances are the diagonal of the covariance."""
    ours = make(8, momentum=momentum, dtype=torch.float64)
    theirs = nn.BatchNorm2d(8, momentum=momentum, dtype=torch.float64)
    x = torch.empty(0)
    for _ in range(3):
        x = torch.randn(4, 8, 3, 3, dtype=torch.float64) * 2 + 1
        ours(x)
        theirs(x)
    assert theirs.running_mean is not None
    assert theirs.running_var is not None
    torch.testing.assert_close(ours.running_mean.flatten(), theirs.running_mean)
    variances = theirs.running_var.view(4, 2)
    if isinstance(ours, qnn.QBatchNorm2d):
        start = 0.0 if momentum is None else (1 - momentum) ** 3  # the initial 1 is one per neuron, not per component
        torch.testing.assert_close(ours.running_var, variances.sum(0) - 3 * start)
    else:
        torch.testing.assert_close(ours.running_cov.diagonal().T, variances)
    assert int(ours.num_batches_tracked) == 3
    assert ours.eval()(x[:1]).shape == x[:1].shape


def test_eval_does_not_touch_the_statistics() -> None:
    norm = qnn.QBatchNorm2d(8).eval()
    before = {k: v.clone() for k, v in norm.state_dict().items()}
    norm(torch.randn(3, 8, 2, 2))
    assert all(torch.equal(before[k], v) for k, v in norm.state_dict().items())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_whitening_makes_the_covariance_the_identity(dtype: torch.dtype) -> None:
    turn, _ = torch.linalg.qr(torch.randn(3, 4, 4, dtype=dtype))
    mix = (turn * torch.tensor([0.2, 1.0, 2.0, 5.0], dtype=dtype)).permute(1, 2, 0)
    source = torch.randn(400, 4, 3, 5, 5, dtype=dtype)
    x = torch.einsum("pqc,nqchw->npchw", mix, source).flatten(1, 2) + torch.randn(12, 1, 1, dtype=dtype)
    norm = qnn.QWhiteningBatchNorm2d(12, momentum=None, dtype=dtype)
    for training in (True, False):  # the batch's own statistics, then the running ones
        q = components(norm.train(training)(x))
        q = q - q.mean(2, keepdim=True)
        covariance = torch.einsum("pcn,qcn->cpq", q, q) / q.shape[2]
        torch.testing.assert_close(covariance, torch.eye(4, dtype=dtype).expand(3, 4, 4), atol=1e-3, rtol=0)


def test_whitening_survives_components_that_are_always_zero() -> None:
    x = qnn.encode_gray(torch.randn(6, 2, 3, 3)).requires_grad_()
    y = qnn.QWhiteningBatchNorm2d(8)(x)
    y.square().sum().backward()
    assert y.isfinite().all()
    assert x.grad is not None
    assert x.grad.isfinite().all()


@pytest.mark.parametrize("make", [qnn.QBatchNorm2d, qnn.QWhiteningBatchNorm2d])
def test_refusals(make) -> None:
    with pytest.raises(ValueError, match="num_features is 6"):
        make(6)
    with pytest.raises(ValueError, match=r"takes \(batch, 8, ...\) with 4 axes"):
        make(8)(torch.ones(2, 4, 3, 3))
    with pytest.raises(ValueError, match="more than one value per neuron"):
        make(8)(torch.ones(1, 8, 1, 1))


def test_layer_norm_does_not_see_the_rest_of_the_batch() -> None:
    norm, x = qnn.QLayerNorm(8), torch.randn(5, 3, 8)
    torch.testing.assert_close(norm(x)[2:3], norm(x[2:3]))
    with pytest.raises(ValueError, match="last axes"):
        norm(torch.ones(2, 12))
    with pytest.raises(ValueError, match="at least the axis"):
        qnn.QLayerNorm(())


def test_fixed_scale_has_no_gamma() -> None:
    assert set(dict(qnn.QBatchNorm2d(8, fixed_scale=True).named_parameters())) == {"bias"}
    assert set(dict(qnn.QBatchNorm2d(8, bias=False).named_parameters())) == {"weight"}
    assert set(dict(qnn.QWhiteningBatchNorm2d(8, bias=False).named_parameters())) == {"weight"}
    assert "fixed_scale=True" in repr(qnn.QBatchNorm2d(8, fixed_scale=True))


def test_per_sample_gradients_see_through_batch_norm_in_eval() -> None:
    norm = qnn.QBatchNorm1d(8).eval()
    x = torch.randn(3, 8)

    def loss(weights: dict[str, Tensor], sample: Tensor) -> Tensor:
        return torch.func.functional_call(norm, weights, (sample.unsqueeze(0),)).square().sum()

    weights = {k: v.detach() for k, v in norm.named_parameters()}
    found = torch.func.vmap(torch.func.grad(loss), (None, 0))(weights, x)
    assert found["weight"].shape == (3, 2)
    total = torch.func.grad(lambda w: torch.func.functional_call(norm, w, (x,)).square().sum())(weights)
    torch.testing.assert_close(found["bias"].sum(0), total["bias"])


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    "make", [lambda: qnn.QBatchNorm2d(8), lambda: qnn.QWhiteningBatchNorm2d(8), lambda: qnn.QLayerNorm(8)]
)
def test_half_precision_in_and_out(make, dtype: torch.dtype, training: bool) -> None:
    """Under autocast, with half precision parameters, and with half precision inputs only."""
    x = torch.randn(4, 8, 6, 8) * (100 if training else 1)
    wanted = make().train(training)(x)
    half = x.to(dtype)
    with torch.autocast("cpu", dtype):
        found = [make().train(training)(half)]
    found += [make().train(training)(half), make().to(dtype).train(training)(half)]
    for y in found:
        assert y.dtype == dtype
        torch.testing.assert_close(y.float(), wanted, rtol=0.05, atol=0.05)


def test_whitening_of_large_degenerate_inputs() -> None:
    """Four equal components have a covariance of rank one, at any scale."""
    x = torch.randn(8, 1, 6, 6).repeat(1, 4, 1, 1)
    for scale in (1e-3, 1.0, 30.0, 1e4):
        assert qnn.QWhiteningBatchNorm2d(4)(scale * x).isfinite().all()


def test_an_empty_batch_leaves_the_statistics_alone() -> None:
    norm = qnn.QBatchNorm2d(8)
    assert norm(torch.ones(0, 8, 3, 3)).shape == (0, 8, 3, 3)
    assert torch.equal(norm.get_buffer("running_var"), torch.ones(2))
    whitening = qnn.QWhiteningBatchNorm2d(8)
    before = {name: t.clone() for name, t in whitening.named_buffers()}
    assert whitening(torch.ones(0, 8, 3, 3)).shape == (0, 8, 3, 3)
    for name in ("running_mean", "running_cov"):
        assert torch.equal(whitening.get_buffer(name), before[name])
