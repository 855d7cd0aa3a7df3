"""Two engines on one shared journal, as two machines have them: the newer has the sessions, the older stops."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from djinn_jupyter.api.engine import await_end
from djinn_jupyter.api.stops import Finished
from djinn_jupyter.errors import ClaimLost, EngineUnavailable
from djinn_jupyter.link.registry import is_alive
from tests.process.machines_apart import PROMPT, Start, machines_apart

pytestmark = pytest.mark.processes


@pytest.fixture
def start(llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    with machines_apart(llama, tmp_path, monkeypatch, shared_journal=str(tmp_path / "shared")) as start:
        yield start


def test_sessions_go_on_bit_for_bit_on_another_machine_and_the_older_engine_stops(start: Start) -> None:
    older = start("a")
    session = older.session("paris")
    plain = session.run(PROMPT, max_new_tokens=6)
    assert isinstance(plain, Finished)
    session.breakpoint("resid_post.4", when="step == 2")
    stop = session.run(PROMPT, max_new_tokens=6)
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
    stays = first.session("stays").run(PROMPT, max_new_tokens=3)
    first.session("goes").run(PROMPT, max_new_tokens=3)
    first.session("goes").close()
    os.kill(first.entry.pid, signal.SIGKILL)
    await_end(first.entry)
    second = start("b")
    assert [one.name for one in second.sessions()] == ["stays"]
    assert second.session("stays").describe().tokens == len(PROMPT) + 3
    assert isinstance(stays, Finished)
