from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import psutil
import pytest

from djinn_jupyter.client.registry import is_alive, registry_folder, running_engines
from djinn_jupyter.engine.registration import SOCKET_FOLDER_PREFIX, Registration
from djinn_jupyter.wire.registry import ENTRY_SUFFIX, Entry
from tests.process.served import entry_for

pytestmark = pytest.mark.usefixtures("runtime")


@pytest.fixture
def entry() -> Entry:
    """This very process as an engine."""
    return entry_for("ipc:///nowhere/commands", "ipc:///nowhere/events")


def _write(entry: Entry) -> Path:
    return Registration(entry).path


def test_a_living_engine_is_found_and_its_entry_withdrawn(entry: Entry) -> None:
    registration = Registration(entry)
    assert running_engines() == (entry,)
    registration.withdraw()
    registration.withdraw()
    assert running_engines() == ()


def test_entries_of_other_hosts_are_neither_listed_nor_touched(entry: Entry) -> None:
    path = _write(msgspec.structs.replace(entry, host="another-host", pid=1, created=0.0))
    assert running_engines() == ()
    assert path.exists()


@pytest.mark.parametrize("change", [{"created": 1.0}, {"boot": "an earlier one"}])
def test_another_process_that_was_given_the_number_is_not_the_engine(entry: Entry, change: dict[str, object]) -> None:
    path = _write(msgspec.structs.replace(entry, **change))
    assert running_engines() == ()
    assert not path.exists()


def test_what_a_dead_engine_left_is_cleared_away(entry: Entry, tmp_path: Path) -> None:
    folder = tmp_path / f"{SOCKET_FOLDER_PREFIX}left"
    folder.mkdir()
    (folder / "commands").touch()
    dead = subprocess.Popen([sys.executable, "-c", ""])
    created = psutil.Process(dead.pid).create_time()
    dead.wait()
    left = msgspec.structs.replace(
        entry, pid=dead.pid, created=created, commands=f"ipc://{folder}/commands", events=f"ipc://{folder}/events"
    )
    path = _write(left)
    assert running_engines() == ()
    assert not path.exists()
    assert not folder.exists()


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
    created = psutil.Process(child).create_time()
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    assert not is_alive(msgspec.structs.replace(entry, pid=child, created=created))
    os.waitpid(child, 0)


def test_an_entry_that_cannot_be_read_is_passed_over_and_kept(caplog: pytest.LogCaptureFixture) -> None:
    path = registry_folder() / f"broken{ENTRY_SUFFIX}"
    path.write_text("{")
    assert running_engines() == ()
    assert path.exists()
    assert "broken" in caplog.text
