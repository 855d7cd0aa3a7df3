"""Two engines on one shared journal, as two machines have them: the newer has the sessions, the older stops."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import djinn_jupyter as dj
from djinn_jupyter.client import loading
from djinn_jupyter.client.engine import RemoteEngine, await_end
from djinn_jupyter.client.engines.registry import is_alive, running_engines
from djinn_jupyter.client.stops import Finished, Paused
from djinn_jupyter.errors import ClaimLost, EngineUnavailable

PROMPT = [1, 5, 6, 7, 8]
pytestmark = pytest.mark.processes
Start = Callable[[str], RemoteEngine]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tests.families import build

    folder = tmp_path_factory.mktemp("model")
    build("llama").save_pretrained(folder)
    return folder


@pytest.fixture
def start(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """Start an engine on a machine of that name: with a registry and user data of its own, and the shared journal."""
    machines: set[str] = set()

    def on(machine: str) -> None:
        machines.add(machine)
        monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path / machine / "runtime"))
        monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path / machine / "data"))

    def start(machine: str) -> RemoteEngine:
        on(machine)
        return dj.load(model, dtype="float32", device="cpu", threads=1, shared_journal=str(tmp_path / "shared"))

    yield start
    for machine in tuple(machines):
        on(machine)
        for entry in running_engines():
            os.kill(entry.pid, signal.SIGTERM)
            await_end(entry)
    loading._channels.close()


def test_sessions_go_on_bit_for_bit_on_another_machine_and_the_older_engine_stops(start: Start) -> None:
    older = start("a")
    assert older.entry is not None
    session = older.session("paris")
    plain = session.run(PROMPT, max_new_tokens=6)
    assert isinstance(plain, Finished)
    session.breakpoint("resid_post.4", when="step == 2")
    stop = session.run(PROMPT, max_new_tokens=6)
    assert isinstance(stop, Paused)
    hidden = stop.hidden.tobytes()

    newer = start("b")
    with pytest.raises((ClaimLost, EngineUnavailable)) as refused:
        session.resume()
    assert "\n" not in str(refused.value)
    assert "load" in str(refused.value)
    await_end(older.entry)
    assert not is_alive(older.entry)

    again = newer.session("paris")
    assert again.stop.hidden.tobytes() == hidden
    again.accept_recomputed()
    resumed = again.resume()
    assert resumed.tokens == plain.tokens
    assert resumed.logits.tobytes() == plain.logits.tobytes()


def test_an_engine_killed_elsewhere_leaves_its_sessions_and_a_closed_one_does_not_come_back(start: Start) -> None:
    first = start("a")
    assert first.entry is not None
    stays = first.session("stays").run(PROMPT, max_new_tokens=3)
    first.session("goes").run(PROMPT, max_new_tokens=3)
    first.session("goes").close()
    os.kill(first.entry.pid, signal.SIGKILL)
    await_end(first.entry)
    second = start("b")
    assert [one.name for one in second.sessions()] == ["stays"]
    assert second.session("stays").describe().tokens == len(PROMPT) + 3
    assert isinstance(stays, Finished)
