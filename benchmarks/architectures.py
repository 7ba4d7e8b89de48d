"""Public architectures through everything: converted, trained for a step, compacted exactly, exported, packed.

    pip install --no-deps pytorchcv==0.0.74
    python benchmarks/architectures.py                     # all; writes benchmarks/architectures.json
    python benchmarks/architectures.py resnet unet         # some, without a record

The architectures are those of pytorchcv as they stand, at their own widths, for images that are as small as they take,
with 12 classes, or 100 where an architecture is one for CIFAR. ``keep`` names parts that stay real because their widths
are no multiples of 4. None of it is needed to use quern. A step that fails is named with the reason, and the steps
behind it are not tried.
"""

import gc
import importlib
import json
import sys
import sysconfig
import tempfile
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from quern._files import replacing
from quern.compact import compact
from quern.convert import conversion
from quern.export import to_onnx, to_packed
from quern.graph.listing import neurons
from quern.graph.spec import spec_of

STEPS = ("converts", "trains", "compacts", "onnx", "packs")
CLASSES = 12


@dataclass(frozen=True)
class Architecture:
    name: str
    file: str
    function: str
    size: int
    options: dict[str, Any] = field(default_factory=dict)
    keep: tuple[str, ...] = ()

    def build(self) -> nn.Module:
        module = importlib.import_module(f"pytorchcv.models.{self.file}")
        torch.manual_seed(0)
        classes = {} if self.function.endswith("_cifar100") else {"num_classes": CLASSES}
        own = classes | ({"in_size": (self.size, self.size)} if self.size else {})
        return getattr(module, self.function)(**own | self.options)


def _a(name: str, file: str, function: str, size: int, **more: Any) -> Architecture:
    return Architecture(name, file, function, size, **more)


ARCHITECTURES = [
    _a("AlexNet", "alexnet", "alexnet", 224),
    _a("VGG-11", "vgg", "vgg11", 224),
    _a("ResNet-20", "resnet_cifar", "resnet20_cifar100", 32),
    _a("PreResNet-20", "preresnet_cifar", "preresnet20_cifar100", 32),
    _a("ResNeXt-29 (16x64d)", "resnext_cifar", "resnext29_16x64d_cifar100", 32),
    _a("SE-ResNet-20", "seresnet_cifar", "seresnet20_cifar100", 32, keep=("*.se.conv*",)),
    _a("WRN-16-10", "wrn_cifar", "wrn16_10_cifar100", 32),
    _a("DenseNet-40-BC (k=24)", "densenet_cifar", "densenet40_k24_bc_cifar100", 32),
    _a("PyramidNet-110 (a=48)", "pyramidnet_cifar", "pyramidnet110_a48_cifar100", 32),
    _a("NIN", "nin_cifar", "nin_cifar100", 32),
    _a("RiR", "rir_cifar", "rir_cifar100", 32),
    _a("DIA-ResNet-20", "diaresnet_cifar", "diaresnet20_cifar100", 32),
    _a("ResNet-18", "resnet", "resnet18", 224),
    _a("ResNet-D-50b", "resnetd", "resnetd50b", 224),
    _a("CBAM-ResNet-18", "cbamresnet", "cbam_resnet18", 224, keep=("*.sp_gate",)),
    _a("BAM-ResNet-18", "bamresnet", "bam_resnet18", 224, keep=("*.sp_att",)),
    _a("DarkNet-Tiny", "darknet", "darknet_tiny", 224),
    _a("SqueezeNet 1.1", "squeezenet", "squeezenet_v1_1", 224),
    _a("SqueezeNext-23 (w1)", "squeezenext", "sqnxt23_w1", 224),
    _a("MobileNet (w0.25)", "mobilenet", "mobilenet_wd4", 224),
    _a("MobileNetV2 (w0.25)", "mobilenetv2", "mobilenetv2_wd4", 224),
    _a("MobileNetV2", "mobilenetv2", "mobilenetv2_w1", 224),
    _a("MobileNetV3 small", "mobilenetv3", "mobilenetv3_small_w1", 224),
    _a("ShuffleNet (g=1)", "shufflenet", "shufflenet_g1_w1", 224),
    _a("ShuffleNetV2b (w0.5)", "shufflenetv2b", "shufflenetv2b_wd2", 224),
    _a("MnasNet small", "mnasnet", "mnasnet_small", 224, keep=("*.se",)),
    _a("EfficientNet-B0", "efficientnet", "efficientnet_b0", 224, keep=("*.se",)),
    _a("GhostNet", "ghostnet", "ghostnet", 224, keep=("*.se",)),
    _a("PeleeNet", "peleenet", "peleenet", 224),
    _a("VoVNet-27s", "vovnet", "vovnet27s", 224),
    _a("HarDNet-39DS", "hardnet", "hardnet39ds", 224),
    _a("RegNetX-200MF", "regnet", "regnetx002", 224),
    _a("DLA-34", "dla", "dla34", 224),
    _a("BN-Inception", "bninception", "bninception", 224),
    _a("ERFNet", "erfnet", "erfnet_cityscapes", 128, keep=("encoder.stage1.unit1",)),
    _a("SegNet", "segnet", "segnet_cityscapes", 64),
    _a("LinkNet", "linknet", "linknet_cityscapes", 128),
    _a("U-Net", "unet", "unet_cityscapes", 64),
    _a("Fast-SCNN", "fastscnn", "fastscnn_cityscapes", 128),
]


@dataclass
class Row:
    name: str
    function: str
    keep: tuple[str, ...] = ()
    parameters: int = 0
    quaternion_parameters: int = 0
    left: int = 0
    rewritten: int = 0
    steps: list[str] = field(default_factory=list)
    failed: str = ""
    reason: str = ""


def _count(network: nn.Module) -> int:
    return sum(p.numel() for p in network.parameters())


def _first(output: Any) -> torch.Tensor:
    return output if isinstance(output, torch.Tensor) else output[0]


@torch.no_grad()
def _thin(network: nn.Module) -> None:
    """A third of the neurons of layers in front of others die, as grinding leaves them."""
    generator = torch.Generator().manual_seed(1)
    layer: Any
    for layer in network.modules():
        spec = spec_of(layer)
        if spec.components == 4 and spec.neurons(layer) > 4 and list(spec.weights(layer)) == ["weight"]:
            dead = torch.rand(layer.weight.shape[1], generator=generator) < 1 / 3
            layer.weight[:, dead] = 0
            if getattr(layer, "bias", None) is not None:
                layer.bias[:, dead] = 0


def run(architecture: Architecture) -> Row:
    row = Row(architecture.name, f"{architecture.file}.{architecture.function}", architecture.keep)
    step = "converts"
    try:
        real = architecture.build()
        row.parameters = _count(real)
        x = torch.randn(2, 3, architecture.size, architecture.size, generator=torch.Generator().manual_seed(0))
        done = conversion(real, architecture.keep, example=x)
        network = done.network
        row.quaternion_parameters = _count(network)
        row.rewritten = sum(len(r.names) for r in done.rows if r.why == "in forward")
        assert neurons(network) > 0
        row.steps.append(step)
        step = "trains"
        network.train()
        optimizer = torch.optim.SGD(network.parameters(), 1e-3)
        _first(network(x)).square().mean().backward()
        grads = [p.grad for p in network.parameters() if p.grad is not None]
        if not grads or not all(bool(g.isfinite().all()) for g in grads):
            raise RuntimeError("gradients are not finite")
        optimizer.step()
        row.steps.append(step)
        step = "compacts"
        network.zero_grad()
        network.eval()
        _thin(network)
        with torch.no_grad():
            wanted = _first(network(x))
        small = compact(network, x)
        row.left = _count(small)
        with torch.no_grad():
            torch.testing.assert_close(_first(small(x)), wanted, rtol=1e-3, atol=1e-4 * float(wanted.abs().max()))
        row.steps.append(step)
        with tempfile.TemporaryDirectory() as folder:
            step = "onnx"
            to_onnx(small, Path(folder) / "network.onnx", x)
            row.steps.append(step)
            step = "packs"
            to_packed(small, Path(folder) / "network.qrn", x)
            row.steps.append(step)
    except Exception as reason:  # the point is to say what fails
        row.failed = step
        words = " ".join(str(reason).split()).replace(f"{sysconfig.get_path('purelib')}/", "")
        row.reason = words[:300] or type(reason).__name__
    return row


def table(rows: list[dict[str, Any]]) -> str:
    """The record as the page of the documentation shows it."""
    lines = [
        "| architecture | stays real (`keep=`) | parameters | of quaternions | rewritten functions | goes through |"
    ]
    lines.append("|---|---|---:|---:|---:|---|")
    for row in rows:
        keep = ", ".join(f"`{name}`" for name in row["keep"])
        converted = f"{row['quaternion_parameters']:,}" if row["steps"] else ""
        rewritten = str(row["rewritten"] or "") if row["steps"] else ""
        if len(row["steps"]) == len(STEPS):
            through = "all"
        else:
            kind = _short(row["reason"])
            through = f"{', '.join(row['steps']) or 'nothing'}: {kind}"
        lines.append(f"| {row['name']} | {keep} | {row['parameters']:,} | {converted} | {rewritten} | {through} |")
    return "\n".join(lines) + "\n"


def _short(reason: str) -> str:
    """The kind of a refusal, without the names of layers."""
    sentence = reason.removeprefix("cannot convert the network. ").removeprefix("cannot convert the network, because ")
    return sentence.split(": ")[0].rstrip(".")


def main() -> int:
    torch.set_num_threads(1)
    wanted = sys.argv[1:]
    rows = []
    for architecture in ARCHITECTURES:
        if wanted and not any(word in architecture.function for word in wanted):
            continue
        row = run(architecture)
        rows.append(row)
        gc.collect()
        print(f"{row.name:28}{' '.join(row.steps):45}{row.reason}", flush=True)
    through = sum(len(row.steps) == len(STEPS) for row in rows)
    print(f"{through} of {len(rows)} go all the way")
    if not wanted:
        record = {"torch": torch.__version__, "pytorchcv": "0.0.74", "rows": [asdict(row) for row in rows]}
        with replacing(Path(__file__).with_suffix(".json")) as path:
            path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return through


if __name__ == "__main__":
    main()
