"""Closing by names and patterns: whose sessions are meant, with which rows, and what is refused with nothing closed."""

from __future__ import annotations

import re
from fnmatch import translate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from djinn_jupyter.api.engine import RemoteEngine
from djinn_jupyter.errors import SessionsWouldSuffer, UnknownSession, UsageError
from tests.client.reached import reached
from tests.engine.desk import Desk
from tests.magics.double import EngineDouble
from tests.widgets import samples

PROMPT = [9, 8, 7, 21, 22]


def names(engine: RemoteEngine) -> set[str]:
    return {one.name for one in engine.sessions()}


def test_a_batch_is_closed_with_its_rows_and_their_rows(engine: RemoteEngine) -> None:
    engine.session("a").run([PROMPT, PROMPT], max_new_tokens=1)
    engine.session("a/1").run([PROMPT], max_new_tokens=1)
    other = engine.session("ab")
    before = other.run(PROMPT, max_new_tokens=1)
    assert engine.close("a") == ("a", "a/0", "a/1", "a/1/0")
    assert names(engine) == {"ab"}
    assert other.run(PROMPT, max_new_tokens=1).tokens == before.tokens


def test_rows_are_closed_alone_by_their_pattern(engine: RemoteEngine) -> None:
    engine.session("a").run([PROMPT] * 3, max_new_tokens=1)
    assert engine.close("a/[02]") == ("a/0", "a/2")
    assert names(engine) == {"a", "a/1"}


def test_sessions_of_others_are_meant_with_force_alone(desk: Desk) -> None:
    with reached(desk, "kernel-1", "kernel-2") as [one, other]:
        one.session("a").run([PROMPT], max_new_tokens=1)
        other.session("ab")
        assert other.close("a*") == ("ab",)
        with pytest.raises(
            UnknownSession, match=r"^No session of this notebook matches 'a\*'; add --force .*: a, a/0\.$"
        ):
            other.close("a*")
        with pytest.raises(SessionsWouldSuffer):
            other.close("a")
        assert names(one) == {"a", "a/0"}
        assert other.close("a*", force=True) == ("a", "a/0")


@pytest.mark.parametrize("word", ["nowhere", "no*", "[a", ""])
def test_a_name_that_means_nothing_closes_nothing(engine: RemoteEngine, word: str) -> None:
    engine.session("b")
    with pytest.raises(UnknownSession):
        engine.close("b", word)
    assert names(engine) == {"b"}
    with pytest.raises(UsageError, match=r"^Name the sessions to close"):
        engine.close()


def test_a_name_with_signs_of_a_pattern_is_a_name_first(engine: RemoteEngine) -> None:
    for name in ("[a]", "a", "*"):
        engine.session(name)
    assert engine.close("[a]") == ("[a]",)
    assert engine.close("*") == ("*",)
    assert names(engine) == {"a"}


WORDS = st.text("ab*", min_size=1, max_size=3)
SESSIONS = st.dictionaries(
    st.builds(
        "{}{}".format, st.text("ab", min_size=1, max_size=2), st.sampled_from(["", "/0", "/1", "/1/0", ".ipynb"])
    ),
    st.sampled_from([("kernel-1", None), ("kernel-2", None), (None, None), (None, "c.ipynb")]),
    min_size=1,
).filter(lambda there: len({name.removesuffix(".ipynb") for name in there}) == len(there))


@given(SESSIONS, st.lists(WORDS, min_size=1, max_size=3), st.booleans())
def test_what_is_closed_is_what_the_words_say(
    there: dict[str, tuple[str | None, str | None]], words: list[str], force: bool
) -> None:
    double = EngineDouble()
    for name, (holder, notebook) in there.items():
        double.sessions[name] = samples.session(name, holder=holder, notebook=notebook)
    engine = RemoteEngine(double.channel)
    own = {name for name, whose in there.items() if force or whose in [("kernel-1", None), (None, None)]}
    shown = {name: name.removesuffix(".ipynb") for name in there}
    meant = set[str]()
    try:
        closed = set(engine.close(*words, force=force))
    except (UnknownSession, SessionsWouldSuffer):
        return
    for word in words:
        exact = {name for name in there if word in (name, shown[name])}
        meant |= exact or {name for name in own if re.match(translate(word), shown[name])}
    while below := {row for row in own - meant if row.rpartition("/")[0] in {shown[name] for name in meant}}:
        meant |= below
    assert closed == meant
    assert set(double.sessions) == set(there) - meant
