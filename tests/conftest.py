"""While testing, every annotated shape is checked at run time, and every example is drawn from the same seeds."""

import importlib.util
import inspect
import os
import pkgutil
import re
from collections.abc import Iterator
from functools import cache, wraps
from pathlib import Path
from types import CodeType
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

if os.environ.get("QUERN_TYPECHECK") != "0":
    import jaxtyping
    from beartype import BeartypeConf, beartype
    from jaxtyping._storage import pop_shape_memo, push_shape_memo

    check_types = beartype(conf=BeartypeConf(violation_type=jaxtyping.TypeCheckError))
    check_anything = jaxtyping.jaxtyped
    seen_inside: set[CodeType] = set()

    def check_shapes(function: Any) -> Any:
        """As jaxtyping's own decorator, which costs ten times as much at each call: it looks at arguments twice."""
        checked = check_types(function)

        @wraps(function)
        def with_sizes(*args: Any, **options: Any) -> Any:
            push_shape_memo({})
            try:
                return checked(*args, **options)
            finally:
                pop_shape_memo()

        return with_sizes

    def check(*, typechecker: Any) -> Any:
        def decorated(what: Any) -> Any:
            if not inspect.isfunction(what) or inspect.isgeneratorfunction(what):
                return check_anything(typechecker=typechecker)(what)
            if "<locals>" in what.__qualname__:
                # Made anew at each call of the function around it, and its check with it, which takes a millisecond.
                if what.__code__ in seen_inside:
                    return what
                seen_inside.add(what.__code__)
            annotations = repr(what.__annotations__)
            # Names in quotes may be of modules that only type checkers import: jaxtyping lets them pass.
            if re.search("ForwardRef|: '", annotations):
                return check_anything(typechecker=typechecker)(what)
            return (check_shapes if "jaxtyping" in annotations else check_types)(what)

        return decorated

    jaxtyping.jaxtyped = check  # pyright: ignore[reportAttributeAccessIssue]
    package = importlib.util.find_spec("quern")
    assert package is not None
    # Not the commands: typer hands them a context of another class than the one it has them declare.
    modules = [module.name for module in pkgutil.iter_modules(package.submodule_search_locations)]
    jaxtyping.install_import_hook([f"quern.{name}" for name in modules if name != "cli"], "beartype.beartype")

import torch
import torch.onnx

from tests.browser import CHROMIUM

# Draws per law where a test does not say how many: in `make test`, `make quick` and `make full`.
for profile, draws in {"quern": 30, "quick": 5, "full": 300}.items():
    settings.register_profile(
        profile,
        deadline=None,
        derandomize=True,
        max_examples=draws,
        print_blob=True,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
    )
settings.load_profile("quern")
torch.set_num_threads(1)  # pytest runs two workers


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """The second pass opens only the files that it takes tests from."""
    if not str(config.getoption("markexpr")).startswith("unchecked") or collection_path.suffix != ".py":
        return None
    return "mark.unchecked" not in collection_path.read_text("utf-8") or None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that share a run, or other files made for their module or folder, stay on the worker that makes them."""
    for item in items:
        if isinstance(item, pytest.Function) and not item.get_closest_marker("xdist_group"):
            fixtures = [definitions[-1] for definitions in item._fixtureinfo.name2fixturedefs.values()]
            shared = {fixture.scope for fixture in fixtures if "tmp_path_factory" in fixture.argnames}
            if "package" in shared:
                item.add_marker(pytest.mark.xdist_group(item.path.parent.name))
            elif "module" in shared:
                item.add_marker(pytest.mark.xdist_group(f"{item.path.parent.name}/{item.path.stem}"))


@pytest.fixture(scope="session", autouse=True)
def _translations_to_onnx_are_read_once() -> Iterator[None]:
    """``torch.onnx.export`` reads its hundreds of translations anew at each call, half of the time that it takes."""
    export = torch.onnx.export

    def with_one_registry(*args: Any, **options: Any) -> Any:
        from torch.onnx._internal.exporter._registration import ONNXRegistry

        patch.setattr(torch.onnx, "export", export)
        patch.setattr(ONNXRegistry, "from_torchlib", staticmethod(cache(ONNXRegistry.from_torchlib)))
        return export(*args, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.onnx, "export", with_one_registry)
        yield


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)
