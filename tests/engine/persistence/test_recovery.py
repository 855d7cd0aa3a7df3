"""An engine that died comes back with every session, and its memory's content is recomputed to the last bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from djinn_jupyter.engine.session import reports
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.nouns import Sampling
from tests.engine.desk import Desk, build_desk, tokens
from tests.engine.persistence.crashes import crashed, forget, journal, written
from tests.engine.persistence.roundtrip import FAMILIES, future, pair_of, reading, rows_of, same
from tests.engine.persistence.works import FEWER, PROMPT, WORKS, in_decode
from tests.families import build

USUAL = ("llama", "gemma3_text", "jamba")  # in `make test`; test_round_trip has them all there


@pytest.mark.parametrize(
    "family", [pytest.param(name, marks=() if name in USUAL else pytest.mark.slow) for name in FAMILIES]
)
def test_every_session_is_found_again_and_goes_on_bit_for_bit(family: str, tmp_path: Path) -> None:
    one, other = pair_of(family)
    journal(one, tmp_path / "alive")
    for work in WORKS if family == "llama" else FEWER:
        one.open()
        work(one)
        written(one)
        assert journal(other, crashed(tmp_path / "alive", tmp_path / work.__name__)) == ("a",)
        found = other.session("a")
        assert reports.describe(found).exactness == "recomputed"
        assert (found.holder, found.owner) == (None, "tester")
        other.ask(ask.Open(session="a"))
        assert same(reading(one), reading(other)), work.__name__
        assert same(future(one), future(other)), work.__name__
        forget(other)
    forget(one)


@pytest.fixture
def pair(tmp_path: Path) -> Any:
    one, other = pair_of("llama")
    journal(one, tmp_path / "alive")
    yield one, other
    if other.engine.persistence.journal is not None:
        forget(other)
    forget(one)


def test_recomputed_holds_until_the_user_accepts_or_runs_anew(pair: tuple[Desk, Desk], tmp_path: Path) -> None:
    one, other = pair
    for name in ("a", "b", "new"):
        one.open(name)
    in_decode(one)
    one.run(PROMPT, new=2, name="b")
    written(one)
    journal(other, crashed(tmp_path / "alive", tmp_path / "dead"))
    told = {one.name: one.exactness for one in other.engine.reading.sessions}
    assert told == {"a": "recomputed", "b": "recomputed", "new": "exact"}
    assert other.fork("c") == "c"
    assert other.describe("c").exactness == "recomputed"
    assert other.ask(ask.Inspect(session="a")).snapshot.exactness == "recomputed"
    assert other.ask(ask.AcceptRecomputed(session="a")).session.exactness == "exact"
    assert other.ask(ask.Inspect(session="a")).snapshot.exactness == "exact"
    other.run(PROMPT, new=2, name="b")
    assert other.describe("b").exactness == "exact"


def test_what_reads_no_rows_needs_no_passes(pair: tuple[Desk, Desk], tmp_path: Path) -> None:
    one, other = pair
    one.open()
    in_decode(one)
    written(one)
    journal(other, crashed(tmp_path / "alive", tmp_path / "dead"))
    before = other.engine.counters.layers_run
    other.ask(ask.Open(session="a"))
    other.ask(ask.ReadStop(session="a"))
    other.ask(ask.ReadHistory(session="a"))
    other.stop_at(6)
    assert other.engine.counters.layers_run == before
    assert other.session("a").needs_recompute
    other.value("resid_post.0")
    assert other.engine.counters.layers_run > before
    assert not other.session("a").needs_recompute


def test_a_running_session_is_found_at_a_committed_step(pair: tuple[Desk, Desk], tmp_path: Path) -> None:
    """A drawn line too: back by a token, and it goes on with the same draws."""
    one, other = pair
    one.open()
    drawn = Sampling(temperature=1.0, seed=5)
    whole = one.run(PROMPT, new=24, sampling=drawn).tokens
    one.open()
    replies: list[Any] = []
    one.post(ask.Run(session="a", tokens=PROMPT, max_new_tokens=24, sampling=drawn, ignore_eos=True), replies)
    kept = one.engine.persistence.journal
    while len(one.session().tokens) < len(PROMPT) + 12:
        one.engine.tick()
    kept.touch("a")
    kept.write(one.engine.sessions, ["a"])
    journal(other, crashed(tmp_path / "alive", tmp_path / "dead"))
    while not replies:
        one.engine.tick()
    found = other.session("a")
    assert (found.state, found.frame) == ("idle", None)
    made = tuple(found.tokens[len(PROMPT) :])
    assert 0 < len(made) < 24
    assert whole[: len(made)] == made
    other.back(by="token")
    assert other.resume(free=True).tokens == whole


def test_rules_that_came_and_went_are_run_again_as_they_held(pair: tuple[Desk, Desk], tmp_path: Path) -> None:
    one, other = pair
    one.open()
    first = one.steer("resid_post.2").rule.number
    one.stop_at(4, when="step in (0, 2)")
    one.run(PROMPT, new=6)
    one.steer("resid_post.1")  # below the stop: not in this pass
    second = one.steer("resid_post.6", positions=(-1,)).rule.number
    one.edit()
    one.resume()
    one.ask(ask.Unsteer(session="a", number=first))
    one.resume()
    one.ask(ask.Unsteer(session="a", number=second))
    one.run(tokens(3, seed=9), new=2, extend=True)
    written(one)
    journal(other, crashed(tmp_path / "alive", tmp_path / "dead"))
    other.value("resid_post.0") if other.session("a").state == "paused" else other.fork("c")
    mine, theirs = one.session().cache, other.session("a").cache
    assert mine.length == theirs.length > len(PROMPT)
    assert same(rows_of(mine), rows_of(theirs))
    assert same(future(one), future(other))


def test_no_room_leaves_it_lost_and_says_so(pair: tuple[Desk, Desk], tmp_path: Path) -> None:
    one, _ = pair
    one.open()
    one.run(tokens(400), new=1)
    written(one)
    weights = one.engine.weights.statistics().bytes_total
    small = build_desk(build("llama"), device_memory=weights + (1 << 18))
    journal(small, crashed(tmp_path / "alive", tmp_path / "dead"))
    for _ in range(2):
        with pytest.raises(Exception, match="pages"):
            small.fork("b")
        assert small.session("a").needs_recompute
    assert small.run(PROMPT, new=2).tokens
    forget(small)


def test_pages_of_another_size_are_not_taken_over(pair: tuple[Desk, Desk], tmp_path: Path) -> None:
    one, other = pair
    one.open()
    one.run(PROMPT, 3)
    one.swap_out("a", "disk")
    written(one)
    journal(other, crashed(tmp_path / "alive", tmp_path / "dead"))
    assert other.session("a").exactness == "recomputed"
    other.ask(ask.Open(session="a"))
    assert same(future(one), future(other))
