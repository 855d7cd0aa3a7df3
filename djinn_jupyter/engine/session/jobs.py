"""Jobs: work for one session each, in steps that yield to other jobs."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from djinn_jupyter.engine.loop.mailbox import QueuedRequest
from djinn_jupyter.engine.session.residence import Blocked, JobKind, Pieces, Steps
from djinn_jupyter.engine.session.session import Session
from djinn_jupyter.engine.system.log import LoggedRequest
from djinn_jupyter.wire.base import ReplyBase, person_of


@dataclass(slots=True, kw_only=True, eq=False)
class Job:
    """Work for one session that ends in the reply to `for_request`. A `run` moves the session, a `look` leaves it as it
    is. `blocked` is what its steps yielded last: None, or a function that is True while the job must wait.
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
        """The user whose turn its slices are: the one who asked, else its session's owner."""
        return self.session.owner if self.for_request is None else self.for_request.holder.user

    @property
    def asker(self) -> str | None:
        """The person whose key asked for it, else the one whose session it is; None for the engine's own user."""
        return person_of(self.session.name) if self.for_request is None else self.for_request.holder.person

    @property
    def logged_as(self) -> LoggedRequest | None:
        """The request that it is done for, as the log knows it."""
        return None if self.for_request is None else self.for_request.logged_as

    @property
    def waits(self) -> bool:
        return self.blocked is not None and self.blocked()


@dataclass(frozen=True, slots=True, kw_only=True)
class Underway:
    """The result of a verb whose steps are for a session that is not, or not yet, in the engine's table."""

    session: Session
    steps: Steps[ReplyBase]


# The time that the engine has worked for each person within the last day. Knows no quota and no file.

DAY_SECONDS: Final = 24 * 3600.0
STEP_SECONDS: Final = 600.0  # the time of so long is kept as one number, and forgotten together
WorkedSteps = list[tuple[int, float]]


class RunningTime:
    """Seconds of the engine's thread by person, None being the engine's own user. `clock` is monotonic; `now` is the
    time of day, with which the next engine goes on. `counted_seconds` are all that were counted or taken over here,
    `worked` those of each person that were counted here; it may be read from any thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, now: Callable[[], float] = time.time) -> None:
        self._clock, self._now = clock, now
        self._steps: defaultdict[str | None, dict[int, float]] = defaultdict(dict)
        self._worked: dict[str | None, float] = {}
        self.counted_seconds = 0.0

    @property
    def persons(self) -> tuple[str | None, ...]:
        """Those for whom the engine has worked."""
        return tuple(self._steps)

    @property
    def worked(self) -> Mapping[str | None, float]:
        """The seconds of each person since this engine began, those first for whom it worked first."""
        return self._worked.copy()

    @contextmanager
    def counted(self, person: str | None) -> Iterator[None]:
        """Count the time that passes within for a person."""
        begun = self._clock()
        try:
            yield
        finally:
            self.add(person, self._clock() - begun)

    def add(self, person: str | None, seconds: float) -> None:
        self._count(person, self._step(), seconds)
        self._worked[person] = self._worked.get(person, 0.0) + seconds

    def seconds(self, person: str | None) -> float:
        """Return the seconds within the last day."""
        steps = self._steps.get(person, {})
        for old in [step for step in steps if step <= self._oldest()]:
            del steps[old]
        return sum(steps.values())

    def steps(self) -> Mapping[str | None, WorkedSteps]:
        """Return the seconds of each person within the last day, by step."""
        return {person: sorted(self._steps[person].items()) for person in self._steps if self.seconds(person)}

    def take_over(self, person: str | None, steps: Iterable[tuple[int, float]]) -> None:
        """Count what an earlier engine has worked for a person, as far as it is of the last day."""
        for step, seconds in steps:
            if self._oldest() < step <= self._step() and seconds > 0:
                self._count(person, step, seconds)

    def _count(self, person: str | None, step: int, seconds: float) -> None:
        steps = self._steps[person]
        steps[step] = steps.get(step, 0.0) + seconds
        self.counted_seconds += seconds

    def _oldest(self) -> float:
        """Return the step that is a day ago by now."""
        return self._step() - DAY_SECONDS / STEP_SECONDS

    def _step(self) -> int:
        return int(self._now() // STEP_SECONDS)
