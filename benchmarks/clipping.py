"""What clipping, accumulation and autocast do to λ: zeros and validation accuracy of one short grinding, done in
several ways. ``python -m benchmarks.clipping --json FILE`` keeps what docs/training.md says."""

import argparse
import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from quern import data, models
from quern._files import write_text
from quern.bench.machine import facts
from quern.errors import LastPathWarning
from quern.optim import ProximalAdam, ramp
from quern.penalties import RQL
from quern.sparsity import measure

EPOCHS, RISING, BATCH, LR, LAMBDA, SEED = 8, 4, 64, 5e-3, 30.0, 0
Clip = Callable[[ProximalAdam, nn.Module], Any]


def by_torch(norm: float) -> Clip:
    return lambda _, network: nn.utils.clip_grad_norm_(network.parameters(), norm)


def by_optimizer(norm: float) -> Clip:
    return lambda optimizer, _: optimizer.clip_grad_norm_(norm)


WAYS: dict[str, dict[str, Any]] = {
    "as it is": {},
    **{f"torch.nn.utils.clip_grad_norm_ at {norm:g}": {"clip": by_torch(norm)} for norm in (1, 0.1)},
    **{f"optimizer.clip_grad_norm_ at {norm:g}": {"clip": by_optimizer(norm)} for norm in (1, 0.1, 0.01)},
    "4 parts accumulated, mean of their losses": {"parts": 4, "mean": True},
    "4 parts accumulated, sum of their losses": {"parts": 4},
    "autocast to bfloat16": {"autocast": True},
}


def grind(clip: Clip | None = None, parts: int = 1, mean: bool = False, autocast: bool = False) -> dict[str, Any]:
    """One grinding of the network for digits; what it came to."""
    torch.manual_seed(SEED)
    digits, network = data.digits(), models.digits_qcnn()
    optimizer = ProximalAdam(network, RQL(LAMBDA), lr=LR)
    x, y = digits.normalize(digits.train.pixels), digits.train.labels

    def loss(chosen: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            scores = network(x[chosen])
        return nn.functional.cross_entropy(scores.float(), y[chosen])

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for epoch in range(EPOCHS):
            optimizer.scale_penalty(ramp(epoch + 1, RISING))
            for batch in torch.randperm(len(x)).split(BATCH):
                if len(batch) < BATCH:
                    continue
                optimizer.zero_grad()
                for part in batch.chunk(parts):
                    (loss(part) / (parts if mean else 1)).backward()
                if clip is not None:
                    clip(optimizer, network)
                optimizer.step()
    network.eval()
    with torch.no_grad():
        right = network(digits.normalize(digits.val.pixels)).argmax(1) == digits.val.labels
    return {
        "quaternion_sparsity": measure(network).quaternion_sparsity,
        "val_accuracy": float(right.float().mean()),
        "warned": any(issubclass(warning.category, LastPathWarning) for warning in caught),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rows = {}
    for name, options in WAYS.items():
        rows[name] = grind(**options)
        print(f"{name:<45}{100 * rows[name]['quaternion_sparsity']:>7.1f} % zero", end="")
        print(f"{100 * rows[name]['val_accuracy']:>7.1f} % right{', warned' if rows[name]['warned'] else ''}")
    if arguments.json:
        settings = {"epochs": EPOCHS, "rising": RISING, "batch": BATCH, "lr": LR, "penalty": f"RQL({LAMBDA:g})"}
        record = {"data": "digits", "seed": SEED, "settings": settings, "environment": facts(), "rows": rows}
        write_text(arguments.json, json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
