"""Names, texts and moments as they are written."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from djinn_jupyter.errors import UsageError
from djinn_jupyter.units import read_duration, read_moment, spell_duration, spell_moment
from djinn_jupyter.wire.base import MOST_CHARACTERS, of_person
from djinn_jupyter.wire.request_base import LONGEST_NAME
from djinn_jupyter.wire.texts import LONGEST_QUOTED, MOST_NAMED, distinct_labels, few_of, in_quotes, natural_order

FOLDERS = st.lists(st.sampled_from(("a", "b", "team")), max_size=4).map("/".join)
NAMES = st.one_of(
    st.builds(lambda folder, stem: f"/{folder}/{stem}.ipynb".replace("//", "/"), FOLDERS, st.sampled_from(("x", "y"))),
    st.sampled_from(("x", "fork", "a/x")),
)


def test_two_notebooks_of_one_name_are_told_apart_by_their_folders() -> None:
    names = ("/ada/one/quick.ipynb", "/ada/two/quick.ipynb", "/ada/two/other.ipynb", "fork")
    assert list(distinct_labels(names).values()) == ["one/quick", "two/quick", "other", "fork"]


def test_folders_of_one_name_need_one_more() -> None:
    assert list(distinct_labels(("/ada/team/x.ipynb", "/bob/team/x.ipynb")).values()) == ["ada/team/x", "bob/team/x"]


@given(st.sets(NAMES, max_size=8))
def test_no_two_names_are_shown_alike(names: set[str]) -> None:
    """Except a session named as another's path is shown, which an engine refuses to open."""
    shown = distinct_labels(names)
    assert set(shown) == names
    paths = [text for name, text in shown.items() if name.endswith(".ipynb")]
    assert len(set(paths)) == len(paths)


def test_names_are_in_the_order_of_the_sidebar() -> None:
    """Digits of any length are compared; Python reads no number of more than 4,300, and none in a superscript two."""
    named = ["1\u00b2", "a", "a/2", "a/10", "a-fork", "B", "b/0", "resid_post.2", "resid_post.10", "x" + "9" * 5000]
    keys = [natural_order(name) for name in named]
    assert all(earlier < later for earlier, later in pairwise(keys))


def test_of_many_names_a_sentence_has_those_like_the_one_that_was_sought_and_a_few_others() -> None:
    rows = [f"s/{row}" for row in range(64)]
    assert few_of([*rows, "paris"], "pariss") == "paris, s/0, s/1, s/2, s/3, s/4, s/5, s/6 and 57 more"
    assert few_of(rows[:MOST_NAMED], "x").endswith("s/6, s/7")
    assert few_of([], "x") == "none"


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("10min", 600), ("8h", 28_800), ("0.5 h", 1800), ("2d", 172_800)]
)
def test_a_duration_is_read(text: str, seconds: float) -> None:
    assert read_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "8", "h", "-8h", "0h", "8 hours", "8h 30min", "1e9h", "nan", "8m"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is no duration; write for example 8h"):
        read_duration(text)


def test_a_moment_is_read_in_any_zone() -> None:
    assert read_moment("2026-12-01T12:00Z") == read_moment("2026-12-01T14:00+02:00") == 1_796_126_400


@pytest.mark.parametrize("text", ["", "soon", "2026", "12:00", "2026-13-01T12:00Z", "10000-01-01T00:00Z"])
def test_what_is_no_moment_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is no moment; write for example 2026-12-01T12:00Z"):
        read_moment(text)


@given(st.floats(0, 253_402_300_799))
def test_a_moment_is_spelled_to_the_second_and_never_too_late(seconds: float) -> None:
    assert seconds - 1 < read_moment(spell_moment(seconds)) <= seconds


@pytest.mark.parametrize("seconds", [1e12, float("inf"), float("nan")])
def test_a_moment_beyond_all_calendars_is_refused(seconds: float) -> None:
    with pytest.raises(UsageError, match="before the year 10000"):
        spell_moment(seconds)


@pytest.mark.parametrize(
    ("seconds", "spelled"),
    [(0, "0 s"), (12.04, "12 s"), (59.4, "59.4 s"), (90, "1.5 min"), (7200, "2 h"), (129_600, "1.5 d")],
)
def test_a_duration_is_spelled_in_the_largest_unit_of_which_there_is_one(seconds: float, spelled: str) -> None:
    assert spell_duration(seconds) == spelled


def test_a_text_that_is_longer_than_any_name_is_quoted_without_its_middle() -> None:
    quoted = in_quotes(f"begins {'x' * 3000} ends")
    assert quoted.startswith("'begins xxx")
    assert quoted.endswith("xxx ends'")
    assert " ... " in quoted
    assert len(quoted) < LONGEST_QUOTED


def test_a_name_is_quoted_whole() -> None:
    longest = of_person("p" * MOST_CHARACTERS, "x" * LONGEST_NAME)
    assert in_quotes(longest) == f"'{longest}'"
