"""Cores that a measurement has for itself, and its ending."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from djinn_evaluation import machine
from djinn_evaluation.course import GOES_ON, Course, TimeIsUp, begin, conducted, ended_from_outside
from djinn_evaluation.validation.flatline import added


def test_the_kernel_says_how_long_threads_had_no_core(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "PROCESSES", tmp_path)
    for thread, text in enumerate(("9 2000000000 7\n", "9 500000000 7\n", "")):
        place = tmp_path / "17" / "task" / str(thread)
        place.mkdir(parents=True)
        (place / "schedstat").write_text(text)
    assert machine.seconds_without_core([17]) == 2.5
    assert machine.seconds_without_core([18]) is None
    assert (added(1.0, 2.0, 2.5), added(1.0, 2.0, 1.9), added(1.0, None, 2.0)) == (1.5, 1.0, None)


def threads(place: Path, process: int, *numbers: int) -> None:
    for number in numbers:
        (place / str(process) / "task" / str(number)).mkdir(parents=True)


def test_all_threads_have_the_cores_first_within_the_block_and_not_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one that a process starts within the block, which begins with the policy of the one that starts it."""
    told = list[tuple[int, int, int]]()

    def schedule(thread: int, policy: int, param: os.sched_param) -> None:
        told.append((thread, policy, param.sched_priority))
        if thread == 9:
            raise ProcessLookupError

    monkeypatch.setattr(machine, "PROCESSES", tmp_path)
    monkeypatch.setattr(os, "sched_setscheduler", schedule)
    threads(tmp_path, 7, 7, 9)
    threads(tmp_path, 8, 8)
    with machine.cores_first([7, 8], asked=True) as granted:
        assert granted
        assert sorted(told) == [(thread, os.SCHED_RR, 1) for thread in (7, 8, 9)]
        told.clear()
        threads(tmp_path, 8, 10)
    assert sorted(told) == [(thread, os.SCHED_OTHER, 0) for thread in (7, 8, 9, 10)]


def test_cores_that_were_not_asked_for_or_are_refused_change_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One process may be refused where another is granted: a comparison has both sides first, or none."""
    policies = {7: os.SCHED_OTHER, 8: os.SCHED_OTHER}
    told = list[tuple[int, int]]()

    def schedule(thread: int, policy: int, param: os.sched_param) -> None:
        told.append((thread, policy))
        if thread == 8:
            raise PermissionError
        policies[thread] = policy

    monkeypatch.setattr(machine, "PROCESSES", tmp_path)
    monkeypatch.setattr(os, "sched_setscheduler", schedule)
    threads(tmp_path, 7, 7)
    threads(tmp_path, 8, 8)
    with machine.cores_first([7, 8], asked=False) as granted:
        assert (granted, told) == (False, [])
    with machine.cores_first([7, 8], asked=True) as granted:
        assert not granted
        assert (7, os.SCHED_RR) in told
        assert set(policies.values()) == {os.SCHED_OTHER}
        told.clear()
    assert told == []


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
