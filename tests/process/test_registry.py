from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import psutil
import pytest

from djinn_jupyter.engine.process import registration as registration_module
from djinn_jupyter.engine.process.registration import HeldLock, Registration, SocketFolder
from djinn_jupyter.errors import EngineUnavailable, UsageError
from djinn_jupyter.files import stamps_in
from djinn_jupyter.link.launcher import adopt
from djinn_jupyter.link.registry import is_alive, registry_folder, require_own_sockets, running_engines
from djinn_jupyter.link.transport import ended_sentence
from djinn_jupyter.settings import Options
from djinn_jupyter.wire.own import process_mark
from djinn_jupyter.wire.registry import ENTRY_SUFFIX, SOCKET_FOLDER_PREFIX, Entry
from tests.process.served import entry_for

pytestmark = pytest.mark.usefixtures("runtime")


@pytest.fixture
def entry() -> Entry:
    """This very process as an engine."""
    return entry_for("ipc:///nowhere/commands")


def _write(entry: Entry) -> Path:
    """Write an entry whose engine no longer holds its lock."""
    registration = Registration(entry)
    registration._held.let_go()
    return registration.path


def test_a_living_engine_is_found_and_its_entry_withdrawn(entry: Entry) -> None:
    registration = Registration(entry)
    assert running_engines() == (entry,)
    registration.withdraw()
    registration.withdraw()
    assert running_engines() == ()


def test_entries_of_other_hosts_are_neither_listed_nor_touched(entry: Entry) -> None:
    path = _write(msgspec.structs.replace(entry, host="another-host", pid=1, mark="0"))
    assert running_engines() == ()
    assert path.exists()


@pytest.mark.parametrize("change", [{"mark": "1"}, {"boot": "an earlier one"}])
def test_another_process_that_was_given_the_number_is_not_the_engine(entry: Entry, change: dict[str, object]) -> None:
    path = _write(msgspec.structs.replace(entry, **change))
    assert running_engines() == ()
    assert not path.exists()


@pytest.fixture
def folder() -> Iterator[Path]:
    """The folder of an engine's socket, with the socket in it; its path must be short."""
    path = Path(tempfile.mkdtemp(prefix=SOCKET_FOLDER_PREFIX))
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(path / "commands"))
    yield path
    for left in path.glob("*") if path.exists() else ():
        left.unlink()
    if path.exists():
        path.rmdir()


def _dead(entry: Entry, folder: Path) -> Entry:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    mark = process_mark(process.pid)
    process.communicate()
    ended = {"pid": process.pid, "mark": mark}
    return msgspec.structs.replace(entry, commands=f"ipc://{folder}/commands", **ended)


def test_what_a_dead_engine_left_is_cleared_away(entry: Entry, folder: Path) -> None:
    path = _write(_dead(entry, folder))
    assert running_engines() == ()
    assert not path.exists()
    assert not list(registry_folder().iterdir())
    assert not folder.exists()


def test_what_a_process_that_is_ending_still_holds_is_cleared_away_by_a_later_look(entry: Entry, folder: Path) -> None:
    path = _write(_dead(entry, folder))
    ending = HeldLock(os.open(folder, os.O_RDONLY))
    assert running_engines() == ()
    assert path.exists()
    assert (folder / "commands").exists()
    ending.let_go()
    assert running_engines() == ()
    assert not path.exists()
    assert not folder.exists()


def test_of_a_folder_that_a_dead_engine_names_only_the_sockets_are_removed(entry: Entry, folder: Path) -> None:
    (folder / "thesis.tex").write_text("years of work")
    path = _write(_dead(entry, folder))
    assert running_engines() == ()
    assert not path.exists()
    assert [left.name for left in folder.iterdir()] == ["thesis.tex"]


def test_a_file_that_is_no_socket_is_not_removed(entry: Entry, folder: Path) -> None:
    (folder / "commands").unlink()
    (folder / "commands").write_text("years of work")
    _write(_dead(entry, folder))
    assert running_engines() == ()
    assert (folder / "commands").read_text() == "years of work"


def test_nobody_deletes_the_sockets_of_an_engine_that_lives(entry: Entry) -> None:
    """They stay also where a dead engine's entry names them."""
    living = SocketFolder()
    (living.path / "commands").touch()
    _write(_dead(entry, living.path))
    assert running_engines() == ()
    assert (living.path / "commands").exists()
    living.remove()


def test_a_step_of_the_clock_disowns_no_engine(entry: Entry, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Linux computes when a process began from the clock: it says another time after the step."""
    named = msgspec.structs.replace(entry, commands=f"ipc://{folder}/commands")
    registration = Registration(named)
    began, now = psutil.Process.create_time, time.time
    monkeypatch.setattr(psutil.Process, "create_time", lambda process: began(process) + 3600)
    monkeypatch.setattr(time, "time", lambda: now() + 3600)
    assert running_engines() == (named,)
    assert registration.path.exists()
    assert (folder / "commands").exists()
    registration.withdraw()


def test_an_engine_that_cannot_be_seen_from_here_but_holds_its_lock_is_left_alone(entry: Entry, folder: Path) -> None:
    """The engine may be in another container that shares the folder: its number here is no process's, or another's."""
    registration = Registration(_dead(entry, folder))
    assert running_engines() == ()
    assert registration.path.exists()
    assert (folder / "commands").exists()
    registration.withdraw()


def test_the_lock_ends_with_the_process_and_not_with_a_child_it_forked(entry: Entry) -> None:
    reader, writer = os.pipe()
    go, going = os.pipe()
    engine = os.fork()
    if engine == 0:
        try:
            held = Registration(msgspec.structs.replace(entry, pid=1))
            if os.fork() == 0:
                os.close(going)
                os.write(writer, b"x")
                os.read(go, 1)
            assert held.path.exists()
        finally:
            os._exit(0)
    os.waitpid(engine, 0)
    assert os.read(reader, 1) == b"x"  # the grandchild runs
    assert running_engines() == ()
    assert not list(registry_folder().iterdir())
    os.write(going, b"x")
    for descriptor in (reader, writer, go, going):
        os.close(descriptor)


@pytest.mark.parametrize("lost", ["entry", "overwritten", "lock", "folder"])
def test_an_engine_puts_back_what_is_missing(entry: Entry, lost: str, monkeypatch: pytest.MonkeyPatch) -> None:
    registration = Registration(entry)
    monkeypatch.setattr(registration_module, "LOOK_SECONDS", 0.0)
    match lost:
        case "entry":
            registration.path.unlink()
        case "overwritten":
            registration.path.write_text("{}")
        case "lock":
            registration._life.unlink()
        case "folder":
            registration.path.unlink()
            registration._life.unlink()
            registration.path.parent.rmdir()
    registration.keep()
    assert running_engines() == (entry,)
    assert registration._held.is_of(registration._life)
    registration.withdraw()
    assert list(registry_folder().iterdir()) == []


def test_sockets_that_were_deleted_or_are_anothers_are_not_connected_to(entry: Entry, folder: Path) -> None:
    named = msgspec.structs.replace(entry, commands=f"ipc://{folder}/commands")
    require_own_sockets(named)
    folder.chmod(0o777)
    with pytest.raises(EngineUnavailable, match="is not spoken to: Others may write to"):
        require_own_sockets(named)
    folder.chmod(0o700)
    gone = msgspec.structs.replace(named, commands=f"ipc://{folder}-gone/commands")
    with pytest.raises(EngineUnavailable, match="was deleted; end it with `djinn stop --force`"):
        require_own_sockets(gone)


def test_only_a_folder_of_sockets_is_removed(entry: Entry, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    _write(msgspec.structs.replace(entry, boot="an earlier one", commands=f"ipc://{precious}/commands"))
    running_engines()
    assert precious.exists()


def test_a_zombie_is_not_alive(entry: Entry) -> None:
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    mark = (Path("/proc") / str(child) / "stat").read_text().rpartition(")")[2].split()[19]
    assert not is_alive(msgspec.structs.replace(entry, pid=child, mark=mark))
    os.waitpid(child, 0)


def test_an_entry_that_cannot_be_read_is_passed_over_and_kept(caplog: pytest.LogCaptureFixture) -> None:
    path = registry_folder() / f"broken{ENTRY_SUFFIX}"
    path.write_text("{")
    assert running_engines() == ()
    assert path.exists()
    assert "broken" in caplog.text


def test_an_engine_whose_files_have_changed_is_not_attached_to(entry: Entry, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    entry = msgspec.structs.replace(entry, files=stamps_in(tmp_path))
    registration = Registration(entry)
    assert adopt(entry.identity, Options()) == entry
    (tmp_path / "adapter_config.json").write_text("{}")
    with pytest.raises(UsageError, match=r"changed since .* \(\d\d:\d\d on .*: adapter_config\.json is new"):
        adopt(entry.identity, Options())
    (tmp_path / "adapter_config.json").unlink()
    os.truncate(tmp_path / "model.safetensors", 3)
    with pytest.raises(UsageError, match=r"cut short: it has 3 bytes and had 7\. Put them back, or"):
        adopt(entry.identity, Options())
    assert "has ended (model.safetensors was cut short: it has 3 bytes and had 7); the next" in ended_sentence(entry)
    registration.withdraw()
