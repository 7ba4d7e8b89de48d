"""The running mean of a network's weights."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from quern.data import ImageSet
from quern.penalties import RQ
from quern.sparsity import measure
from quern.train import checkpoint, fit
from quern.train._average import Average
from tests.train.short_runs import SHORT, build

pytestmark = pytest.mark.filterwarnings("ignore::quern.errors.LastPathWarning")  # so short a training takes a large λ


@given(decay=st.floats(0.05, 0.999), steps=st.integers(0, 40), seed=st.integers(0, 99))
def test_it_is_the_sum_with_the_weights_of_the_formula(decay: float, steps: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    linear, norm = nn.Linear(2, 3).double(), nn.BatchNorm1d(3)
    assert norm.num_batches_tracked is not None
    model = nn.Sequential(linear, norm)
    seen = [linear.weight.detach().numpy().copy()]
    average = Average(model, decay)
    for _ in range(steps):
        linear.weight.data = torch.randn(3, 2, generator=generator, dtype=torch.float64)
        norm.num_batches_tracked.add_(1)
        average.step()
        seen.append(linear.weight.detach().numpy().copy())
    decays = [min(decay, n / (n + 9)) for n in range(1, steps + 1)]
    shares = [np.prod(decays)] + [(1 - d) * np.prod(decays[n + 1 :]) for n, d in enumerate(decays)]
    wanted = sum(share * w for share, w in zip(shares, seen, strict=True))
    assert np.isclose(sum(shares), 1)
    np.testing.assert_allclose(average.tensors["0.weight"].numpy(), wanted, rtol=1e-9, atol=1e-12)
    assert average.tensors["1.num_batches_tracked"] == steps
    with average.in_place():
        np.testing.assert_array_equal(linear.weight.detach().numpy(), average.tensors["0.weight"].numpy())
    np.testing.assert_array_equal(linear.weight.detach().numpy(), seen[-1])


def test_what_is_dead_stays_dead_in_the_mean(images: ImageSet, tmp_path: Path) -> None:
    settings = dataclasses.replace(SHORT, penalty=RQ(40.0), heal=2, ema=0.95)
    model = build(norm="after_conv")
    result = fit(model, images, settings, tmp_path)
    ground, *healed = [line.quaternion_sparsity for line in result.history[2:]]
    assert ground > 0.2
    assert healed == [ground, ground]
    assert measure(model).quaternion_sparsity == ground
    assert result.test_accuracy is not None


def test_the_mean_is_what_is_judged_and_kept(images: ImageSet, tmp_path: Path) -> None:
    model = build()
    result = fit(model, images, dataclasses.replace(SHORT, penalty=None, warmup=0, heal=0, ema=0.9), tmp_path)
    last, _ = checkpoint.load(tmp_path / "last.safetensors")
    best, _ = checkpoint.load(tmp_path / "best.safetensors")
    assert result.best_epoch == 2
    for name, value in model.state_dict().items():
        assert torch.equal(value, best[f"model.{name}"])
        assert torch.equal(value, last[f"average.{name}"])
    assert not torch.equal(last["model.0.weight"], last["average.0.weight"])


def test_a_phase_with_a_penalty_has_no_mean(images: ImageSet, tmp_path: Path) -> None:
    """Else zeros would be judged that are none."""
    fit(build(), images, dataclasses.replace(SHORT, heal=0, ema=0.9), tmp_path)
    last, _ = checkpoint.load(tmp_path / "last.safetensors")
    assert not [name for name in last if name.startswith("average.")]
