"""The running time of a person: what was counted within the last day, by any clock."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from djinn_jupyter.engine.session.table import DAY_SECONDS, STEP_SECONDS, RunningTime


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


SLICES = st.lists(st.tuples(st.sampled_from(["anna", "bert", None]), st.integers(0, 7200), st.integers(0, 40_000)))


@given(SLICES)
def test_it_is_what_was_counted_within_a_day_give_or_take_a_step(slices: list[tuple[str | None, int, int]]) -> None:
    clock = Clock()
    time = RunningTime(clock, clock)
    done: list[tuple[str | None, float, float]] = []
    for person, seconds, pause in slices:
        with time.counted(person):
            clock.now += seconds
        done.append((person, clock.now, float(seconds)))
        clock.now += pause
    for person in ("anna", "bert", None):
        ended = [(clock.now - at, seconds) for one, at, seconds in done if one == person]
        surely = sum(seconds for ago, seconds in ended if ago <= DAY_SECONDS - STEP_SECONDS)
        at_most = sum(seconds for ago, seconds in ended if ago <= DAY_SECONDS)
        assert surely <= time.seconds(person) <= at_most


def test_what_breaks_off_has_taken_its_time() -> None:
    clock = Clock()
    time = RunningTime(clock, clock)
    try:
        with time.counted("anna"):
            clock.now += 3
            raise ZeroDivisionError
    except ZeroDivisionError:
        pass
    assert (time.seconds("anna"), time.seconds("bert")) == (3.0, 0)
    assert time.persons == ("anna",)
