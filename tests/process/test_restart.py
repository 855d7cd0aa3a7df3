"""A broken engine begins anew in its process, and a client that loads meanwhile gets it. The engine is the fake."""

from __future__ import annotations

from pathlib import Path

import pytest

import djinn_jupyter as dj
from djinn_jupyter.api.engine import RemoteEngine, await_end
from djinn_jupyter.engine.process import registration
from djinn_jupyter.errors import EngineBroken, EngineUnavailable
from djinn_jupyter.link.registry import registry_folder
from djinn_jupyter.settings import Identity
from djinn_jupyter.wire.registry import FOLDER, LOCK_SUFFIX
from tests.process.kernels import Kernel

pytestmark = [pytest.mark.usefixtures("fake_site"), pytest.mark.processes]
BREAKING = [98]


def break_it(engine: RemoteEngine) -> str:
    with pytest.raises((EngineBroken, EngineUnavailable)) as told:
        engine.session("paris").run(BREAKING)
    return str(told.value)


def test_who_loads_while_it_begins_anew_waits_for_it() -> None:
    """Two kernels load in the moment in which no engine can be found."""
    engine = dj.load("fake")
    code = "input(); tell(dj.load('fake').entry.pid)"
    kernels = [Kernel(code), Kernel(code)]
    break_it(engine)
    for kernel in kernels:
        kernel.go_on()
    assert {kernel.heard() for kernel in kernels} == {str(engine.entry.pid)}
    for kernel in kernels:
        kernel.end()


def test_it_begins_anew_so_often_and_then_ends() -> None:
    """Under the same number, with the same log."""
    first = dj.load("fake")
    told = [break_it(dj.load("fake")) for _ in range(registration.MOST)]
    assert "The accounting does not agree." in told[0]
    last = dj.load("fake")
    assert (last.entry.pid, last.entry.log) == (first.entry.pid, first.entry.log)
    assert last.entry.commands != first.entry.commands
    assert dj.engines() == (last.entry,)
    assert last.session("rome").run([1], max_new_tokens=2).tokens == (1, 2)
    break_it(last)
    await_end(last.entry)
    assert dj.load("fake").entry.pid != first.entry.pid  # type: ignore[union-attr]
    (log,) = registry_folder().glob("*.log")
    assert "The accounting does not agree." in log.read_text()


def test_the_options_of_the_first_start_are_left_out_of_the_next() -> None:
    told = ["-P", "-m", "engine", "--model=x", "--launcher-pipe", "7", "--launcher-lock=8", "--log", "y"]
    left = ["-P", "-m", "engine", "--model=x", "--log", "y"]
    assert list(registration._without(told, registration._OF_THE_FIRST_START)) == left


def test_a_lock_that_is_a_link_is_not_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registration, "jupyter_runtime_dir", lambda: str(tmp_path))
    identity = Identity(model="x", revision=None, dtype="float32", device="cpu", attention=None)
    folder, elsewhere = tmp_path / FOLDER, tmp_path / "elsewhere"
    folder.mkdir(mode=0o700)
    lock = folder / f"{identity.slug()}{LOCK_SUFFIX}"
    lock.symlink_to(elsewhere)
    restarts = registration.Restarts()
    restarts.hold_lock(identity)
    assert not elsewhere.exists()
    assert restarts._lock is None


def test_restarts_of_long_ago_do_not_count() -> None:
    now = registration.time.monotonic()
    assert registration.Restarts([now - 2 * registration.PERIOD_SECONDS] * 9).allowed
    assert not registration.Restarts([now - 1.0] * registration.MOST).allowed
