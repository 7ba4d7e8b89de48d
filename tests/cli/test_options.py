"""Options of training against the dataclasses they become."""

import inspect
from collections.abc import Callable
from dataclasses import fields
from typing import Any, get_args, get_type_hints

import quern
from quern import data, models, penalties
from quern.cli._compress import _DEFAULTS, _DIGITS, compress
from quern.cli._options import DATASETS, FETCHED, MODELS, OF_WEIGHTS, PENALTIES, REAL_MODELS, NormName
from quern.cli._train import train
from quern.models import Norm
from quern.penalties import OfWeights
from quern.records import Budget
from quern.train import Settings

SETTINGS = {field.name: field for field in fields(Settings)}
TYPES = get_type_hints(Settings)

# Fields of Settings that are no options, and why.
NOT_OF_TRAIN = {
    "penalty": "four options: --penalty, --lambda, --plain-sums and --by-cost",
    "distill": "asks for a teacher, which is compress's dense network",
    "curves": "for the paper's figures",
}
NOT_OF_COMPRESS = {
    "penalty": "three options: --penalty, --lambda and --by-cost",
    "curves": "for the paper's figures",
    **dict.fromkeys(("warmup", "ramp", "heal_dropout", "compact_every"), "set by its stages"),
    **dict.fromkeys(("optimizer", "tol"), "options of quern.compress in Python alone"),
}


def options(command: Callable[..., None]) -> dict[str, tuple[Any, Any]]:
    """Type and default of every option."""
    types, parameters = get_type_hints(command), inspect.signature(command).parameters
    return {name: (types[name], parameter.default) for name, parameter in parameters.items()}


def check(command: Callable[..., None], left_out: dict[str, str], by_data_set: set[str]) -> None:
    given = options(command)
    for name, field in SETTINGS.items():
        if name in left_out:
            assert name == "penalty" or name not in given, name
        elif name in by_data_set:
            assert given[name] == (TYPES[name] | None, None), name
        else:
            assert given[name] == (TYPES[name], field.default), name


def test_every_setting_is_an_option_of_train_with_its_type_and_default() -> None:
    check(train, NOT_OF_TRAIN, {"batch"})


def test_every_setting_of_its_stages_is_an_option_of_compress() -> None:
    check(compress, NOT_OF_COMPRESS, set(_DEFAULTS) - {"grind"})
    given = options(compress)
    assert given["grind"] == (int | None, None)
    assert set(_DIGITS) == set(_DEFAULTS)


def test_defaults_of_compress_are_those_of_the_function() -> None:
    parameters = inspect.signature(quern.compress).parameters
    for name in ("epochs", "grind", "heal"):
        assert parameters[name].default == _DEFAULTS[name]
    assert _DEFAULTS["lr"] == Settings().lr
    assert parameters["distill"].default == Settings().distill == options(compress)["distill"][1]


def test_every_limit_of_a_budget_is_an_option_of_compress() -> None:
    given, types = options(compress), get_type_hints(Budget)
    for field in fields(Budget):
        wanted = str | None if field.name in ("max_bytes", "max_flash", "max_ram") else types[field.name]  # "64k"
        assert given[field.name] == (wanted, field.default), field.name


def test_names_in_the_help_are_those_of_the_modules() -> None:
    assert {*FETCHED, *DATASETS} <= set(data.NAMES)
    assert {*MODELS, *REAL_MODELS} == set(models.BUILDERS)
    assert get_args(NormName) == get_args(Norm)
    assert {name for name in PENALTIES if issubclass(getattr(penalties, PENALTIES[name][0]), OfWeights)} == {
        *OF_WEIGHTS
    }
    for kind, arguments in PENALTIES.values():
        assert getattr(penalties, kind)(1.0, **arguments).to_list()
    assert {kind for kind, _ in PENALTIES.values()} == {"L1", "L2", "RQ", "RQL", "GammaL1"}
