"""A network and settings that are trained in a second, and a watcher that stops a training."""

import os
from typing import Any

import torch
from torch import nn

from quern import models
from quern.penalties import RQL, GammaL1
from quern.train import Epoch, Settings


def build(seed: int = 0, **options: Any) -> nn.Sequential:
    torch.manual_seed(seed)
    return models.digits_qcnn(widths=(8, 8), **options)


SHORT = Settings(epochs=2, heal=1, warmup=1, penalty=RQL(8.0), batch=32, lr=5e-3, ramp=0.0)
COMPACTING = Settings(
    epochs=5, heal=2, penalty=GammaL1(8.0, with_beta=True), batch=32, lr=1e-2, ramp=0.0, compact_every=2
)


class Stop:
    """A watcher that sends a signal to this process after some steps."""

    def __init__(self, after: int, signal: int) -> None:
        self.left, self.signal = after, signal

    def start(self, settings: Settings, epoch: int, steps: int) -> None: ...

    def step(self, epoch: int, phase: str, step: int, steps: int, loss: float) -> None:
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), self.signal)

    def epoch(self, line: Epoch) -> None: ...

    def end(self) -> None: ...
