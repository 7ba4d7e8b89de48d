"""One training loop: warm up, grind with a penalty, heal with the zeros frozen; checkpoints, resume, several processes.

Everything random in a step is drawn from numbers made of (seed, epoch, step), so a training that is stopped anywhere
and resumed ends with exactly the weights of one that was not.
"""

from quern.errors import Stopped
from quern.records import Epoch, Phase, Result
from quern.train._batches import Loaders, Source, augment, check_fits, check_teaches, derived_seed, held_out, source
from quern.train._files import NAMES
from quern.train._fit import find_device, fit
from quern.train._inputs import as_arguments, changed, first
from quern.train._loop import check_compacts
from quern.train._protocols import Grinding, Steer, Watcher
from quern.train._settings import Settings
from quern.train._task import Loss, MetricFunction, Task, evaluate, task_of

__all__ = ["NAMES", "Epoch", "Grinding", "Loaders", "Phase", "Result", "Settings", "Source", "Steer"]
__all__ += ["Stopped", "Watcher", "augment", "check_compacts", "check_fits", "check_teaches", "derived_seed"]
__all__ += ["Loss", "MetricFunction", "Task", "as_arguments", "changed", "evaluate", "find_device", "first", "fit"]
__all__ += ["held_out", "source", "task_of"]
