"""Which form of the product is fastest where: the measurements behind ``products.choose_conv_form`` and its kin.

    python benchmarks/forms.py [--repeats N]

Each line has three groups: a forward pass that expands the weight, one that has it in a layer's cache, and both ways as
in training. In a group stand the times of the Hadamard and the stacked form, and of Winograd's where it can be had,
block form = 1, interleaved and channels_last: the smallest number, or 1, is the fastest form. The last word is what
the choosing function picks.
"""

import argparse
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from quern import functional
from quern.functional import native, products
from quern.functional.products import Form
from quern.functional.weight_cache import WeightCache
from timing import host, medians

CPU = torch.device("cpu")
FORMS: tuple[Form, ...] = ("block", "hadamard", "stacked")
WAYS = ("expanded", "kept", "both ways")

Product = Callable[[WeightCache | None], Tensor]


def ratios(product: Product, chooser: str, forms: tuple[Form, ...], way: str, repeats: int) -> str:
    original = getattr(products, chooser)

    def call(form: Form, cache: WeightCache | None) -> None:
        setattr(products, chooser, lambda *_: form)
        with torch.set_grad_enabled(way == "both ways"):
            y = product(cache)
        if way == "both ways":
            y.backward(torch.ones_like(y))

    try:
        calls = {form: partial(call, form, WeightCache() if way == "kept" else None) for form in forms}
        seconds = medians(calls, repeats)
    finally:
        setattr(products, chooser, original)
    return " ".join(f"{seconds[form] / seconds['block']:5.2f}" for form in forms[1:])


def convolution(channels: int, size: int, batch: int, kernel: int, groups: int) -> Product:
    weight = nn.Parameter(torch.randn(4, channels, channels // groups, kernel, kernel))
    x = torch.randn(batch, 4 * channels, size, size).to(memory_format=torch.channels_last).requires_grad_()
    return lambda cache: functional.conv(x, weight, padding=kernel // 2, groups=groups, cache=cache)


def linear(features: int, rows: int) -> Product:
    weight = nn.Parameter(torch.randn(4, features, features))
    x = torch.randn(rows, 4 * features, requires_grad=True)
    return lambda cache: functional.linear(x, weight, cache=cache)


def line(title: str, product: Product, chooser: str, forms: tuple[Form, ...], picked: Form, repeats: int) -> None:
    cells = (ratios(product, chooser, forms, way, repeats) for way in WAYS)
    print(f"  {title}: {' | '.join(cells)}  {picked}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=7)
    repeats = parser.parse_args().repeats
    torch.set_num_threads(2)
    print(host())
    for kernel, groups in ((3, 1), (1, 1), (5, 1), (3, 4)):
        minimal: Form | None = "winograd" if (kernel, groups) == (3, 1) and native.is_available() else None
        forms = FORMS if minimal is None else (*FORMS, minimal)
        print(f"\nconvolution {kernel}x{kernel}, groups={groups}: {' | '.join(WAYS)}")
        for channels in (8, 16, 32, 64, 128, 256, 512)[: 5 if kernel == 5 else 7]:
            for size, batch in ((4, 1), (4, 4), (8, 2), (8, 4), (8, 16), (8, 128), (16, 64)):
                positions = batch * size**2
                if channels**2 // groups * kernel**2 * positions > 1 << 32:  # seconds each, and the choice is plain
                    continue
                line(
                    f"{channels:4d} quaternions, {size:2d}x{size:<2d} batch {batch:3d}",
                    convolution(channels, size, batch, kernel, groups),
                    "choose_conv_form",
                    forms,
                    products.choose_conv_form(CPU, channels, channels, groups, kernel**2, positions, minimal),
                    repeats,
                )
    print(f"\nlinear: {' | '.join(WAYS)}")
    for features in (32, 64, 128, 256, 512, 1024):
        for rows in (1, 4, 16, 32, 128, 512, 2048):
            line(
                f"{features:4d} quaternions, {rows:4d} rows",
                linear(features, rows),
                "choose_linear_form",
                FORMS,
                products.choose_linear_form(CPU, features, features, rows),
                repeats,
            )


if __name__ == "__main__":
    main()
