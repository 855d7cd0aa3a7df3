"""The cores of a measurement: the time without one, and all sides before other programs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from djinn_evaluation import machine
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
