"""Turns between people, and then between the jobs of one: round robin at both. Knows no layers.

A person's `turns` count those had since the rotation began; the turn is one's who has the fewest of those that are
ready, first come first. One who comes, or whose jobs have all waited, begins where the others are: an absence saves up
no turns, and to go and come back gains none.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from djinn_jupyter.engine.scheduling.jobs import Job


class FairTurns:
    """Over any time in which a person had a job that was ready, no other had more than two turns more."""

    def __init__(self) -> None:
        self._jobs: dict[str, deque[Job]] = {}  # of the people who have some, in the order in which they are asked
        self._turns: dict[str, int] = {}  # of all who ever came
        self._now = 0  # the turns of those who had the last one, before it
        self._last: Job | None = None  # the job that had it
        self._waiting: list[str] = []  # the people all of whose jobs waited at the last look

    def __iter__(self) -> Iterator[Job]:
        for jobs in self._jobs.values():
            yield from jobs

    def __len__(self) -> int:
        return sum(map(len, self._jobs.values()))

    def add(self, job: Job) -> None:
        """Add a job at the end of its person's, but before the one that has just had its turn, whose next may last as
        long as a layer of many rows: a look, which is short, at their head, and its person before those who have had as
        many turns."""
        person, is_look = job.person, job.kind == "look"
        jobs = self._jobs.setdefault(person, deque())
        if not jobs:
            self._catch_up(person)
        if is_look:
            jobs.appendleft(job)
            self._jobs = {person: jobs, **self._jobs}
        else:
            jobs.insert(len(jobs) - bool(jobs and jobs[-1] is self._last), job)

    def remove(self, job: Job) -> None:
        jobs = self._jobs[job.person]
        jobs.remove(job)
        if job is self._last:
            self._last = None
        if not jobs:
            del self._jobs[job.person]

    def ready(self) -> Iterator[Job]:
        """Yield the jobs that do not wait, as they come in turn: people by their turns, the jobs of each in
        rotation."""
        self._waiting = []
        for person in sorted(self._jobs, key=self._turns.__getitem__):
            ready = (job for job in self._jobs[person] if not job.waits)
            first = next(ready, None)
            if first is None:
                self._waiting.append(person)
                continue
            yield first
            yield from ready

    def take(self, job: Job) -> None:
        """Count a turn of a job, and put it and its person last."""
        person = job.person
        jobs = self._jobs.pop(person)
        self._jobs[person] = jobs
        jobs.remove(job)
        jobs.append(job)
        self._last = job
        self._now = max(self._now, self._turns[person])
        self._turns[person] += 1
        for one in self._waiting:  # up to the turns that count from now on, not those before
            self._catch_up(one)

    def _catch_up(self, person: str) -> None:
        self._turns[person] = max(self._turns.get(person, 0), self._now)
