"""Where the Hadamard form beats the block form: the measurements behind ``products.choose_conv_form`` and its kin.

    python benchmarks/forms.py [--repeats N]

Each cell is the time of the block form over that of the Hadamard form, channels_last, interleaved: above 1 the Hadamard
form is faster. A star marks what the choosing function picks; stars should stand where the numbers are above 1.
"""

import argparse
from collections.abc import Callable

import torch
from torch import Tensor

from quern import functional
from quern.functional import products
from quern.functional.products import Form
from timing import host, medians

CPU = torch.device("cpu")


def ratio(product: Callable[[], Tensor], chooser: str, backward: bool, repeats: int) -> float:
    original = getattr(products, chooser)

    def forced(form: Form) -> Callable[[], None]:
        def call() -> None:
            setattr(products, chooser, lambda *_: form)
            with torch.set_grad_enabled(backward):
                y = product()
            if backward:
                y.backward(torch.ones_like(y))

        return call

    try:
        seconds = medians({"block": forced("block"), "hadamard": forced("hadamard")}, repeats)
    finally:
        setattr(products, chooser, original)
    return seconds["block"] / seconds["hadamard"]


def convolution(channels: int, size: int, batch: int, kernel: int, groups: int) -> Callable[[], Tensor]:
    weight = torch.randn(4, channels, channels // groups, kernel, kernel, requires_grad=True)
    x = torch.randn(batch, 4 * channels, size, size).to(memory_format=torch.channels_last).requires_grad_()
    return lambda: functional.conv(x, weight, padding=kernel // 2, groups=groups)


def linear(features: int, rows: int) -> Callable[[], Tensor]:
    weight = torch.randn(4, features, features, requires_grad=True)
    x = torch.randn(rows, 4 * features, requires_grad=True)
    return lambda: functional.linear(x, weight)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=7)
    repeats = parser.parse_args().repeats
    torch.set_num_threads(2)
    print(host())
    for kernel, groups in ((3, 1), (1, 1), (5, 1), (3, 4)):
        print(f"\nconvolution {kernel}x{kernel}, groups={groups}: forward / both ways")
        for channels in (8, 16, 32, 64, 128, 256)[: 6 if kernel == 1 else 5]:
            for size, batch in ((4, 1), (4, 16), (8, 16), (8, 128), (16, 4), (16, 64)):
                ways = [
                    ratio(convolution(channels, size, batch, kernel, groups), "choose_conv_form", both, repeats)
                    for both in (False, True)
                ]
                picked = (
                    products.choose_conv_form(CPU, channels, channels, groups, kernel**2, batch * size**2) == "hadamard"
                )
                print(
                    f"  {channels:4d} quaternions, {size:3d}x{size:<3d} batch {batch:4d}: "
                    f"{ways[0]:5.2f} / {ways[1]:5.2f} {'*' if picked else ''}",
                    flush=True,
                )
    print("\nlinear: forward / both ways")
    for features in (32, 64, 128, 256, 512):
        for rows in (1, 32, 128, 512, 2048):
            ways = [ratio(linear(features, rows), "choose_linear_form", both, repeats) for both in (False, True)]
            picked = products.choose_linear_form(CPU, features, features, rows) == "hadamard"
            print(
                f"  {features:4d} quaternions, {rows:4d} rows: {ways[0]:5.2f} / {ways[1]:5.2f} {'*' if picked else ''}"
            )


if __name__ == "__main__":
    main()
