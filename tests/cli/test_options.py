"""Options of training against the dataclasses they become."""

import inspect
from collections.abc import Callable
from dataclasses import fields
from typing import Any, get_args, get_type_hints

import torch
from hypothesis import example, given
from hypothesis import strategies as st

import quern
from quern import data, models, penalties
from quern.cli._compress import compress
from quern.cli._options import DATASETS, FETCHED, MODELS, OF_WEIGHTS, PENALTIES, REAL_MODELS, NormName
from quern.cli._recipes import DIGITS, NAMED, SMALL, Recipe, recipe_of
from quern.cli._train import train
from quern.data import Images, ImageSet
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
    offered = options(command)
    for name, field in SETTINGS.items():
        if name in left_out:
            assert name == "penalty" or name not in offered, name
        elif name in by_data_set:
            assert offered[name] == (TYPES[name] | None, None), name
        else:
            assert offered[name] == (TYPES[name], field.default), name


def test_every_setting_is_an_option_of_train_with_its_type_and_default() -> None:
    check(train, NOT_OF_TRAIN, {"batch"})


def test_every_setting_of_its_stages_is_an_option_of_compress() -> None:
    check(compress, NOT_OF_COMPRESS, set(NAMED.stages()) - {"grind"})
    assert options(compress)["grind"] == (int | None, None)


def test_defaults_of_compress_are_those_of_the_function() -> None:
    parameters, settings = inspect.signature(quern.compress).parameters, Settings()
    for name, value in NAMED.stages().items():
        if name in ("epochs", "grind", "heal"):
            assert parameters[name].default == value
        elif name != "batch":
            assert getattr(settings, name) == value, name
    assert parameters["distill"].default == Settings().distill == options(compress)["distill"][1]


def images_like(name: str, *shape: int) -> ImageSet:
    part = Images(torch.zeros(2, *shape, dtype=torch.uint8), torch.tensor([0, 1]))
    return ImageSet(name, part, part, part, ("a", "b"), (0.5,) * shape[0], (0.5,) * shape[0])


@given(st.sampled_from(["mnist", "cifar10", "photos"]), st.sampled_from([1, 3]), st.integers(1, 64), st.integers(1, 64))
@example("mnist", 1, 28, 28)
@example("cifar10", 3, 32, 32)
@example("photos", 3, 1, 1)
def test_every_recipe_of_images_is_a_training_of_a_network_that_takes_them(
    name: str, channels: int, height: int, width: int
) -> None:
    images = images_like(name, channels, height, width)
    for network in (None, *SMALL):
        recipe = recipe_of(images, network)
        stages = recipe.stages()
        grind = stages.pop("grind")
        assert Settings(**stages).epochs > 0
        assert grind > 0
        assert recipe.flip == (channels == 3)
        assert 2 * recipe.crop < min(height, width)
    build = models.BUILDERS[recipe_of(images, None).model or ""]
    scores = build(**recipe_of(images, None).options, classes=2, channels=channels).eval()(
        torch.zeros(1, *images.shape)
    )
    assert scores.shape == (1, 2)


def test_recipes_are_of_small_networks_and_of_digits() -> None:
    gray, digits = images_like("mnist", 1, 28, 28), images_like("digits", 1, 8, 8)
    assert (recipe_of(gray, None).crop, recipe_of(images_like("cifar10", 3, 32, 32), None).crop) == (2, 4)
    for images, network, wanted in (
        (digits, None, DIGITS),
        (digits, "small_qcnn", DIGITS),
        (gray, "mnist_qcnn", NAMED),
        (gray, "mine.nets:unet", NAMED),
        (None, "small_qcnn", NAMED),
    ):
        assert recipe_of(images, network) is wanted, network
    asked: Recipe = recipe_of(gray, "small_cnn")
    assert asked.options == {}
    assert asked.stages() == recipe_of(gray, None).stages()


def test_every_limit_of_a_budget_is_an_option_of_compress() -> None:
    offered, types = options(compress), get_type_hints(Budget)
    for field in fields(Budget):
        wanted = str | None if field.name in ("max_bytes", "max_flash", "max_ram") else types[field.name]  # "64k"
        assert offered[field.name] == (wanted, field.default), field.name


def test_names_in_the_help_are_those_of_the_modules() -> None:
    assert {*FETCHED, *DATASETS} <= set(data.NAMES)
    assert {*MODELS, *REAL_MODELS} == set(models.BUILDERS)
    assert get_args(NormName) == get_args(Norm)
    assert {name for name in PENALTIES if issubclass(getattr(penalties, PENALTIES[name][0]), OfWeights)} == {
        *OF_WEIGHTS
    }
    for kind, arguments in PENALTIES.values():
        assert getattr(penalties, kind)(1.0, **arguments).to_list()
    assert {kind for kind, _ in PENALTIES.values()} == {"L1", "L2", "RQ", "RQL", "GammaL1", "NeuronNorm"}
