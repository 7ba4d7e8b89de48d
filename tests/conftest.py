"""While testing, every annotated shape is checked at run time, and every example is drawn from the same seeds."""

import importlib.util
import os
import pkgutil

import pytest
from hypothesis import HealthCheck, settings

if os.environ.get("QUERN_TYPECHECK") != "0":
    from jaxtyping import install_import_hook

    found = importlib.util.find_spec("quern")
    assert found is not None
    places = found.submodule_search_locations
    # Not the commands: typer hands them a context of another class than the one it has them declare.
    checked = [f"quern.{module.name}" for module in pkgutil.iter_modules(places) if module.name != "cli"]
    install_import_hook(checked, "beartype.beartype")

import torch

settings.register_profile(
    "quern",
    deadline=None,
    derandomize=True,
    max_examples=30,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.load_profile("quern")
torch.set_num_threads(1)  # pytest runs two workers


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)
