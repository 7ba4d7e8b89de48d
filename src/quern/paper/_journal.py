"""The journal of Optuna's studies that several processes share: who is at which trial, and what a killed one left."""

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypedDict, TypeVar

from quern.errors import QuernError, RecordError
from quern.records import schema
from quern.records.schema import Between, check, opened, parse, plain

if TYPE_CHECKING:
    from optuna import Study
    from optuna.trial import FrozenTrial, Trial

OUTCOME = "found"  # the attribute of a trial that says what came of it
T = TypeVar("T")


def open_study(storage: Path, name: str) -> "Study":
    import optuna
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend, JournalFileSymlinkLock

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    storage.parent.mkdir(parents=True, exist_ok=True)
    lock = JournalFileSymlinkLock(str(storage))
    if storage.exists():
        lock.acquire()  # nobody appends meanwhile
        try:
            _mend(storage)
        finally:
            lock.release()
    journal = JournalStorage(JournalFileBackend(str(storage), lock))
    return optuna.create_study(
        storage=journal, study_name=name, directions=["maximize", "maximize"], load_if_exists=True
    )


class _Entry(TypedDict):
    """A line of a journal, as far as all of them are alike."""

    op_code: Annotated[int, Between(0.0, 10.0)]
    worker_id: str


def _mend(storage: Path) -> None:
    """Cut off the half line that a killed process left at the end of a journal; ValueError if it is none. A file that
    never was a journal is left as it is: Optuna would append to one with a single line."""
    with opened(storage, "a journal of Optuna") as (file, _):
        content = file.read()
    *lines, rest = content.split(b"\n")
    for number, line in enumerate(lines, 1):
        check(parse(line, nan=True), _Entry, f"line {number}")
    start = b'{"op_code":'
    if not (rest.startswith(start) or start.startswith(rest)):
        raise ValueError(f"line {len(lines) + 1} is none of a journal")
    if rest:
        os.truncate(storage, len(content) - len(rest))


@contextmanager
def one_sentence(storage: Path) -> Iterator[None]:
    """One sentence for whatever is wrong with a journal: Optuna fails in as many ways as there are."""
    try:
        yield
    except QuernError:
        raise
    except Exception as reason:
        wrong = schema.short(reason) or type(reason).__name__
        raise RecordError(f"{storage} does not hold studies of Optuna ({wrong}): choose another --storage.") from reason


@contextmanager
def turn(storage: Path) -> Iterator[None]:
    """One process at a time looks at what is there and says what it does next."""
    from optuna.storages.journal import JournalFileOpenLock

    lock = JournalFileOpenLock(f"{storage}.turn")
    lock.acquire()
    try:
        with one_sentence(storage):
            yield
    finally:
        lock.release()


def claim(trial: "Trial") -> None:
    """Say that this process is at a trial."""
    trial.set_user_attr("process", [socket.gethostname(), os.getpid(), _birth(os.getpid())])


def states(study: "Study", kind: type[T]) -> "tuple[list[T], list[FrozenTrial]]":
    """What came of the trials that are done, each a ``kind``, and those that a process is at; those of a process that
    is gone have failed."""
    from optuna.trial import TrialState

    done, busy = [], []
    for trial in study.get_trials(deepcopy=False, states=(TrialState.COMPLETE, TrialState.RUNNING)):
        process = trial.user_attrs.get("process")
        if trial.state == TrialState.COMPLETE:
            done.append(check(plain(trial.user_attrs.get(OUTCOME)), kind, f"trial {trial.number}"))
        elif process is not None and _lives(process):
            busy.append(trial)
        elif process is not None:
            study.tell(trial.number, state=TrialState.FAIL)
    return done, busy


def _lives(process: Any) -> bool:
    """Whether a process, given as its machine and its number, is there; those of other machines are, for all we know.
    This one is at no trial when it asks: one that has its number died before it, as in a container that was started
    again."""
    match process:
        case [str(host), int(number), *birth] if 0 < number < 1 << 31:
            return _is_running(host, number, birth)
    return False


def _birth(process: int) -> str | None:
    """When a process began, where that can be told: numbers of processes come again, as after a reboot."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {Path(f'/proc/{process}/stat').read_text().rpartition(')')[2].split()[19]}"
    except (OSError, IndexError):
        return None


def _is_running(host: str, process: int, birth: list[Any]) -> bool:
    if host != socket.gethostname() or os.name != "posix":
        return True
    if process == os.getpid() or (birth and birth[0] is not None and birth[0] != _birth(process)):
        return False
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # somebody else's
        pass
    return True


def process_of(trial: "FrozenTrial") -> str:
    host, process, *_ = trial.user_attrs["process"]
    return f"process {process} on {schema.visible(host)}"
