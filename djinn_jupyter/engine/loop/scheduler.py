"""Jobs, a slice each, in turns between people and then between the jobs of one: round robin at both. Knows no layers.

A job is a generator that yields between two layers or two tokens: when mail has come, or it is another job's turn.
Running sessions alternate by decode steps; a prefill yields at every layer and never holds them up.

A person's `turns` count those had since the rotation began; the turn is one's who has the fewest of those that are
ready, first come first. One who comes, or whose jobs have all waited, begins where the others are: an absence saves up
no turns, and to go and come back gains none."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Final, TypeVar

from djinn_jupyter.engine.loop.mailbox import Mailbox, QueuedRequest
from djinn_jupyter.engine.session.residence import Blocked, JobKind, Pieces, Steps
from djinn_jupyter.engine.session.session import Session
from djinn_jupyter.engine.system.device import PrefillThrottle
from djinn_jupyter.engine.system.log import LoggedRequest
from djinn_jupyter.wire.base import ReplyBase, person_of

Outcome = TypeVar("Outcome")
LONGEST_WAIT_SECONDS: Final = 0.05


@dataclass(slots=True, kw_only=True, eq=False)
class Job:
    """Work for one session that ends in the reply to `for_request`. A `run` moves the session, a `look` leaves it
    unchanged. `blocked` is the last yield of its steps: None, or a function that is True while the job must wait.
    Without a request the job is done for the requests queued for the session."""

    kind: JobKind
    session: Session
    steps: Steps[ReplyBase] | Pieces
    for_request: QueuedRequest | None
    blocked: Blocked | None = None

    def advance(self) -> None:
        """Do the next step. Raises StopIteration with the reply at the end."""
        self.blocked = next(self.steps)

    @property
    def person(self) -> str:
        """The user whose turn its slices are: the caller, else its session's owner."""
        return self.session.owner if self.for_request is None else self.for_request.holder.user

    @property
    def asker(self) -> str | None:
        """The person whose key asked for it, else the session's person; None for the engine's own user."""
        return person_of(self.session.name) if self.for_request is None else self.for_request.holder.person

    @property
    def logged_as(self) -> LoggedRequest | None:
        """The request of the job, in its form for the log."""
        return None if self.for_request is None else self.for_request.logged_as

    @property
    def waits(self) -> bool:
        return self.blocked is not None and self.blocked()


@dataclass(frozen=True, slots=True, kw_only=True)
class Underway:
    """The result of a verb whose steps are for a session that is not, or not yet, in the engine's table."""

    session: Session
    steps: Steps[ReplyBase]


class FairTurns:
    """Over any time in which a person had a ready job, no other had more than two turns more."""

    def __init__(self) -> None:
        self._jobs: dict[str, deque[Job]] = {}  # people with jobs, in the order in which they are asked
        self._turns: dict[str, int] = {}  # of all who ever came
        self._now = 0  # the turns of the person who had the last one, before it
        self._last: Job | None = None  # the job that had it
        self._waiting: list[str] = []  # the people all of whose jobs waited at the last check

    def __iter__(self) -> Iterator[Job]:
        for jobs in self._jobs.values():
            yield from jobs

    def __len__(self) -> int:
        return sum(map(len, self._jobs.values()))

    def add(self, job: Job) -> None:
        """Add a job at the end of its person's, but before the one that has just had its turn, whose next may last as
        long as a layer of many rows. A reading, which is short, goes to their head, and its person before those who
        have had as many turns."""
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
        """Yield the jobs that do not wait, in the order of their turns: people by turns, their jobs in rotation."""
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


class Lockstep:
    """The rotation when layers stream: running sessions meet at every layer, so that it is fetched once for all. The
    layers are fetched in a cycle, and `at` is the layer of the last run that was chosen. A run gets its turn when the
    cycle is at its next layer, also in the midst of a pass; a run that begins waits until the cycle comes to the first
    layer, and is in step from there on."""

    def __init__(self, layers: int) -> None:
        self._layers = layers
        self.at = 0

    def choose(self, jobs: Sequence[Job]) -> Job:
        """Return a reading, which is short, else the run whose next layer comes first in the cycle; among several the
        one that waited longest. `jobs` are ready, in rotation, and at least one."""
        look = next((job for job in jobs if job.kind == "look"), None)
        if look is not None:
            return look
        chosen = min(jobs, key=lambda job: (self._next_layer(job) - self.at) % self._layers)
        self.at = self._next_layer(chosen)
        return chosen

    def _next_layer(self, job: Job) -> int:
        frame = job.session.frame
        return 0 if frame is None else frame.boundary % self._layers


class Scheduler:
    """The jobs in rotation, or, where `lockstep` is set, in the order of the layers. A session has at most one.
    `waiting` of them have nothing to do until another thread is done."""

    def __init__(self, mailbox: Mailbox, throttle: PrefillThrottle, lockstep: Lockstep | None = None) -> None:
        self._mailbox, self.throttle, self.lockstep = mailbox, throttle, lockstep
        self._jobs = FairTurns()
        self.waiting = 0
        self._at_turn: Job | None = None
        self._prefilling = self._in_step = False

    def __len__(self) -> int:
        return len(self._jobs)

    @property
    def jobs(self) -> tuple[Job, ...]:
        return tuple(self._jobs)

    @property
    def running(self) -> int:
        return sum(job.kind == "run" for job in self._jobs)

    def add(self, job: Job) -> None:
        """Add a job: a reading, which is short, before its person's runs."""
        job.session.begin_work(job.kind)
        self._jobs.add(job)

    def until_done(self, work: Future[Outcome]) -> Generator[None, None, Outcome]:
        """Yield steps of a job that waits for another thread: it yields to other jobs, and sleeps when all wait. Raises
        the error of the work."""
        work.add_done_callback(lambda _: self._mailbox.wake())
        self.waiting += 1
        try:
            while not work.done():
                if self.waiting >= len(self):
                    self._mailbox.wait(LONGEST_WAIT_SECONDS)
                yield
        finally:
            self.waiting -= 1
        return work.result()

    def job_of(self, session: Session) -> Job | None:
        return next((job for job in self._jobs if job.session is session), None)

    def others_go_on(self, session: Session, of: Callable[[Session], bool] = lambda session: True) -> bool:
        """True where a job of another of the sessions `of` neither waits nor checks again for room."""
        others = (job for job in self._jobs if job.session is not session and of(job.session))
        return any(not job.session.residence.parked and not job.waits for job in others)

    def alone(self) -> bool:
        """True where no other job is in the rotation, not even one that waits."""
        return len(self._jobs) <= 1

    def begin_slice(self, job: Job) -> None:
        """Prepare for a slice of the job: prefills yield to other jobs after each layer, and so do runs in lockstep."""
        self._at_turn, frame = job, job.session.frame
        is_run_amid_its_pass = job.kind == "run" and frame is not None
        self._in_step = self.lockstep is not None and is_run_amid_its_pass and self.running > 1
        self._prefilling = job.for_request is None or (frame is not None and len(frame.tokens) > 1)

    def end_slice(self) -> None:
        """Release the job: its session may be closed next, and is freed with it."""
        self._at_turn = None

    def asked(self) -> bool:
        """True where the pass must yield; passes ask between layers."""
        if self._prefilling:
            self.throttle.keep()
        if self._mailbox.waiting:
            return True
        return (self._prefilling or self._in_step) and any(
            job is not self._at_turn and not job.waits for job in self._jobs
        )

    def next(self) -> Job | None:
        """Return the next job and move it to the end of the rotation. None when there is none, or all wait."""
        ready = self._jobs.ready()
        if self.lockstep is None:
            chosen = next(ready, None)
        else:
            chosen = self.lockstep.choose(jobs) if (jobs := list(ready)) else None
        if chosen is not None:
            self._jobs.take(chosen)
        return chosen

    def next_if(self, short: Callable[[Job], bool]) -> Job | None:
        """Return the job whose turn it is and move it to the end of the rotation, if its slice is short and no mail has
        come; else None, and it keeps the turn. None in the order of the layers, too."""
        if self._mailbox.waiting or self.lockstep is not None:
            return None
        chosen = next(self._jobs.ready(), None)
        if chosen is None or not short(chosen):
            return None
        self._jobs.take(chosen)
        return chosen

    def remove(self, job: Job) -> None:
        self._jobs.remove(job)
        job.session.end_work()
