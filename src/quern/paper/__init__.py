"""The paper's tables and figures as data: which runs they are made of, and how to do the runs that are not recorded.

    todo = survey(runs([("table1", "mnist")], seeds=5), Path("results"), Path("runs"), read_lambdas())
    for task, record in perform_all(todo, Path("results"), Path("runs")): ...

:mod:`quern.records` says what a record holds, :mod:`quern.report` makes tables and figures of them.
"""

from quern.paper._board import board
from quern.paper._plan import EXPERIMENTS, PROTOCOLS, Protocol, lambda_of, read_lambdas, runs, settings_of
from quern.paper._pool import Task, percent, perform_all, seconds_left, survey
from quern.paper._run import build, perform
from quern.paper._timing import time_steps, timing_path

__all__ = ["EXPERIMENTS", "PROTOCOLS", "Protocol", "Task", "board", "build", "lambda_of"]
__all__ += ["percent", "perform", "perform_all", "read_lambdas", "runs", "seconds_left", "settings_of", "survey"]
__all__ += ["time_steps", "timing_path"]
