"""Generated traces: people who work in notebooks. Every distribution is here, and the same seed gives the same trace.

Times between a person's actions are lognormal (Blenn and Van Mieghem 2016, arXiv:1607.02952), given by their median and
sigma. The medians are guesses at reading a stop, reading a result, a break, a lunch; they have not been measured for
this tool, which is why more than one mixture is tried.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field
from typing import Final

from djinn_evaluation.agents.replay.stage import Event, EventKind, Trace

BYTES_PER_TOKEN: Final = 819_200  # 13B in 16 bits: 40 layers x keys and values x 40 heads x 128
HOUR: Final = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Habits:
    """Medians in seconds with their sigma; probabilities; means of geometric counts."""

    paused: float = 0.55  # the probability that a cell's run stops at a breakpoint
    read_stop: tuple[float, float] = (25.0, 1.1)
    read_result: tuple[float, float] = (12.0, 1.0)
    step: tuple[float, float] = (3.0, 0.8)
    run: tuple[float, float] = (1.2, 0.9)
    steps: float = 2.0
    cells: float = 6.0
    look_before: tuple[float, float] = (3.0, 0.6)  # from focus to the first cell
    glance: float = 0.25  # the probability that a notebook is focused and left again
    same_again: float = 0.45
    short_break: tuple[float, float] = (90.0, 0.8)
    coffee: tuple[float, float] = (20 * 60.0, 0.7)
    coffee_share: float = 0.2
    laptop: float = 0.03  # closed after a burst, and its kernels gone from the engine
    laptop_closed: tuple[float, float] = (2.5 * HOUR, 0.5)
    lunch: tuple[float, float] = (50 * 60.0, 0.25)
    sweep: float = 0.06  # a loop over many runs instead of cells
    sweep_runs: float = 150.0
    sweep_run: tuple[float, float] = (0.3, 0.3)
    fork: float = 0.06
    forsake: float = 0.04  # a notebook is left open and never used again
    tokens: tuple[float, float] = (2048.0, 0.6)
    growth: float = 20.0  # mean of the new tokens of a run
    longest: float = 16384.0


OFFICE: Final = Habits()
SWEEPS: Final = Habits(sweep=0.5, paused=0.3)
GLANCES: Final = Habits(glance=0.9)
READERS: Final = Habits(paused=0.9, read_stop=(90.0, 1.4), coffee_share=0.35, laptop=0.08, cells=3.0)


@dataclass(slots=True, kw_only=True)
class Notebook:
    session: str
    tokens: float
    forsaken: bool = False


@dataclass(slots=True, kw_only=True)
class Person:
    name: str
    habits: Habits
    random: random.Random
    hours: float
    notebooks: list[Notebook]
    now: float
    events: list[Event] = field(default_factory=list)
    lunched: bool = False
    forks: int = 0

    def work(self) -> list[Event]:
        at = self.notebooks[0]
        while self.now < self.hours * HOUR:
            at = self._turn_to(at)
            if self.random.random() < self.habits.glance:
                self._wait(self.habits.look_before)
                continue
            self._sweep(at) if self.random.random() < self.habits.sweep else self._cells(at)
            self._after(at)
        return self.events

    def _turn_to(self, at: Notebook) -> Notebook:
        fresh = [n for n in self.notebooks if not n.forsaken]
        chosen = at if not at.forsaken and self.random.random() < self.habits.same_again else self.random.choice(fresh)
        if chosen is not at or not self.events:
            if self.events:
                self._note(at, "blurred")
            self._note(chosen, "focused")
        self._wait(self.habits.look_before)
        return chosen

    def _cells(self, at: Notebook) -> None:
        for _ in range(self._count(self.habits.cells)):
            paused = self.random.random() < self.habits.paused
            self._cell(at, self.habits.run, paused=paused)
            for _ in range(self._count(self.habits.steps) if paused else 0):
                self._wait(self.habits.step)
                self._cell(at, (0.1, 0.3), paused=True)
            self._wait(self.habits.read_stop if paused else self.habits.read_result)

    def _cell(self, at: Notebook, takes: tuple[float, float], *, paused: bool) -> None:
        """Run a magic in a cell of its own."""
        self._note(at, "expected")
        self.now += 0.005
        self._run(at, takes, paused=paused)
        self._note(at, "quiet")

    def _sweep(self, at: Notebook) -> None:
        """Run one cell with a loop."""
        self._note(at, "expected")
        for _ in range(self._count(self.habits.sweep_runs)):
            self.now += 0.03
            self._run(at, self.habits.sweep_run, paused=self.random.random() < 0.5)
        self._note(at, "quiet")

    def _run(self, at: Notebook, takes: tuple[float, float], *, paused: bool) -> None:
        self._note(at, "run")
        at.tokens = min(self.habits.longest, at.tokens + self.random.expovariate(1.0 / self.habits.growth))
        self._wait(takes)
        size = round(at.tokens) * BYTES_PER_TOKEN
        state = "paused" if paused else "idle"
        self.events.append(Event(time=self.now, session=at.session, kind="stop", bytes=size, state=state))
        self.now += 0.001

    def _after(self, at: Notebook) -> None:
        habits, chance = self.habits, self.random.random
        if chance() < habits.fork:
            self.forks += 1
            child = Notebook(session=f"{at.session}-{self.forks}", tokens=max(16.0, at.tokens * 0.1))
            self.notebooks.append(child)
        if chance() < habits.forsake and sum(not n.forsaken for n in self.notebooks) > 1:
            at.forsaken = True
            if chance() < 0.5:
                self._note(at, "gone")
        if not self.lunched and self.now > 3.5 * HOUR:
            self.lunched = True
            self._wait(habits.lunch)
        elif chance() < habits.laptop:
            self._close_laptop()
        elif chance() < habits.coffee_share:
            self._wait(habits.coffee)
        else:
            self._wait(habits.short_break)

    def _close_laptop(self) -> None:
        self.now += 20.0  # of silence, until the engine marks the kernels as gone
        for notebook in self.notebooks:
            self._note(notebook, "gone")
        self._wait(self.habits.laptop_closed)

    def _note(self, at: Notebook, kind: EventKind) -> None:
        size = round(at.tokens) * BYTES_PER_TOKEN
        self.events.append(Event(time=self.now, session=at.session, kind=kind, bytes=size))

    def _wait(self, median_and_sigma: tuple[float, float]) -> None:
        median, sigma = median_and_sigma
        self.now += self.random.lognormvariate(math.log(median), sigma)

    def _count(self, mean: float) -> int:
        """Return a geometric count, at least 1."""
        return 1 + int(self.random.expovariate(1.0) * max(mean - 0.5, 0.1))


def people(name: str, habits: Habits, *, persons: int, notebooks: int, hours: float, seed: int) -> Trace:
    """Return the trace of `persons` with `notebooks` each, who begin within the first half hour."""
    events: list[Event] = []
    for number in range(persons):
        rand = random.Random(f"{name} {seed} {number}")
        median, sigma = habits.tokens
        own = [
            Notebook(session=f"p{number}n{n}", tokens=rand.lognormvariate(math.log(median), sigma))
            for n in range(notebooks)
        ]
        person = Person(
            name=f"p{number}", habits=habits, random=rand, hours=hours, notebooks=own, now=rand.uniform(0, HOUR / 2)
        )
        events += person.work()
    return Trace.of(name, events, f"generated, seed {seed}")


def rounds(name: str, *, sessions: int, hours: float, seed: int) -> Trace:
    """Return a trace that uses the sessions one after the other, over and over: the worst case for LRU."""
    rand = random.Random(f"{name} {seed}")
    events, now, size = [], 0.0, 2048 * BYTES_PER_TOKEN
    while now < hours * HOUR:
        for number in range(sessions):
            session = f"r{number}"
            now += rand.lognormvariate(math.log(8.0), 0.5)
            events.append(Event(time=now - 3.0 * rand.random(), session=session, kind="focused", bytes=size))
            events.append(Event(time=now, session=session, kind="run", bytes=size))
            now += 1.0
            events.append(Event(time=now, session=session, kind="stop", bytes=size))
            events.append(Event(time=now + 0.1, session=session, kind="blurred", bytes=size))
    return Trace.of(name, events, f"generated, seed {seed}")


def generated(name: str, *, seed: int, share: float = 1.0) -> Trace:
    """Return the trace of GENERATED of that name, or the first `share` of its hours."""
    match name:
        case "office":
            return people(name, OFFICE, persons=17, notebooks=3, hours=8.0 * share, seed=seed)
        case "glances":
            return people(name, GLANCES, persons=17, notebooks=3, hours=8.0 * share, seed=seed)
        case "readers":
            return people(name, READERS, persons=17, notebooks=3, hours=8.0 * share, seed=seed)
        case "sweeps":
            return people(name, SWEEPS, persons=10, notebooks=5, hours=2.0 * share, seed=seed)
        case "rounds":
            return rounds(name, sessions=50, hours=4.0 * share, seed=seed)
    raise ValueError(f"There is no trace {name!r}; there are: {', '.join(GENERATED)}.")


GENERATED: Final = ("office", "glances", "readers", "sweeps", "rounds")
