"""Files are whole or not there."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from quern.files import claimed, replacing, sweep, write_text


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("text", ["", "one\r\ntwo\n", "é and 𝄞\0"])
def test_text_comes_back(tmp_path: Path, text: str) -> None:
    write_text(tmp_path / "note", text)
    assert (tmp_path / "note").read_bytes() == text.encode()
    assert names(tmp_path) == ["note"]


def test_the_old_file_is_there_until_the_new_one_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "note"
    write_text(path, "old")
    with replacing(path) as temporary:
        assert temporary.parent == path.parent
        temporary.write_text("new")
        assert path.read_text() == "old"
    assert path.read_text() == "new"
    assert names(tmp_path) == ["note"]


@pytest.mark.parametrize("stop", [ValueError, KeyboardInterrupt])
def test_what_stops_half_way_changes_nothing(tmp_path: Path, stop: type[BaseException]) -> None:
    path = tmp_path / "note"
    for before in ([], ["note"]):
        with pytest.raises(stop), replacing(path) as temporary:  # noqa: PT012
            temporary.write_text("ha")
            raise stop
        assert names(tmp_path) == before
        write_text(path, "old")
    assert path.read_text() == "old"


def test_text_that_cannot_be_written_changes_nothing(tmp_path: Path) -> None:
    write_text(tmp_path / "note", "old")
    with pytest.raises(UnicodeEncodeError):
        write_text(tmp_path / "note", "half \ud800")
    assert (tmp_path / "note").read_text() == "old"
    assert names(tmp_path) == ["note"]


def test_a_path_that_cannot_be_replaced(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError, match="folder"):
        write_text(tmp_path / "folder", "text")
    assert names(tmp_path) == ["folder"]
    with pytest.raises(FileNotFoundError):
        write_text(tmp_path / "nowhere" / "note", "text")
    assert names(tmp_path) == ["folder"]


@pytest.mark.parametrize("mask", [0o022, 0o077, 0o002])
def test_permissions_follow_the_umask(tmp_path: Path, mask: int) -> None:
    before = os.umask(mask)
    try:
        for text in ("first", "again"):
            write_text(tmp_path / "note", text)
            assert (tmp_path / "note").stat().st_mode & 0o777 == 0o666 & ~mask
        assert os.umask(mask) == mask
    finally:
        os.umask(before)


def test_readers_see_one_text_or_the_other(tmp_path: Path) -> None:
    path, texts, seen, done = tmp_path / "note", ("a" * 100_000, "b" * 50_000), set(), threading.Event()
    write_text(path, texts[0])

    def look() -> None:
        while not done.is_set():
            seen.add(path.read_text())

    reader = threading.Thread(target=look)
    reader.start()
    for n in range(40):
        write_text(path, texts[n % 2])
    done.set()
    reader.join()
    assert seen
    assert seen <= set(texts)


def test_a_folder_is_claimed_once_until_its_process_ends(tmp_path: Path) -> None:
    with claimed(tmp_path) as ours, claimed(tmp_path) as theirs:
        assert ours
        assert not theirs
    holds = f"""
import time
from pathlib import Path
from quern.files import claimed
with claimed(Path({str(tmp_path)!r})) as ours:
    print(ours, flush=True)
    time.sleep(600)
"""
    with subprocess.Popen([sys.executable, "-c", holds], stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "True\n"
        with claimed(tmp_path) as ours:
            assert not ours
        other.send_signal(signal.SIGKILL)
    with claimed(tmp_path) as ours:
        assert ours
    assert names(tmp_path) == []


@pytest.mark.parametrize("stop", [ValueError, KeyboardInterrupt])
def test_a_claim_ends_with_what_it_was_for(tmp_path: Path, stop: type[BaseException]) -> None:
    with pytest.raises(stop), claimed(tmp_path):
        raise stop
    with claimed(tmp_path) as ours:
        assert ours


def test_what_killed_writers_left_is_swept(tmp_path: Path) -> None:
    killed = f"""
import os, signal
from pathlib import Path
from quern.files import replacing
with replacing(Path({str(tmp_path / "note.json")!r})):
    os.kill(os.getpid(), signal.SIGKILL)
"""
    subprocess.run([sys.executable, "-c", killed], check=False)
    [left] = names(tmp_path)
    theirs = [".note.json", ".note.json.tmp", ".other.json.a1b2c3d4.tmp", ".x.note.json.a1b2c3d4.tmp", "note.json"]
    for name in theirs:
        (tmp_path / name).touch()
    (tmp_path / ".note.json.folder.tmp").mkdir()
    sweep(tmp_path, ["other"])
    assert left in names(tmp_path)
    sweep(tmp_path, ["note.json"])
    assert names(tmp_path) == sorted([*theirs, ".note.json.folder.tmp"])
