"""The package itself: light to import, one version, checkers that can fail."""

import re
import runpy
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import quern
from quern.testing import assert_matches_real, assert_module_laws, assert_same_function

ROOT = Path(__file__).parent.parent


@pytest.mark.slow
def test_import_waits_neither_for_torch_nor_for_its_compiler() -> None:
    """``torch._dynamo`` takes as long to load as the rest of torch."""
    code = f"""
import quern, sys
assert "torch" not in sys.modules
quern.nn
assert "torch" in sys.modules
for name in {quern.__all__}:
    getattr(quern, name)
assert "torch._dynamo" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_what_we_say_to_install_is_ours() -> None:
    """The distribution is quern-nn: quern on the package index is somebody else's."""
    extras = set(metadata.metadata("quern-nn").get_all("Provides-Extra") or [])
    advised = []
    for pattern in ("*.md", "*.toml", "Makefile", "src/**/*.py", "src/**/*.html*", "docs/**/*.md", "examples/*.py"):
        for path in ROOT.glob(pattern):
            for command in re.findall(r"pip install ([^\n`]+)", path.read_text()):
                assert not re.search(r"\bquern\b(?!-nn)", command), (path, command)
                advised += re.findall(r"quern-nn(?:\[([^\]]*)\])?", command)
    assert advised
    assert {extra for names in advised for extra in names.split(",") if extra} <= extras


def test_version_and_names() -> None:
    assert metadata.version("quern-nn") == quern.__version__
    assert set(quern.__all__) <= set(dir(quern))
    with pytest.raises(AttributeError, match="no attribute 'pickle'"):
        quern.pickle  # noqa: B018


class Wrong(nn.Module):
    """A layer with one fault, to see the checkers find it."""

    def __init__(self, fault: str, device=None, dtype=None) -> None:
        super().__init__()
        self.fault = fault
        self.weight = nn.Parameter(torch.ones(3, device=device if fault != "meta" else None, dtype=dtype))
        self.last: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        if self.fault == "value":
            return self.weight * x * 1.001
        if self.fault == "gradient":
            return (self.weight.detach() * x) + 0 * self.weight
        if self.fault == "memory":
            before, self.last = self.last, x.detach()
            return self.weight * x if before is None else self.weight * (x + before)
        if self.fault == "dtype":
            return (self.weight * x).double()
        if self.fault == "nan":
            return (self.weight * x).square().sqrt()
        return self.weight * x


def right(layer: Wrong, x: Tensor) -> Tensor:
    return layer.weight * x


def test_checkers_pass_a_right_layer() -> None:
    x = torch.randn(2, 3, dtype=torch.float64)
    layer = Wrong("none").double()
    assert_matches_real(layer, right, x)
    assert_same_function(layer, lambda x: layer.weight * x, x)
    assert_module_laws(lambda **factory: Wrong("none", **factory), x)


@pytest.mark.parametrize("fault", ["value", "gradient"])
def test_checkers_find_wrong_mathematics(fault: str) -> None:
    with pytest.raises(AssertionError):
        assert_matches_real(Wrong(fault).double(), right, torch.randn(2, 3, dtype=torch.float64))


@pytest.mark.parametrize("fault", ["memory", "dtype", "nan", "meta"])
def test_checkers_find_wrong_behaviour(fault: str) -> None:
    with pytest.raises(AssertionError):
        assert_module_laws(lambda **factory: Wrong(fault, **factory), torch.randn(2, 3, dtype=torch.float64))


def test_same_function_compares_shapes_and_refuses_nothing_to_compare() -> None:
    with pytest.raises(AssertionError, match="shapes"):
        assert_same_function(lambda x: x, lambda x: x[:1], torch.ones(2))
    with pytest.raises(AssertionError, match="nothing to compare"):
        assert_same_function(lambda x: None, lambda x: None, torch.ones(2))


def test_flipping_one_sign_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The laws compare with complex matrices, so they see a sign table that is wrong but consistent with itself."""
    from quern import algebra
    from quern.functional import products
    from tests.nn.cases import CASES

    linear = next(case for case in CASES if case.name == "linear")
    assert_matches_real(linear.build(), linear.real, *linear.draw())
    signs = [list(row) for row in algebra.UNIT_SIGN]
    signs[3][2] = -signs[3][2]
    monkeypatch.setattr(products, "UNIT_SIGN", signs)
    with pytest.raises(AssertionError, match="outputs"):
        assert_matches_real(linear.build(), linear.real, *linear.draw())


def python_blocks(name: str) -> list[str]:
    return [part.split("```")[0] for part in (ROOT / name).read_text().split("```python\n")[1:]]


@pytest.mark.unchecked  # as a user would run them; type checks make them take twice as long
def test_the_examples_in_the_documents_run(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in (
        "README.md",
        "docs/start.md",
        "docs/convert.md",
        "docs/own.md",
        "docs/compaction.md",
        "docs/compress.md",
        "docs/runtime.md",
    ):
        for block in python_blocks(name):
            exec(compile(block, name, "exec"), {})
    printed = capsys.readouterr().out
    assert "QConv2d(3, 32" in printed
    assert "QLSTM(16, 32" in printed
    assert "torch.Size([8, 10])" in printed
    assert "parameters are not zero" in printed
    assert "QConv2d(1, 8, kernel_size" in printed  # two neurons of four
    assert {path.name for path in tmp_path.iterdir()} == {"net.qrn", "page.html", "small.onnx", "small.safetensors"}


@pytest.mark.slow
def test_the_examples_of_extending_run(tmp_path: Path) -> None:
    """In a process of their own, since they register things. They assert what they show."""
    examples = [f"exec({part!r}, {{'__name__': 'example'}})" for part in python_blocks("docs/extending.md")]
    command = [sys.executable, "-W", "error", "-c", "\n".join(examples)]
    done = subprocess.run(command, cwd=tmp_path, check=True, stdout=subprocess.PIPE, text=True)
    assert '["QConv2d", ' in done.stdout


def test_the_readme_is_short() -> None:
    lines = (ROOT / "README.md").read_text().splitlines()
    assert len(lines) <= 120
    assert max(map(len, lines)) <= 120


def test_the_picture_of_the_folders_has_all_of_them() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = next(contract["layers"] for contract in contracts if contract["type"] == "layers")
    names = {name.strip().removeprefix("quern.") for layer in layers for name in layer.split("|")} - {"__main__"}
    shown = re.findall(r">([^<>]*(?:/|\.py)[^<>]*)</text>", (ROOT / "docs/architecture.svg").read_text())
    drawn = {name.removesuffix("/").removesuffix(".py") for label in shown for name in re.split("[,:] ", label)}
    assert names <= drawn, "draw it anew: make graph"


def test_links_in_the_documents_lead_somewhere() -> None:
    pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), ROOT / "results/README.md"]
    links = [(page, link) for page in pages for link in re.findall(r"\]\((?!https?:)([^)#]+)[^)]*\)", page.read_text())]
    assert len(links) > 50
    assert [(str(page), link) for page, link in links if not (page.parent / link).exists()] == []


@pytest.mark.unchecked
def test_the_example_of_a_network_of_ones_own_runs(capsys: pytest.CaptureFixture[str]) -> None:
    path = ROOT / "examples" / "residual.py"
    compressed = runpy.run_path(str(path))["main"](epochs=2, grind=2, heal=1)
    assert compressed.small.parameters <= 2000 < compressed.dense.parameters
    assert "parameters" in capsys.readouterr().out
