"""Two engine processes of one model. A session moves between them, also where one is killed on the way; a shared
journal is the newer one's, as two machines have it; and an attribution is spread over both, of which one is killed
(sweeps, paths and collections: tests/client/test_spreading.py)."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import djinn_jupyter as dj
from djinn_jupyter.api.engine import RemoteEngine, await_end
from djinn_jupyter.api.stops import Finished
from djinn_jupyter.errors import ClaimLost, EngineUnavailable
from djinn_jupyter.link.channel import ask_for
from djinn_jupyter.link.registry import is_alive
from djinn_jupyter.wire import requests as ask
from tests.process.admitted import admitted
from tests.process.machines_apart import PROMPT as TOKENS
from tests.process.machines_apart import Start, killed, machines_apart

pytestmark = [pytest.mark.processes, pytest.mark.usefixtures("forked")]
PROMPT = "The capital of France is"
MOVE = "0123456789abcdef" * 2


def stopped(engine: RemoteEngine, name: str = "paris") -> dj.RemoteSession:
    session = engine.session(name)
    session.breakpoint("resid_post.4", when="step == 1")
    session.steer("resid_post.2", dj.scale(0.9), -1)
    session.run(PROMPT, max_new_tokens=4)
    return session


def bits(values: object) -> torch.Tensor:
    return torch.as_tensor(values)


def has(engine: RemoteEngine) -> bool:
    return "paris" in [one.name for one in engine.sessions()]


def test_a_session_moves_to_another_process_and_goes_on_bit_for_bit(runtime: Path) -> None:
    """There it is a person's, where the engine is known by a key: here anna is the engine's own user. At last the
    engine is killed that a session leaves: one of the two has it."""
    admitted()
    one = dj.load("demo", threads=1)
    other = dj.load("demo", copy=2, threads=1, listen="tcp://127.0.0.1:*")
    assert dj.beside(one, "2").entry == other.entry
    assert str(other.entry.identity) == "demo (copy 2)"
    session, unmoved = stopped(one), stopped(one, "unmoved")
    hidden = bits(session.stop.hidden)
    moved = session.move(dj.connect(other.entry.listens, key="anna"))
    assert torch.equal(bits(moved.stop.hidden), hidden)
    assert [name.name for name in other.sessions()] == ["anna@paris"]
    assert moved.describe().owner == "anna"
    back = moved.move(one)
    assert torch.equal(bits(back.stop.hidden), hidden)
    assert back.describe().exactness == "exact"
    assert other.sessions() == ()
    moved = back.move(other)
    assert [name.name for name in one.sessions()] == ["unmoved"]
    assert torch.equal(bits(moved.stop.hidden), hidden)
    assert moved.describe().exactness == "exact"
    there, here = moved.resume(), unmoved.resume()
    assert (there.tokens, there.text) == (here.tokens, here.text)
    assert torch.equal(bits(there.logits), bits(here.logits))

    session = stopped(one)
    hidden = bits(session.stop.hidden)
    to = ask_for(other.channel, ask.ReadProvenance()).provenance
    moved.close()
    ask_for(one.channel, ask.SendAway(session="paris", to=to, move=MOVE))
    ask_for(other.channel, ask.TakeIn(session="paris", move=MOVE))
    killed(one)  # either, at every moment: tests/engine/persistence/test_moving.py
    one, other = dj.load("demo", threads=1), dj.load("demo", copy=2, threads=1)
    ask_for(one.channel, ask.SettleMove(session="paris", move=MOVE))
    assert [has(engine) for engine in (one, other)] == [False, True]
    assert torch.equal(bits(other.session("paris").stop.hidden), hidden)


@pytest.fixture
def start(llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    with machines_apart(llama, tmp_path, monkeypatch, shared_journal=str(tmp_path / "shared")) as start:
        yield start


def test_sessions_go_on_bit_for_bit_on_another_machine_and_the_older_engine_stops(start: Start) -> None:
    older = start("a")
    older.session("goes").run(TOKENS, max_new_tokens=3)
    older.session("goes").close()
    session = older.session("paris")
    plain = session.run(TOKENS, max_new_tokens=6)
    assert isinstance(plain, Finished)
    session.breakpoint("resid_post.4", when="step == 2")
    stop = session.run(TOKENS, max_new_tokens=6)
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

    stays = newer.session("stays").run(TOKENS, max_new_tokens=3)
    assert isinstance(stays, Finished)
    os.kill(newer.entry.pid, signal.SIGKILL)
    await_end(newer.entry)
    last = start("a")
    assert sorted(one.name for one in last.sessions()) == ["paris", "stays"]
    assert last.session("stays").describe().tokens == len(TOKENS) + 3


CAPITALS = {"France": "Paris", "Italy": "Rome", "Germany": "Berlin", "Spain": "Madrid"}
PAIRS = [(f"The capital of {a} is", f"The capital of {b} is") for a in CAPITALS for b in CAPITALS if a != b]
METRIC = "logit(' Paris')"


def _attribution(engine: RemoteEngine, **given: Any) -> dj.Grid:
    return dj.attribute(engine, pairs=PAIRS, site="z", over=("layer", "head"), metric=METRIC, top=3, **given)


def test_a_killed_engine_leaves_its_pairs_to_the_other(runtime: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, other, asked = dj.load("demo", threads=1), dj.load("demo", copy=2, threads=1), list[object]()
    follow = other.channel.follow

    def follow_and_kill(session: str, request: Any, heard: Any) -> Any:
        """Kill the engine before it can answer for its second pair: it hears of it only when it stands still."""
        asked.append(request)
        second = len(asked) == 2
        if second:
            os.kill(other.entry.pid, signal.SIGSTOP)
        following = follow(session, request, heard)
        if second:
            os.kill(other.entry.pid, signal.SIGKILL)
        return following

    monkeypatch.setattr(other.channel, "follow", follow_and_kill)
    spread = _attribution(one, beside=[other])
    await_end(other.entry)
    assert len(asked) == 2
    assert spread.is_whole
    assert "An engine was lost, and another computed its pair" in " ".join(spread.notes)
    alone = _attribution(one)
    assert spread.values.tobytes() == alone.values.tobytes()
    assert spread.confirmed.tobytes() == alone.confirmed.tobytes()
    assert one.sessions() == ()
