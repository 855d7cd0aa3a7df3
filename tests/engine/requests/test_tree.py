"""The tree tells of every session's stops, and forks share the numbers of those that they have in common."""

from __future__ import annotations

from typing import Any

from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.nouns import Origin
from tests.engine.desk import Desk, tokens

PROMPT = tokens(6)


def branches(desk: Desk) -> dict[str, Any]:
    return {branch.session: branch for branch in desk.ask(ask.ReadTree()).branches}


def numbers(branch: Any) -> list[int]:
    return [stop.number for stop in branch.stops]


def test_a_session_without_stops_is_a_bare_branch(desk: Desk) -> None:
    (branch,) = branches(desk).values()
    assert (branch.session, branch.state, branch.stops, branch.present, branch.forked_from) == (
        "a",
        "idle",
        (),
        None,
        None,
    )


def test_stops_keep_their_numbers_however_a_session_goes_back_and_on(desk: Desk) -> None:
    for site in (2, 4, 6):
        desk.stop_at(site, "step == 0")
    desk.run(PROMPT)
    desk.resume()
    desk.resume()
    first, second, third = numbers(branches(desk)["a"])
    assert first < second < third
    desk.back(2)
    told = branches(desk)["a"]
    assert (numbers(told), told.present) == ([first, second, third], 0)
    desk.resume()
    again = numbers(branches(desk)["a"])
    assert again[0] == first
    assert again[1] > third, "going on from there made another stop"


def test_a_fork_shares_the_stops_up_to_where_it_began(desk: Desk) -> None:
    desk.stop_at(2, "step == 0")
    desk.stop_at(4, "step == 0")
    desk.run(PROMPT)
    desk.resume()
    desk.back()
    desk.fork("b")
    desk.resume()
    desk.resume("b")
    a, b = branches(desk)["a"], branches(desk)["b"]
    assert b.forked_from == Origin(session="a", stop=numbers(a)[0], tokens=len(PROMPT))
    assert numbers(a)[0] == numbers(b)[0]
    assert numbers(a)[1] != numbers(b)[1]
    desk.close("a")
    assert branches(desk)["b"].forked_from.session == "a", "closed, and remembered"


def test_the_present_stop_is_edited_while_an_edit_is_in_force(desk: Desk) -> None:
    desk.stop_at(2)
    desk.run(PROMPT)
    desk.edit()
    assert branches(desk)["a"].stops[0].edited
    desk.ask(ask.EnableEdit(session="a", number=1, enabled=False))
    assert not branches(desk)["a"].stops[0].edited
