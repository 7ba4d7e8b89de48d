"""Files are whole or not there."""

import os
import re
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from quern._files import check_target, claimed, making, open_regular, printable, replacing, sweep, write_text


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


@pytest.mark.parametrize("there", [True, False])
def test_a_symlink_stays_and_its_file_is_replaced(tmp_path: Path, there: bool) -> None:
    (tmp_path / "far").mkdir()
    note, link, chain = tmp_path / "far" / "note", tmp_path / "link", tmp_path / "chain"
    link.symlink_to("far/note")
    chain.symlink_to(link)
    if there:
        note.write_text("old")
    with replacing(chain) as temporary:
        assert temporary.parent == note.parent
        assert temporary.name.startswith(".note.")
        assert temporary.name.endswith(".tmp")
        temporary.write_text("new")
    assert note.read_text() == "new"
    assert link.is_symlink()
    assert chain.is_symlink()
    assert (names(tmp_path), names(note.parent)) == (["chain", "far", "link"], ["note"])


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o755, 0o444])
def test_a_file_keeps_its_permissions(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "note"
    path.write_text("old")
    path.chmod(mode)
    write_text(path, "new")
    assert path.read_text() == "new"
    assert path.stat().st_mode & 0o7777 == mode


def test_what_is_no_regular_file_is_left_alone(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    (tmp_path / "device").symlink_to("/dev/null")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "astray").symlink_to("nowhere/note")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "socket"))
        before = {path: os.lstat(path).st_ino for path in tmp_path.iterdir()}
        for name, said in {
            "pipe": "not a regular file",
            "socket": "not a regular file",
            "folder": "it is a folder",
            "device": "not a regular file",
            "loop": "Too many levels",
            "astray": "there is no folder",
        }.items():
            for write in (check_target, lambda path: write_text(path, "text")):
                with pytest.raises(OSError, match=said):
                    write(tmp_path / name)
        assert {path: os.lstat(path).st_ino for path in tmp_path.iterdir()} == before
    assert Path("/dev/null").is_char_device()


def test_standard_output_is_no_file_to_replace(tmp_path: Path) -> None:
    link = tmp_path / "stdout"  # as /dev/stdout, which a failure of this test would remove
    link.symlink_to("/proc/self/fd/1")
    code = (
        "import sys; from pathlib import Path; from quern._files import write_text; write_text(Path(sys.argv[1]), '')"
    )
    done = subprocess.run([sys.executable, "-c", code, str(link)], capture_output=True, text=True)
    assert done.returncode == 1
    assert "not a regular file" in done.stderr
    assert done.stdout == ""
    assert link.is_symlink()


def test_only_regular_files_are_opened(tmp_path: Path) -> None:
    (tmp_path / "note").write_bytes(b"text")
    (tmp_path / "link").symlink_to("note")
    os.mkfifo(tmp_path / "pipe")
    for name in ("note", "link"):
        with open_regular(tmp_path / name) as file:
            assert file.read() == b"text"
    for path in (tmp_path / "pipe", tmp_path, Path("/dev/zero"), tmp_path / "nothing"):
        with pytest.raises(OSError, match=re.escape(str(path))):
            open_regular(path)


def test_paths_that_are_no_text_are_shown_byte_by_byte() -> None:
    assert printable(Path("é/𝄞 λ")) == "é/𝄞 λ"
    assert printable(Path(os.fsdecode(b"/tmp/x\xff\x80y"))) == r"/tmp/x\xff\x80y"
    assert printable("half \ud800").encode() == rb"half \ud800"


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
from quern._files import claimed
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
from quern._files import replacing
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


def test_a_folder_is_there_whole_or_not_at_all(tmp_path: Path) -> None:
    folder = tmp_path / "made"
    for _ in range(2):  # new, then empty
        with pytest.raises(FileNotFoundError), making(folder) as temporary:
            (temporary / "one" / "two").write_text("1")
        assert names(tmp_path) == ([] if not folder.exists() else ["made"])
        with making(folder) as temporary:
            (temporary / "one").write_text("1")
            assert not folder.exists() or names(folder) == []
        assert names(tmp_path) == ["made"]
        assert names(folder) == ["one"]
        (folder / "one").unlink()
    mask = os.umask(0o022)
    os.umask(mask)
    assert folder.stat().st_mode & 0o777 == 0o777 & ~mask


def test_a_folder_with_something_in_it_is_left_alone(tmp_path: Path) -> None:
    full, file, link = tmp_path / "full", tmp_path / "file", tmp_path / "link"
    full.mkdir()
    (full / "mine").write_text("1")
    file.write_text("1")
    link.symlink_to(tmp_path / "nowhere" / "else")
    for path, said in (
        (full, "something in it"),
        (file, "no folder"),
        (link, "no folder"),
        (tmp_path / "a" / "b", "there is no folder"),
    ):
        with pytest.raises(OSError, match=said), making(path):
            raise AssertionError("nothing is to be written")
    assert names(tmp_path) == ["file", "full", "link"]
    assert names(full) == ["mine"]
