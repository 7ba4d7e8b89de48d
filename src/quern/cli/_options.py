"""Options that several commands share, each declared once. What only one command says of an option stands there.

Options of training are named, typed and preset as the fields of :class:`quern.train.Settings`, which is not loaded for
a page of help; ``tests/cli/test_options.py`` compares the two.
"""

from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import typer

# As in quern.data, quern.penalties and quern.models, which are not loaded for a page of help. ``quern data list`` names
# all data sets; these are those to begin with.
FETCHED = ("mnist", "cifar10")
DATASETS = (*FETCHED, "digits")
OF_WEIGHTS = ("l1", "l2", "rq", "rql")
PENALTIES: dict[str, tuple[str, dict[str, bool]]] = {
    **{name: (name.upper(), {}) for name in OF_WEIGHTS},
    "gamma": ("GammaL1", {}),
    "gamma-beta": ("GammaL1", {"with_beta": True}),
    "neurons": ("NeuronNorm", {}),
}
MODELS = ("mnist_qcnn", "cifar_qcnn", "digits_qcnn", "qresnet20", "small_qcnn")
REAL_MODELS = ("mnist_cnn", "cifar_cnn", "digits_cnn", "resnet20", "small_cnn")
NormName = Literal["none", "after_conv", "after_activation"]
NORM_HELP = "Batch normalisation: none, after_conv or after_activation."

# The panels of the help: of train and compress,
of_run = partial(typer.Option, rich_help_panel="The run")
of_phases = partial(typer.Option, rich_help_panel="Penalty and phases")
of_steps = partial(typer.Option, rich_help_panel="Steps")
of_network = partial(typer.Option, rich_help_panel="Network and data")
of_machine = partial(typer.Option, rich_help_panel="Machine")
# and of reproduce and tune.
of_what = partial(typer.Option, rich_help_panel="What")
of_where = partial(typer.Option, rich_help_panel="Where")

_DATA_DIR = "A folder with the original files of the data set."
_JSON = "The result as JSON on standard output, all else on standard error."
_QUIET = "Say nothing but errors."
DataDir = Annotated[Path | None, typer.Option(help=_DATA_DIR)]
DataDirOfRun = Annotated[Path | None, of_network(help=_DATA_DIR)]
DataDirOfPaper = Annotated[Path | None, of_where(help=_DATA_DIR)]
Json = Annotated[bool, typer.Option("--json", help=_JSON)]
JsonOfRun = Annotated[bool, of_run("--json", help=_JSON)]
Quiet = Annotated[bool, typer.Option("--quiet", help=_QUIET)]
QuietRun = Annotated[bool, of_run("--quiet", help=_QUIET)]

# Of train and compress.
Dataset = Annotated[
    str, of_network(help=f"{', '.join(DATASETS)}, an .npz file, or a folder with a folder of images per class.")
]
ImageSize = Annotated[int | None, of_network(help="Resize the images of a folder to this height and width.")]
Gray = Annotated[
    bool | None,
    of_network(
        "--gray/--color",
        help="Read the images of a folder with one channel, or with three.",
        show_default="gray if no pixel has a colour",
    ),
]
Dropout = Annotated[float | None, of_network(help="Dropout of the network.", show_default="the network's")]
_WIDTH, _DEPTH = "Channels of the first layer of a small_qcnn.", "Blocks in each of its three stages."
Width = Annotated[int | None, of_network(help=_WIDTH, show_default="28")]
Depth = Annotated[int | None, of_network(help=_DEPTH, show_default="3")]
PenaltyNames = Annotated[list[str] | None, of_phases(help=f"{', '.join(PENALTIES)}; repeat it for a sum.")]
_BY_COST = "Weigh zero quaternions by the multiply-adds they save, to this power, 0 to 1."
ByCost = Annotated[float, of_phases(help=_BY_COST)]
ByCostOfBudget = Annotated[float | None, of_phases(help=_BY_COST, show_default="0.5 with --min-speedup, else 0")]
HealLr = Annotated[float | None, of_phases(help="Learning rate while healing.", show_default="--lr")]
_Schedule = Literal["cosine", "one-cycle", "constant"]
_SCHEDULE = "Learning rate in the last phase: down to zero, first up and then down, or neither."
_EMA = "Decay of a running mean of the weights, which is what is judged and kept, such as 0.999."
_CROP = "Shift images at random by up to this many pixels."
Schedule = Annotated[_Schedule, of_steps(help=_SCHEDULE)]
Ema = Annotated[float, of_steps(help=_EMA)]
Crop = Annotated[int, of_steps(help=_CROP)]
Flip = Annotated[bool, of_steps("--flip", help="Mirror half of the images.")]
# Of compress, where the images decide (quern.cli._recipes).
WidthOfRecipe = Annotated[int | None, of_network(help=_WIDTH, show_default="56; gray 20; with --model 28")]
DepthOfRecipe = Annotated[int | None, of_network(help=_DEPTH, show_default="3; gray 2; with --model 3")]
ScheduleOfRecipe = Annotated[_Schedule | None, of_steps(help=_SCHEDULE, show_default="one-cycle; digits cosine")]
EmaOfRecipe = Annotated[float | None, of_steps(help=_EMA, show_default="0.999; digits 0")]
CropOfRecipe = Annotated[
    int | None, of_steps(help=_CROP, show_default="an eighth of the side; gray a fourteenth; digits 0")
]
FlipOfRecipe = Annotated[
    bool | None, of_steps("--flip/--no-flip", help="Mirror half of the images.", show_default="if they have colours")
]
LabelSmoothing = Annotated[float, of_steps(help="Label smoothing.")]
Seed = Annotated[int, of_steps(help="The same command with the same seed gives the same weights.")]
Device = Annotated[str, of_machine(help="cpu, cuda, ...")]
Precision = Annotated[Literal["float32", "bfloat16"], of_machine(help="bfloat16 runs under autocast.")]
Threads = Annotated[int | None, of_machine(help="CPU threads.", show_default="all cores")]

# Of compact, export and bench.
ModelFile = Annotated[
    Path, typer.Argument(help="A network: the folder of a run, a .safetensors file of quern, or zoo:NAME.")
]
DatasetToCheck = Annotated[
    str | None, typer.Option(help="Images to check with.", show_default="what it was trained on, if that is here")
]
