"""No reply grows without a bound: every list of every reply has one, and the largest states are told within it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
import pytest

from djinn_jupyter.engine.loop.replies import EngineReading
from djinn_jupyter.engine.requests import bounds, sessions
from djinn_jupyter.engine.requests.bounds import ANSWERED_TOKENS, MOST_STANDING
from djinn_jupyter.engine.residency import older_stops
from djinn_jupyter.engine.session import history as stops
from djinn_jupyter.engine.session import reports
from djinn_jupyter.engine.system.faults import in_short
from djinn_jupyter.errors import UsageError
from djinn_jupyter.link.channel import sessions_of
from djinn_jupyter.wire import codec
from djinn_jupyter.wire import replies as told
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.arrays import Array
from djinn_jupyter.wire.base import MOST_TOKENS
from djinn_jupyter.wire.codec import RUN, entries_of
from djinn_jupyter.wire.edits import Add, Scale
from djinn_jupyter.wire.nouns import LensRow, SessionDescription, TopToken
from djinn_jupyter.wire.sessions import TRIES, Sessions
from djinn_jupyter.wire.texts import LONGEST_MESSAGE
from tests.engine.desk import Desk, desk_of, tokens
from tests.wire import growing

PROMPT = tokens(6)
FEW = 3
VECTOR = Array(dtype="float32", shape=(32,), data=np.ones(32, np.float32).tobytes())


@pytest.fixture
def desk() -> Iterator[Desk]:
    desk = desk_of("llama")
    desk.open()
    yield desk
    desk.close_all()


def test_each_list_of_a_reply_has_its_bound() -> None:
    known = growing.what_bounds()
    found = {name if name in known else f"{name.partition('.')[0]}.*" for name in growing.lists()}
    assert found == set(known)


def test_each_text_of_a_reply_has_its_bound() -> None:
    """Texts without a bound were: the last fault, why a session was set aside, and what a crafted checkpoint says."""
    known = growing.what_bounds(growing.TEXTS)
    assert set(growing.texts()) == set(known)
    long = "x" * 10**6
    assert len(in_short(ValueError(long))) == LONGEST_MESSAGE
    assert len(codec.decode_reply(codec.encode_reply(1, told.Failed(code="a", message=long))).body.message) < 10**4


SET: dict[str, Any] = {
    "breakpoints": lambda number: ask.SetBreakpoint(session="a", site="resid_post.1", when=f"norm > {number}"),
    "steering rules": lambda number: ask.Steer(session="a", site="resid_post.1", edit=Scale(factor=1.0 + number)),
    "watches": lambda number: ask.Watch(session="a", site=f"resid_post.{number}"),
    "edits": lambda number: ask.ApplyEdit(session="a", edit=Scale(factor=1.0 + number)),
}


@pytest.mark.parametrize("what", SET)
def test_a_session_has_a_bounded_number_of_each_and_says_so(
    desk: Desk, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounds, "MOST_STANDING", FEW)
    if what == "edits":
        desk.stop_at(3)
        desk.run(PROMPT)
    for number in range(FEW):
        desk.ask(SET[what](number))
    with pytest.raises(UsageError, match=rf"The session has {FEW} {what}, the most that one may have: take some away"):
        desk.ask(SET[what](FEW))
    if what != "edits":
        desk.ask(SET[what](0))  # that one is there


def test_the_rules_of_a_session_name_a_bounded_number_of_positions(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "MOST_TOKENS", 4)
    desk.steer("resid_post.1", positions=(0, 1))
    desk.steer("resid_post.2", positions=(0, 1))
    with pytest.raises(UsageError, match="The steering rules of the session would name more than 4 positions in all"):
        desk.steer("resid_post.3", positions=(0,))
    assert len(desk.session().rules) == 2


def test_a_session_with_as_much_as_it_may_have_is_described_and_listed(desk: Desk) -> None:
    few = 50
    for number in range(few):
        desk.ask(SET["breakpoints"](number))
        desk.steer("resid_post.1", Add(vector=VECTOR, coef=float(number)))
    desk.open("b")
    times = MOST_STANDING // few
    for reply in (desk.ask(ask.Describe(session="a")), desk.engine.reading.page(0)):
        head, *arrays = codec.encode_reply(1, reply)
        assert times * memoryview(head).nbytes < codec.MAX_ENVELOPE_BYTES // 32
        assert len(arrays) == few
    assert 2 * MOST_STANDING < codec.MAX_FRAMES


def test_sessions_are_listed_in_pages_of_a_bounded_size(desk: Desk) -> None:
    number = 3000
    [one] = desk.engine.reading.described
    described = tuple(msgspec.structs.replace(one, name=f"s{at}") for at in range(number))
    reading = EngineReading(statistics=desk.engine.reading.statistics, described=described, used=(0.0,) * number)
    pages = list[Sessions]()

    def answer(request: ask.ListSessions) -> Sessions:
        pages.append(reading.page(request.first))
        return pages[-1]

    assert sessions_of(answer) == tuple(
        msgspec.structs.replace(one, idle_seconds=there.idle_seconds)
        for one, there in zip(described, (one for page in pages for one in page.sessions), strict=True)
    )
    assert len(pages) > 4
    assert max(sum(map(entries_of, page.sessions)) for page in pages) <= RUN
    assert reading.page(number) == Sessions(sessions=(), first=number, total=number)


def test_a_list_that_changes_meanwhile_is_asked_for_again(desk: Desk) -> None:
    [one] = desk.engine.reading.described
    sessions = tuple(msgspec.structs.replace(one, name=f"s{at}") for at in range(4))

    def pages(told: list[tuple[SessionDescription, ...]]) -> tuple[list[str], int]:
        """Ask for a list of sessions in pages of two; at each request it is the next that is `told`."""
        asked = list[ask.ListSessions]()

        def answer(request: ask.ListSessions) -> Sessions:
            there = told[min(len(asked), len(told) - 1)]
            asked.append(request)
            return Sessions(sessions=there[request.first :][:2], first=request.first, total=len(there))

        return [one.name for one in sessions_of(answer)], len(asked)

    assert pages([sessions, sessions[1:]]) == (["s1", "s2", "s3"], 4)
    assert pages([sessions, ()]) == ([], 3)
    changing = [sessions, sessions[1:]] * TRIES
    assert pages(changing)[1] == 2 * TRIES


def test_a_session_has_a_bounded_number_of_stops_and_says_why_older_ones_are_gone(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (stops, older_stops):
        monkeypatch.setattr(module, "MOST_STOPS", FEW)
    desk.stop_at(3)
    desk.run(PROMPT, new=8)
    for _ in range(5):
        desk.resume()
    desk.settle()
    history = desk.ask(ask.ReadHistory(session="a"))
    assert len(history.stops) == FEW
    with pytest.raises(UsageError, match="A session has at most 3 stops"):
        desk.back(FEW)
    assert isinstance(desk.resume(), told.Paused)


def test_a_tree_tells_a_bounded_number_of_stops_the_present_one_among_them(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk.stop_at(3)
    desk.run(PROMPT, new=8)
    for _ in range(4):
        desk.resume()
    whole = desk.ask(ask.ReadTree()).branches[0]
    monkeypatch.setattr(sessions, "STOPS_TOLD", 2)
    short = desk.ask(ask.ReadTree()).branches[0]
    assert [one.number for one in short.stops] == [one.number for one in whole.stops[-2:]]
    assert (short.dropped, short.present) == (whole.dropped + 3, 1)
    assert [one.index for one in short.stops] == [0, 1]
    desk.back(4)
    here = desk.ask(ask.ReadTree()).branches[0]
    assert (here.stops[here.present].number, len(here.stops)) == (whole.stops[0].number, 2)


def test_changes_of_earlier_passes_beyond_a_number_are_told_by_their_number(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk.stop_at(3, "step >= 1")
    desk.run(PROMPT, new=8)
    for number in range(4):
        desk.steer("resid_post.5", Scale(factor=1.5 + number))
        report = desk.resume()
    whole = report.influences.earlier
    monkeypatch.setattr(reports, "CHANGES_TOLD", len(whole[-1].changes))
    oldest, last = desk.ask(ask.ReadStop(session="a")).influences.earlier
    count = sum(len(one.changes) for one in whole[:-1])
    assert last == whole[-1]
    assert (oldest.start, oldest.end) == (whole[0].start, whole[-2].end)
    assert oldest.changes == (f"{count} changes that are not told one by one",)


def test_a_line_fed_under_more_rules_than_a_recipe_tells_has_none_and_says_why(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    for site in ("resid_post.1", "resid_post.2", "resid_post.3"):
        desk.steer(site)
    desk.run(PROMPT, new=2)
    session = desk.session()
    fed = session.tokens, session.pass_log, session.exactness, session.committed
    assert stops.committed_line(*fed).unmade == ""
    monkeypatch.setattr(stops, "MOST_RULES", 2)
    assert stops.committed_line(*fed).unmade == stops.MANY


def test_the_longest_lens_that_is_not_refused_can_be_sent() -> None:
    top = TopToken(token=128_000, text="\N{EURO SIGN}" * 40, probability=0.1, logit=-1.5)
    row = LensRow(position=131_071, token=1, text="a", top=(top,))
    stop = told.StopIdentity(session="a", number=1, edition=1)
    longest = told.LensRead(stop=stop, site="resid_post.1", rows=(row,) * ANSWERED_TOKENS)
    assert not isinstance(codec.decode_reply(codec.encode_reply(1, longest)).body, told.Failed)
    assert ANSWERED_TOKENS < MOST_TOKENS


def test_the_tokens_of_a_lens_are_in_the_budget_while_it_reads(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    desk.stop_at(3)
    desk.run(PROMPT)
    before, held = desk.engine.budget.taken, list[int]()
    forward = desk.engine.forward
    lens = type(forward).lens

    def watched(self: Any, value: Any) -> Any:
        held.append(desk.engine.budget.held()["lenses"])
        return lens(self, value)

    monkeypatch.setattr(type(forward), "lens", watched)
    desk.ask(ask.Lens(session="a", top=7))
    assert held == [len(PROMPT) * 7 * bounds.TOKEN_BYTES]
    assert desk.engine.budget.taken == before
