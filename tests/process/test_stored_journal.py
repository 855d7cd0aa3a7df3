"""Engine processes with journals in a store that speaks S3, on machines that share nothing else: `make store-test`
installs what it needs."""

from __future__ import annotations

import os
import random
import signal
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

import djinn_jupyter as dj
from djinn_jupyter.api.engine import RemoteEngine, await_end
from djinn_jupyter.api.stops import Finished, Paused
from djinn_jupyter.errors import ClaimLost, DjinnError, EngineUnavailable, StorageFailed, UsageError
from djinn_jupyter.link.registry import is_alive
from tests.process.machines_apart import PROMPT, Start, machines_apart
from tests.process.s3_server import SECRET, Server, needs_s3, server
from tests.waiting import until

__all__ = ["server"]
PLACE = "s3://lab/djinn"
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), needs_s3]


@pytest.fixture
def start(llama: Path, tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    with machines_apart(llama, tmp_path, monkeypatch, shared_journal=PLACE) as start:
        yield start


def kill(engine: RemoteEngine) -> None:
    os.kill(engine.entry.pid, signal.SIGKILL)
    await_end(engine.entry)


def test_a_session_goes_on_bit_for_bit_after_its_machine_is_lost(start: Start, server: Server, tmp_path: Path) -> None:
    first = start("a")
    plain = first.session("plain").run(PROMPT, max_new_tokens=6)
    assert isinstance(plain, Finished)
    first.session("goes").run(PROMPT, max_new_tokens=3)
    first.session("goes").close()
    session = first.session("paris")
    session.breakpoint("resid_post.4", when="step == 2")
    stop = session.run(PROMPT, max_new_tokens=6)
    hidden, logits = stop.hidden.tobytes(), plain.logits.tobytes()
    kill(first)

    second = start("b")
    assert sorted(one.name for one in second.sessions()) == ["paris", "plain"]
    again = second.session("paris")
    assert again.describe().exactness == "recomputed"
    assert again.stop.hidden.tobytes() == hidden
    again.accept_recomputed()
    resumed = again.resume()
    assert resumed.tokens == plain.tokens
    assert resumed.logits.tobytes() == logits
    second.session("plain").checkpoint("noon")
    assert [one for one in server.names() if one.endswith("noon.djinn")] == ["lab/djinn/checkpoints/noon.djinn"]
    written = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    assert not any(SECRET.encode() in one for one in written)


def test_of_two_engines_that_live_the_newer_has_the_sessions(start: Start) -> None:
    older = start("a")
    session = older.session("paris")
    logits = session.run(PROMPT, max_new_tokens=6).logits.tobytes()
    session.breakpoint("resid_post.4", when="step == 2")
    assert isinstance(session.run(PROMPT, max_new_tokens=6), Paused)
    newer = start("b")
    with pytest.raises((ClaimLost, EngineUnavailable)) as refused:
        session.resume()
    assert "\n" not in str(refused.value)
    await_end(older.entry)
    assert not is_alive(older.entry)
    again = newer.session("paris")
    again.accept_recomputed()
    assert again.resume().logits.tobytes() == logits


def test_an_engine_that_ends_in_order_is_followed_at_once_and_keeps_its_bits(start: Start) -> None:
    first = start("a")
    session = first.session("paris")
    session.breakpoint("resid_post.4", when="step == 2")
    stop = session.run(PROMPT, max_new_tokens=6)
    hidden = stop.hidden.tobytes()
    os.kill(first.entry.pid, signal.SIGTERM)
    await_end(first.entry)
    again = start("a").session("paris")
    assert again.describe().exactness == "exact"  # the same machine has its keys and values on its disk
    assert again.stop.hidden.tobytes() == hidden


def test_engines_that_are_killed_at_any_moment_lose_nothing_that_was_answered(start: Start) -> None:
    draw, engine = random.Random(15), start("0")
    plain = engine.session("plain").run(PROMPT, max_new_tokens=40).tokens
    for machine in range(1, 7):
        answered = Answered(engine)
        answered.start()
        few = draw.randrange(1, 20)
        until(lambda answered=answered, few=few: len(answered.tokens) > few or not answered.is_alive())
        kill(engine)
        answered.join(60)
        engine = start(str(machine))
        found = engine.session("line").describe().tokens - len(PROMPT)
        assert found - len(answered.tokens) in (0, 1)  # the last may have been kept and not answered
        assert tuple(answered.tokens) == plain[: len(answered.tokens)]


class Answered(threading.Thread):
    """Runs a line token by token for as long as its engine lives; `tokens` are those that were answered."""

    def __init__(self, engine: RemoteEngine) -> None:
        super().__init__()
        self._session = engine.session("line")
        self.tokens = list(self._session.run(PROMPT, max_new_tokens=1).tokens)

    def run(self) -> None:
        with suppress(DjinnError):
            while len(self.tokens) < 40:
                self.tokens += self._session.run([], max_new_tokens=1, extend=True).tokens


def test_a_store_that_is_away_is_told_and_an_engine_past_its_lease_stops(start: Start, server: Server) -> None:
    engine = start("a")
    session = engine.session("paris")
    first = session.run(PROMPT, max_new_tokens=2)
    assert first.reply.not_kept is None
    server.stop()
    second = session.run([], max_new_tokens=1, extend=True)
    said = str(second.reply.not_kept)
    assert said.startswith(f"The journal does not have the latest of session 'paris': {PLACE}/")
    assert "could not be written to (Could not connect to the endpoint" in said
    assert "\n" not in said
    server.start()
    until(lambda: engine.statistics().journal_trouble is None)
    server.stop()
    await_end(engine.entry)
    with pytest.raises((ClaimLost, EngineUnavailable)) as refused:
        session.run([], max_new_tokens=1, extend=True)
    assert "\n" not in str(refused.value)
    server.start()
    assert start("b").session("paris").describe().tokens == len(PROMPT) + 3


def test_an_engine_does_not_start_where_there_is_no_place_for_its_journal(
    llama: Path, server: Server, runtime: Path
) -> None:
    with pytest.raises(UsageError, match=r"There is no place for a journal at s3://nobody/djinn .*: make its bucket"):
        dj.load(llama, shared_journal="s3://nobody/djinn")
    server.stop()
    with pytest.raises(StorageFailed, match=r"^s3://lab/djinn could not be written to \(Could not connect"):
        dj.load(llama, shared_journal=PLACE)
