"""A session moves between two engine processes of one model; either is killed on the way."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import djinn_jupyter as dj
from djinn_jupyter.api.engine import RemoteEngine
from djinn_jupyter.errors import FingerprintsDiffer
from djinn_jupyter.link.channel import ask_for
from djinn_jupyter.wire import requests as ask
from tests.process.admitted import admitted
from tests.process.machines_apart import killed

pytestmark = pytest.mark.processes
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
    one = dj.load("demo", threads=1)
    other = dj.beside(one, "2")
    assert str(other.entry.identity) == "demo (copy 2)"
    session = stopped(one)
    unmoved = stopped(one, "unmoved")
    hidden = bits(session.stop.hidden)
    moved = session.move(other)
    assert [name.name for name in one.sessions()] == ["unmoved"]
    assert torch.equal(bits(moved.stop.hidden), hidden)
    assert moved.describe().exactness == "exact"
    there, here = moved.resume(), unmoved.resume()
    assert (there.tokens, there.text) == (here.tokens, here.text)
    assert torch.equal(bits(there.logits), bits(here.logits))
    unlike = dj.load("demo", copy=3, threads=2)
    with pytest.raises(FingerprintsDiffer, match=r"differ in threads \(2 here, 1 there\)|threads \(1 here, 2 there\)"):
        moved.move(unlike)
    assert has(other)


def test_a_session_of_one_s_own_engine_is_a_person_s_at_the_other_and_comes_back(runtime: Path) -> None:
    """Here anna is the engine's own user, there she is known by her key."""
    admitted()
    one, there = dj.load("demo", threads=1), dj.load("demo", copy=2, threads=1, listen="tcp://127.0.0.1:*")
    at_the_lab = dj.connect(there.entry.listens, key="anna")
    moved = stopped(one).move(at_the_lab)
    hidden = bits(moved.stop.hidden)
    assert [session.name for session in there.sessions()] == ["anna@paris"]
    assert moved.describe().owner == "anna"
    back = moved.move(one)
    assert torch.equal(bits(back.stop.hidden), hidden)
    assert back.describe().exactness == "exact"
    assert [session.name for session in one.sessions()] == ["paris"]
    assert there.sessions() == ()


@pytest.mark.parametrize(
    ("dies", "after"),
    [
        ("the one that it leaves", "taken"),
        pytest.param("the one that it leaves", "sent", marks=pytest.mark.slow),
        pytest.param("the one that takes it in", "taken", marks=pytest.mark.slow),
        pytest.param("the one that takes it in", "sent", marks=pytest.mark.slow),
    ],
)
def test_one_of_two_processes_has_it_when_either_was_killed(runtime: Path, dies: str, after: str) -> None:
    engines = [dj.load("demo", threads=1), dj.load("demo", copy=2, threads=1)]
    session = stopped(engines[0])
    hidden = bits(session.stop.hidden)
    to = ask_for(engines[1].channel, ask.ReadProvenance()).provenance
    ask_for(engines[0].channel, ask.SendAway(session="paris", to=to, move=MOVE))
    if after == "taken":
        ask_for(engines[1].channel, ask.TakeIn(session="paris", move=MOVE))
    killed(engines[dies == "the one that takes it in"])
    engines = [dj.load("demo", threads=1), dj.load("demo", copy=2, threads=1)]
    ask_for(engines[0].channel, ask.SettleMove(session="paris", move=MOVE))
    assert [has(engine) for engine in engines] == [after == "sent", after == "taken"]
    found = engines[after == "taken"].session("paris")
    assert torch.equal(bits(found.stop.hidden), hidden)
