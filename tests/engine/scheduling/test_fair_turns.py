"""People have equal turns, however many sessions each runs, how often they look, and when their jobs wait."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from djinn_jupyter.engine.loop.mailbox import Mailbox
from djinn_jupyter.engine.loop.scheduler import Job, Scheduler
from djinn_jupyter.engine.session.residence import Residence
from djinn_jupyter.engine.system.device import PrefillThrottle

PEOPLE: Final = ("anna", "bert", "cora")
MOST_AHEAD: Final = 2


@dataclass(eq=False)
class Session:
    """A session as the scheduler sees it."""

    owner: str
    work: list[str] = field(default_factory=list)
    residence: Residence = field(default_factory=Residence)

    def begin_work(self, kind: str) -> None:
        self.work.append(kind)

    def end_work(self) -> None:
        self.work.pop()


def job_of(person: str, kind: Any = "run") -> Job:
    session: Any = Session(person)
    return Job(kind=kind, session=session, steps=iter(()), for_request=None)


def rotation() -> Scheduler:
    return Scheduler(Mailbox(), PrefillThrottle(None))


def turns_of(scheduler: Scheduler, count: int) -> list[str]:
    return [job.person for _ in range(count) if (job := scheduler.next()) is not None]


def test_twenty_runs_of_one_person_take_every_second_turn() -> None:
    scheduler = rotation()
    jobs = [job_of("anna") for _ in range(20)]
    for job in (*jobs, job_of("bert")):
        scheduler.add(job)
    assert turns_of(scheduler, 40) == ["anna", "bert"] * 20
    assert [scheduler.next() for _ in range(40)][::2] == jobs


def test_the_jobs_of_one_person_alternate_and_a_look_comes_first() -> None:
    scheduler = rotation()
    first, second, look = job_of("anna"), job_of("anna"), job_of("anna", "look")
    scheduler.add(first)
    scheduler.add(second)
    assert [scheduler.next() for _ in range(3)] == [first, second, first]
    scheduler.add(look)
    assert scheduler.next() is look
    scheduler.remove(look)
    assert [scheduler.next() for _ in range(2)] == [second, first]


def test_a_job_that_comes_during_a_turn_has_its_own_before_the_next_of_that() -> None:
    scheduler = rotation()
    first, second, late = job_of("anna"), job_of("anna"), job_of("anna")
    scheduler.add(first)
    scheduler.add(second)
    assert scheduler.next() is first
    scheduler.add(late)
    assert [scheduler.next() for _ in range(4)] == [second, late, first, second]


def test_a_look_comes_before_the_runs_of_others() -> None:
    scheduler = rotation()
    for job in (job_of("anna"), job_of("anna"), job_of("bert", "look")):
        scheduler.add(job)
    assert turns_of(scheduler, 1) == ["bert"]


class Rotation(RuleBasedStateMachine):
    """Jobs come, wait, go on and end in any order. `ahead` has, for two people, the turns that the second had more
    than the first since the first became ready."""

    jobs = Bundle("jobs")

    def __init__(self) -> None:
        super().__init__()
        self.scheduler = rotation()
        self.ahead: dict[tuple[str, str], int] = {}

    @rule(target=jobs, person=st.sampled_from(PEOPLE), kind=st.sampled_from(["run", "look"]))
    def begin(self, person: str, kind: Any) -> Job:
        self.scheduler.add(job := job_of(person, kind))
        return job

    @rule(job=jobs, waits=st.booleans())
    def wait(self, job: Job, waits: bool) -> None:
        job.blocked = (lambda: True) if waits else None

    @rule(job=consumes(jobs))
    def end(self, job: Job) -> None:
        self.scheduler.remove(job)

    @rule(count=st.integers(1, 8))
    def give(self, count: int) -> None:
        for _ in range(count):
            self._count(self.scheduler.next())

    def _count(self, chosen: Job | None) -> None:
        assert (chosen is None) == (not self._ready())
        if chosen is None:
            return
        assert not chosen.waits
        for one in self._ready() - {chosen.person}:
            self.ahead[one, chosen.person] = self.ahead.get((one, chosen.person), 0) + 1
            assert self.ahead[one, chosen.person] <= MOST_AHEAD
        for other in PEOPLE:
            before = self.ahead.get((chosen.person, other), 0)
            self.ahead[chosen.person, other] = max(0, before - 1)

    def _ready(self) -> set[str]:
        return {job.person for job in self.scheduler.jobs if not job.waits}

    @invariant()
    def the_absent_are_owed_nothing(self) -> None:
        ready = self._ready()
        self.ahead = {pair: count for pair, count in self.ahead.items() if pair[0] in ready}

    @invariant()
    def every_session_has_its_work(self) -> None:
        assert all(job.session.work == [job.kind] for job in self.scheduler.jobs)  # type: ignore[comparison-overlap]


Rotation.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestRotation = Rotation.TestCase
