"""A session: one line of work. Its tokens, pages, stop, history, breakpoints, rules and watches. Moves by the table."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from torch import Tensor

from djinn_jupyter.engine import states
from djinn_jupyter.engine.breakpoints import Breakpoint
from djinn_jupyter.engine.crossing import Journal
from djinn_jupyter.engine.frame import Frame
from djinn_jupyter.engine.history import Checkpoint, History
from djinn_jupyter.engine.line import Line
from djinn_jupyter.engine.mailbox import Letter
from djinn_jupyter.engine.memory.blobs import Blobs
from djinn_jupyter.engine.memory.cache import PagedCache
from djinn_jupyter.engine.plan import Observer, Plan, Target, make_plan
from djinn_jupyter.engine.residency.belongings import Belongings
from djinn_jupyter.engine.residency.residence import Residence
from djinn_jupyter.engine.steering import Rule
from djinn_jupyter.engine.stop_edits import StopEdit
from djinn_jupyter.engine.trail import Trail
from djinn_jupyter.engine.watches import Watch
from djinn_jupyter.errors import IllegalMove
from djinn_jupyter.wire.names import label
from djinn_jupyter.wire.nouns import Exactness, Origin, SessionDescription, SessionState, StopIdentity

if TYPE_CHECKING:
    from djinn_jupyter.engine.scheduler import Job


@dataclass(slots=True, kw_only=True)
class Session:
    """`tokens` are all of the line, of which the first `cache.length` are committed. `frame` is where the present pass
    stands, None between runs. `waiting` are letters that came while somebody looked at the stop, or while its bytes
    were elsewhere; `blobs` the engine's account of tensors that are not pages, once the session is one of its. `lost`:
    its rows and states went with an earlier process, and are made again from the trail before they are needed. `runs`
    counts the prompts that it was given. `stop` and `edition` number where it stands and what value is there, None
    while it runs. `used_by` is the holder whose magics act on it."""

    name: str
    owner: str
    holder: str | None
    cache: PagedCache
    history: History
    state: SessionState = "idle"
    tokens: list[int] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    journal: Journal = field(default_factory=dict)
    trail: Trail = field(default_factory=Trail)
    exactness: Exactness = "exact"
    lost: bool = False
    frame: Frame | None = None
    edits: list[StopEdit] = field(default_factory=list)
    line: Line | None = None
    logits_1V: Tensor | None = None
    breakpoints: dict[int, Breakpoint] = field(default_factory=dict)
    rules: dict[int, Rule] = field(default_factory=dict)
    watches: dict[str, Watch] = field(default_factory=dict)
    numbers_given: int = 0
    runs: int = 0
    forked_from: Origin | None = None
    used_by: str | None = None
    stop: int | None = None
    edition: int | None = None
    last_edition: int = 0
    rule_numbers_given: int = 0
    plan_version: int = 0
    job: Job | None = None
    pause_requested: bool = False
    waiting: deque[Letter] = field(default_factory=deque)
    residence: Residence = field(default_factory=Residence)
    blobs: Blobs | None = None
    last_used: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self.last_edition = max(self.last_edition, self.edition or 0)
        if self.stop is None:
            self.stand()

    @property
    def committed(self) -> int:
        """Positions that are committed, also where their rows are lost."""
        return self.trail.end if self.lost else self.cache.length

    @property
    def lines(self) -> list[Line]:
        """The lines of its stops and its own, each once."""
        lines = {id(stop.line): stop.line for stop in self.history.stops}
        if self.line is not None:
            lines[id(self.line)] = self.line
        return list(lines.values())

    def lose_rows(self) -> None:
        """Its rows and states cannot be had again; they will be made again."""
        self.cache.free()
        for line in self.lines:
            line.states = {length: {} for length in line.states}
        if self.blobs is not None:
            self.blobs.untidy = True
        self.residence.storages_known = None  # a copy under way may hold storages that are its no more
        self.lost, self.exactness = True, "recomputed"

    def break_off(self) -> None:
        """A run that does not go on leaves it at the last committed step, idle."""
        self.cache.restore_all(self.journal)
        self.journal.clear()
        self.frame = None
        self.history.present = None
        self.move("fail")
        self.residence.touch()

    def move(self, move: states.Move) -> None:
        self.state = states.after(self.state, move, self.name)
        self.last_used = time.monotonic()
        self.stand()

    def stand(self) -> None:
        """It has come to stand somewhere, under a number that no other stop of its name has; none while it runs."""
        self.stop = self.edition = None if self.state == "running" else self._next_edition()

    def change_value(self, frame: Frame) -> None:
        """The same stop with another value."""
        self.frame = frame
        self.edition = self._next_edition()

    def _next_edition(self) -> int:
        """Microseconds of the clock, and always more than before: numbers of a session that was closed, or lost with
        its journal, are not met again by one of the same name. Below 2^53, as JavaScript needs it."""
        self.last_edition = max(self.last_edition + 1, time.time_ns() // 1000)
        return self.last_edition

    @property
    def standing(self) -> StopIdentity | None:
        """What a view that reads from it now has read from; None while it runs."""
        if self.stop is None or self.edition is None:
            return None
        return StopIdentity(session=self.name, number=self.stop, edition=self.edition)

    def check_move(self, move: states.Move) -> None:
        """Raise what `move` would raise, and change nothing."""
        states.after(self.state, move, self.name)

    def check_stop(self, seen: StopIdentity) -> None:
        """IllegalMove where it does not stand, or stands no more, at the stop and the edition that somebody sees."""
        if self.standing == seen:
            return
        name = label(self.name)
        if self.stop == seen.number and self.frame is not None:
            raise IllegalMove(
                f"Session {name!r} was edited meanwhile: the stop you see is gone. Look again, then go on."
            )
        now = f"stands at {self._place}" if self._place is not None else f"is {self.state}"
        raise IllegalMove(f"Session {name!r} has moved on meanwhile and {now}: the stop you see is gone.")

    @property
    def _place(self) -> str | None:
        """The site that a pass is stopped at, and its step."""
        frame = self.frame if self.state == "paused" else None
        return None if frame is None or frame.tap is None else f"{frame.tap.site}, step {frame.step}"

    def next_number(self) -> int:
        """Numbers of breakpoints are never used twice."""
        self.numbers_given += 1
        return self.numbers_given

    @property
    def rules_in_force(self) -> tuple[Rule, ...]:
        """Its rules without those that are turned off."""
        return tuple(rule for rule in self.rules.values() if rule.enabled)

    @property
    def edits_in_force(self) -> tuple[str, ...]:
        """The edits of the present stop in words, without those that are turned off."""
        return tuple(edit.what for edit in self.edits if edit.enabled)

    def next_stop_number(self) -> int:
        """Of a stop of the history: never used twice, and kept by forks for the stops that they share."""
        return self._next_edition()

    def next_rule_number(self) -> int:
        """Rules have numbers of their own, never used twice."""
        self.rule_numbers_given += 1
        return self.rule_numbers_given

    def next_frame(self, *, one_by_one: bool = False) -> Frame:
        """The pass over the tokens that are not committed; over the first of them where a family has to be fed
        singly."""
        committed = self.cache.length
        pending = self.tokens[committed:]
        fed = pending[:1] if one_by_one and committed else pending
        return Frame(tokens=tuple(fed), committed=committed, step=self.step_at(committed + len(fed)))

    def step_at(self, end: int) -> int:
        """0 while a pass feeds prompt tokens, n when it feeds the n-th generated one."""
        return 0 if self.line is None else max(0, end - self.line.begins)

    def plan(self, *, free: bool, targets: Iterable[Target], yields: Callable[[], bool]) -> Plan:
        armed = [] if free else [b for b in self.breakpoints.values() if b.enabled]
        return make_plan(
            rules=self.rules_in_force, observers=self.watches.values(), halts=(*armed, *targets), yields=yields
        )

    def side_plan(
        self,
        targets: Iterable[Target],
        yields: Callable[[], bool],
        *,
        ruled: bool,
        observers: Iterable[Observer] = (),
    ) -> Plan:
        """For looking: no watches, no breakpoints, rules without their books (none at all where the pass is run again:
        there the inlays of the frame say what the rules made)."""
        rules = self.rules_in_force if ruled else ()
        return make_plan(rules=rules, observers=observers, halts=tuple(targets), counted=False, yields=yields)

    def stand_at(self, checkpoint: Checkpoint) -> None:
        """Take everything back to how it was at a stop."""
        self.line = checkpoint.line
        self.line.sampler.generator.set_state(checkpoint.generator)
        self.cut(list(checkpoint.tokens), checkpoint.frame.committed)
        self.frame = checkpoint.frame
        self.edits.clear()

    def recount(self, layers: int) -> None:
        """The books of a line that went back to the present frame are those of the way that leads there, through a
        model of so many layers."""
        assert self.line is not None and self.frame is not None
        self.line.passes = self.trail.count(self.line.fed_from, self.frame.committed)
        self.line.layers_run = self.line.passes * layers + self.frame.boundary

    def cut(self, tokens: list[int], committed: int) -> None:
        """Make the line shorter: `tokens` are what stays of it, the first `committed` of them committed."""
        assert self.line is not None
        self.tokens = tokens
        del self.texts[len(tokens) :]
        new = max(0, len(tokens) - self.line.begins)
        del self.line.drawn[new:], self.line.log_probabilities[new:]
        for length in [length for length in self.line.states if length > committed]:
            del self.line.states[length]  # what comes there now may be something else
        self.cache.rewind(committed)
        self.trail.cut(committed)

    def describe(self) -> SessionDescription:
        frame = self.frame if self.state == "paused" else None
        pages = self.cache.statistics()
        own = Belongings.count(self, self.blobs) if self.blobs is not None else Belongings.nothing()
        return SessionDescription(
            name=self.name,
            owner=self.owner,
            holder=self.holder,
            state=self.state,
            tokens=len(self.tokens),
            committed=self.committed,
            stopped_at=str(frame.tap.site) if frame is not None and frame.tap is not None else None,
            step=None if frame is None else frame.step,
            breakpoints=tuple(b.describe() for b in self.breakpoints.values()),
            rules=tuple(r.describe() for r in self.rules.values()),
            watches=tuple(w.describe() for w in self.watches.values()),
            stops_kept=len(self.history.stops),
            stop=self.standing,
            pages=pages.pages,
            device_bytes=own.device + pages.working_bytes,
            exactness=self.exactness,
            idle_seconds=time.monotonic() - self.last_used,
            residency=self.residence.state,
            host_bytes=own.host,
            disk_bytes=own.disk,
            dirty_bytes=own.dirty,
            last_transfer=self.residence.last_transfer,
            in_use=self.holder is not None and self.used_by == self.holder,
        )
