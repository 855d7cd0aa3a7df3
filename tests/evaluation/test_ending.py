"""A run is ended once: a further signal while its engine ends is reported and not obeyed, until the user insists."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from djinn_evaluation.course import GOES_ON, Course, TimeIsUp, begin, conducted, ended_from_outside


def late() -> TimeIsUp:
    return TimeIsUp("The run has reached its limit.")


def send(number: signal.Signals) -> None:
    os.kill(os.getpid(), number)


def broken_off(told: list[str], *later: signal.Signals) -> bool:
    """True if the ending of a run that Ctrl-C broke off came to its end, with `later` signals in the middle of it."""
    ended = False

    def run() -> None:
        nonlocal ended
        with ended_from_outside(None, late, told.append):
            try:
                send(signal.SIGINT)
            finally:
                for number in later:
                    send(number)
                ended = True

    with pytest.raises(KeyboardInterrupt):
        run()
    return ended


def test_while_it_is_being_ended_nothing_breaks_off_the_ending() -> None:
    told: list[str] = []
    assert broken_off(told, signal.SIGTERM)
    assert broken_off(told, signal.SIGALRM)
    assert told == []
    assert broken_off(told, signal.SIGINT)
    assert told == [GOES_ON]


def test_who_insists_is_heard() -> None:
    """An engine that does not end cannot hold the user."""
    assert not broken_off([], signal.SIGINT, signal.SIGINT)


def test_what_was_there_before_is_there_again() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM)]
    with ended_from_outside(60.0, late, lambda line: None):
        pass
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM)] == before
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def test_an_impatient_interrupt_still_leaves_a_report(tmp_path: Path) -> None:
    course, reports = begin(tmp_path, "run.log", terminal=False), []

    def work(course: Course) -> list[str]:
        course.write_partial("found.json", ("figure",), {})
        try:
            send(signal.SIGINT)
        finally:
            send(signal.SIGINT)
        return []

    def report(course: Course, failures: list[str]) -> None:
        send(signal.SIGTERM)
        reports.append(failures)

    with pytest.raises(KeyboardInterrupt):
        conducted(course, work, report)
    assert reports == [["The run was ended before it was over."]]
    assert course.written["found.json"]["interrupted"]
