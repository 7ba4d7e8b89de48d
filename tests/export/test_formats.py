"""Every builder network, as built and compacted, through every format: file, torch, .pt2, ONNX, ONNX in 8 bits."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from quern import io, models
from quern import nn as qnn
from quern.compact import compact
from quern.export import accuracy, to_int8, to_onnx, to_pt2, to_real
from tests.builders import images_for, normed


@torch.no_grad()
def dying(name: str) -> nn.Module:
    """A network with statistics as after training, and a third of its neurons dead: half of those with a β left."""
    torch.manual_seed(1)
    network = normed(name)
    norms = [layer for layer in network.modules() if isinstance(layer, (qnn.QBatchNorm2d, nn.BatchNorm2d))]
    for layer in norms:
        scale, shift = (t for t in (layer.weight, layer.bias) if t is not None)
        scale.uniform_(0.5, 1.5)
        shift.normal_(0, 0.3)
        scale[::3] = 0
        shift[..., ::6] = 0
        layer.momentum = 1.0  # the statistics of one batch, so that something of the image reaches the end
    network.train()(images_for(name, 16))
    for layer in norms:
        layer.momentum = 0.1
    return network.eval()


@pytest.mark.slow
@pytest.mark.parametrize("compacted", [False, True], ids=["dense", "compacted"])
@pytest.mark.parametrize("name", models.BUILDERS)
def test_every_format_gives_the_scores_of_the_network(name: str, compacted: bool, tmp_path: Path) -> None:
    x = images_for(name, 6)
    network = dying(name)
    with torch.no_grad():
        wanted = network(x)
    if compacted:
        small = compact(network, x)
        sizes = [sum(p.numel() for p in m.parameters()) for m in (small, network)]
        assert sizes[0] < 0.9 * sizes[1]
        network = small

    def close(found: Tensor) -> None:
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4 * float(wanted.abs().max()))

    with torch.no_grad():
        close(network(x))
        io.save(network, tmp_path / "model.safetensors")
        torch.testing.assert_close(io.load(tmp_path / "model.safetensors")(x), network(x), rtol=0, atol=0)
        close(to_real(network)(x))
        to_pt2(network, tmp_path / "model.pt2", x)
        close(torch.export.load(tmp_path / "model.pt2").module()(x))
    report = to_onnx(network, tmp_path / "model.onnx", x)  # compared there
    assert report.difference <= 1e-4
    assert report.batches == (1, 3, 6)
    labels = wanted.argmax(1)
    assert accuracy(tmp_path / "model.onnx", x, labels) == 1
    small_numbers = to_int8(tmp_path / "model.onnx", tmp_path / "int8.onnx", x)
    if report.bytes > 50_000:  # below, what onnxruntime adds for each tensor is more than what the weights give up
        assert small_numbers.bytes < report.bytes
    assert accuracy(tmp_path / "int8.onnx", x, labels) >= 0.5  # random scores are close to each other
