"""Moments and durations as a person writes them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from djinn_jupyter.errors import UsageError
from djinn_jupyter.units import read_duration, read_moment, spell_duration, spell_moment


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
