"""A session moves to and from an engine process whose journal is in a store that speaks S3; either is killed on the
way. `make store-test` installs what it needs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import djinn_jupyter as dj
from djinn_jupyter.api.engine import RemoteEngine
from djinn_jupyter.errors import UsageError
from djinn_jupyter.link.channel import ask_for
from djinn_jupyter.wire import requests as ask
from tests.process.machines_apart import PROMPT, Machine, killed, machines_apart
from tests.process.s3_server import Server, needs_s3, server

__all__ = ["server"]
MOVE = "0123456789abcdef" * 2
JOURNAL, MOVES = "s3://lab/djinn", "s3://lab/djinn/moves"
OF_STORE = {"shared_journal": JOURNAL}
OF_FOLDER = {"moves": MOVES}
WAYS = {
    "store to store": (OF_STORE, OF_STORE),
    "store to folder": (OF_STORE, OF_FOLDER),
    "folder to store": (OF_FOLDER, OF_STORE),
}
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), needs_s3]


@pytest.fixture
def start(llama: Path, tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    with machines_apart(llama, tmp_path, monkeypatch) as start:
        yield start


def stopped(engine: RemoteEngine, name: str = "paris") -> dj.RemoteSession:
    session = engine.session(name)
    session.breakpoint("resid_post.4", when="step == 2")
    session.run(PROMPT, max_new_tokens=6)
    return session


def has(engine: RemoteEngine) -> bool:
    return "paris" in [one.name for one in engine.sessions()]


@pytest.mark.parametrize("way", WAYS)
def test_a_session_moves_and_moves_back_bit_for_bit(start: Machine, server: Server, way: str) -> None:
    one, other = (
        start(name, copy=copy, **options) for name, options, copy in zip("ab", WAYS[way], (1, 2), strict=True)
    )
    session, unmoved = stopped(one), stopped(one, "unmoved").resume()
    hidden = session.stop.hidden.tobytes()
    moved = session.move(other)
    assert [found.name for found in one.sessions()] == ["unmoved"]
    assert moved.describe().exactness == "exact"
    assert moved.stop.hidden.tobytes() == hidden
    moved.fork("there")
    back = moved.move(one)
    assert [found.name for found in other.sessions()] == ["there"]
    for resumed in (back.resume(), other.session("there").resume()):
        assert resumed.tokens == unmoved.tokens
        assert resumed.logits.tobytes() == unmoved.logits.tobytes()
    assert not [name for name in server.names() if name.startswith("lab/djinn/moves/")]


@pytest.mark.parametrize("after", ["sent", "taken"])
@pytest.mark.parametrize("dies", [0, 1], ids=["the one that it leaves", "the one that takes it in"])
@pytest.mark.parametrize("way", WAYS)
def test_one_of_two_has_it_when_either_was_killed(start: Machine, way: str, dies: int, after: str) -> None:
    """The one that is begun anew is on another machine where its journal is in the store."""
    options = WAYS[way]
    engines = [start("a", **options[0]), start("b", copy=2, **options[1])]
    hidden = stopped(engines[0]).stop.hidden.tobytes()
    to = ask_for(engines[1].channel, ask.ReadProvenance())
    assert MOVES in to.stores
    sent = ask.SendAway(session="paris", to=to.provenance, move=MOVE, store=MOVES)
    ask_for(engines[0].channel, sent)
    if after == "taken":
        ask_for(engines[1].channel, ask.TakeIn(session="paris", move=MOVE, store=MOVES))
    killed(engines[dies])
    again = "c" if options[dies] is OF_STORE else "ab"[dies]
    engines = [start(again if dies == at else "ab"[at], copy=at + 1, **options[at]) for at in (0, 1)]
    ask_for(engines[0].channel, ask.SettleMove(session="paris", move=MOVE))
    assert [has(engine) for engine in engines] == [after == "sent", after == "taken"]
    found = engines[after == "taken"].session("paris")
    assert found.stop.hidden.tobytes() == hidden


def test_engines_without_a_place_in_common_say_what_to_do(start: Machine) -> None:
    stored, plain = start("a", **OF_STORE), start("b", copy=2)
    session = stopped(stored)
    with pytest.raises(UsageError, match=f"was not given {MOVES} .* start it with --moves {MOVES}, or give both"):
        session.move(plain)
    assert has(stored)
    assert session.stop.site == "resid_post.4"
    with pytest.raises(UsageError, match="was not given s3://lab/other as a place"):
        ask_for(stored.channel, ask.TakeIn(session="new", move=MOVE, store="s3://lab/other"))
    with pytest.raises(UsageError, match=f"start the other engine with --moves {MOVES}"):
        ask_for(stored.channel, ask.TakeIn(session="new", move=MOVE))
