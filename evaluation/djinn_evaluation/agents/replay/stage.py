"""A trace of notebook work: events of sessions with their times and bytes. Values and their file.

kind      means
run       the session is asked to run; `bytes` are its bytes when the run stops
stop      it is stopped in a pass (`paused`) or its run has ended (`idle`), by `state`
focused   its notebook got its user's focus; blurred: it lost it
expected  a cell that uses the session is about to run; quiet: that cell has ended
gone      its kernel has ended (or its laptop was closed); any other event says that it is back
rest      it says that it will be used again in `seconds`
close     it is closed"""

from __future__ import annotations

import heapq
import json
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, Final, Literal, Protocol

from djinn_jupyter.engine.residency import activity, priority
from djinn_jupyter.engine.residency.eviction_policy import Candidate, may_leave_for, victims
from djinn_jupyter.wire.nouns import SessionState

EventKind = Literal["run", "stop", "focused", "blurred", "expected", "quiet", "gone", "rest", "close"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """`time` in seconds since the trace began; `seconds` is the length of a rest that is announced, and in no file."""

    time: float
    session: str
    kind: EventKind
    bytes: int = 0
    state: Literal["paused", "idle"] = "idle"
    seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """Events in the order of time; the runs of a session never overlap."""

    name: str
    events: tuple[Event, ...]
    origin: str

    @classmethod
    def of(cls, name: str, events: Iterable[Event], origin: str) -> Trace:
        ordered = tuple(sorted(events, key=lambda e: e.time))
        running: set[str] = set()
        for event in ordered:
            if event.kind not in ("run", "stop"):
                continue
            if (event.kind == "run") == (event.session in running):
                raise ValueError(
                    f"{name}: session {event.session} has a {event.kind} out of turn at {event.time:.1f} s."
                )
            running.symmetric_difference_update({event.session})
        return cls(name=name, events=ordered, origin=origin)

    @property
    def hours(self) -> float:
        return (self.events[-1].time - self.events[0].time) / 3600.0

    @property
    def sessions(self) -> set[str]:
        return {event.session for event in self.events}

    @property
    def demand(self) -> int:
        """The most bytes that the sessions alive at the same time had together."""
        present: dict[str, int] = {}
        total = most = 0
        for event in self.events:
            if event.kind == "run":
                total += event.bytes - present.get(event.session, 0)
                present[event.session] = event.bytes
            elif event.kind == "close":
                total -= present.pop(event.session, 0)
            most = max(most, total)
        return most

    def durations(self) -> dict[int, tuple[float, Event]]:
        """Return for each run (by its number) the seconds it takes on a free device, and its stop."""
        begun: dict[str, tuple[int, float]] = {}
        found: dict[int, tuple[float, Event]] = {}
        for number, event in enumerate(self.events):
            if event.kind == "run":
                begun[event.session] = (number, event.time)
            elif event.kind == "stop":
                run, when = begun.pop(event.session)
                found[run] = (event.time - when, event)
        return found

    def save(self, path: Path) -> None:
        rows = [[round(e.time, 4), e.session, e.kind, e.bytes, e.state] for e in self.events]
        text = json.dumps({"name": self.name, "origin": self.origin, "events": rows}, separators=(",", ":"))
        path.write_text(text + "\n")

    @classmethod
    def load(cls, path: Path) -> Trace:
        found: dict[str, Any] = json.loads(path.read_text())
        events = [
            Event(time=time, session=session, kind=kind, bytes=size, state=state)
            for time, session, kind, size, state in found["events"]
        ]
        return cls.of(found["name"], events, found["origin"])


# A device on which a trace is played in simulated time: sessions on it, bytes over the link, waiting times of runs.
#
# Whole sessions are swapped out and in, as in the engine; one link, first come first served; dirty bytes are copied
# before their place is free; a second after a stop dirty bytes are copied in the background, which is counted and
# delays no session (in the engine by 32 MiB at most). A run that had to wait stops later by as much; its user's next
# action keeps its time, for a person's pauses are longer; a program (`in_turn`) pauses after its turn. A fork has its
# own bytes only. Swapped-out sessions are on the host while that has room, else on disk.
WRITE_THROUGH_SECONDS: Final = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """Bytes, bytes/s and seconds; `recompute`: bytes that a pass computes anew in a second, 0 where none does."""

    slab: int
    host: int
    host_in: float
    host_out: float
    disk_in: float
    disk_out: float
    latency: float
    recompute: float = 0.0


@dataclass(slots=True, kw_only=True, eq=False)
class Actor:
    """A session on the stage. `ready`: when its bytes are there; `moves`: runs and stops; `late`: seconds waited."""

    name: str
    place: Literal["nowhere", "device", "host", "disk", "discarded"] = "nowhere"
    size: int = 0
    dirty: int = 0
    state: SessionState = "idle"
    held: bool = True
    signals: priority.Signals = priority.QUIET
    ready: float = 0.0
    until: float = 0.0
    waits: bool = False
    last: float = 0.0
    moves: int = 0
    late: float = 0.0

    @property
    def claim(self) -> priority.Claim:
        return priority.claim_of(self.state, held=self.held, signals=self.signals)


@dataclass(slots=True, kw_only=True)
class Score:
    """The cost of a trace. `stalls`: seconds of runs that waited; `returns`: of each run of a session there before."""

    runs: int = 0
    refused: int = 0
    stalls: list[float] = field(default_factory=list)
    returns: list[float] = field(default_factory=list)
    bytes_in: int = 0
    bytes_out: int = 0
    most: int = 0
    byte_seconds: float = 0.0
    prefetches: activity.PrefetchCounts = field(default_factory=activity.PrefetchCounts)


class Policy(Protocol):
    """`order` sorts sessions in the order of eviction; what it `discards` is computed anew and not copied."""

    swaps: bool
    at_once: bool
    times: type[activity.IdleTimes]

    def order(self, stage: Stage, may: list[Actor], now: float) -> list[Candidate]: ...

    def discards(self, stage: Stage, actor: Actor) -> bool: ...


Step = Callable[[float], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanting:
    """A requested run that takes `seconds` on a free device."""

    actor: Actor
    stop: Event
    seconds: float
    asked: float


class Stage:
    def __init__(
        self,
        trace: Trace,
        costs: Costs,
        policy: Policy,
        *,
        prefetch: bool,
        idle_seconds: float | None = None,
        in_turn: bool = False,
    ) -> None:
        self.trace, self.costs, self.policy, self._in_turn = trace, costs, policy, in_turn
        self._prefetch, self._idle_seconds = prefetch, idle_seconds
        self.actors = {name: Actor(name=name) for name in trace.sessions}
        self.idle_times, self.prefetching, self.score = policy.times(), activity.Prefetching(), Score()
        self._agenda: list[tuple[float, int, Step]] = []
        self._numbers = count()
        self._link_free = 0.0
        self._used = self._on_host = 0
        self._counted_until = trace.events[0].time
        self._waiting: deque[Wanting] = deque()

    def play(self) -> Score:
        lasts = self.trace.durations()
        for number, event in enumerate(self.trace.events):
            if event.kind == "run" and number in lasts:
                self._at(event.time, self._put_off(event, self._run_step(event, lasts[number][0], lasts[number][1])))
            elif event.kind not in ("run", "stop"):
                self._at(event.time, self._put_off(event, self._signal_step(event)))
        end = self.trace.events[-1].time
        while self._agenda and self._agenda[0][0] <= end + 60.0 + max(a.late for a in self.actors.values()):
            now, _, step = heapq.heappop(self._agenda)
            self.score.byte_seconds += self._used * max(0.0, now - self._counted_until)
            self._counted_until = max(now, self._counted_until)
            step(now)
        self.prefetching.expire(end + 2 * activity.PATIENCE)
        self.score.prefetches = self.prefetching.counts
        return self.score

    def _at(self, when: float, step: Step) -> None:
        heapq.heappush(self._agenda, (when, next(self._numbers), step))

    def _put_off(self, event: Event, step: Step) -> Step:
        """Return the step, later by what the runs of its session have waited, where that is a program."""

        def later(now: float) -> None:
            due = event.time + self.actors[event.session].late
            self._at(due, later) if now < due else step(now)

        return later if self._in_turn else step

    def _run_step(self, event: Event, seconds: float, stop: Event) -> Step:
        def step(now: float) -> None:
            actor = self.actors[event.session]
            if actor.state == "running":  # its run waited, and its user did not
                self._at(max(actor.until, now) + 0.05, step)
                return
            self.score.runs += 1
            self.idle_times.acts(actor.name, now)
            self.prefetching.used(actor.name, now, present=actor.place == "device" and actor.ready <= now)
            actor.held, actor.state, actor.moves = True, "running", actor.moves + 1
            self._begin(Wanting(actor=actor, stop=stop, seconds=seconds, asked=now), now)

        return step

    def _begin(self, wanting: Wanting, now: float) -> None:
        actor = wanting.actor
        back = actor.size > 0
        ready = self._bring(actor, max(wanting.stop.bytes, actor.size), now)
        actor.waits = ready is None
        if ready is None:
            self._no_room(wanting, now)
            return
        if ready > wanting.asked:
            self.score.stalls.append(ready - wanting.asked)
            actor.late += ready - wanting.asked
        if back:
            self.score.returns.append(ready - wanting.asked)
        actor.until = ready + wanting.seconds
        self._at(actor.until, lambda then: self._stop(actor, wanting.stop, then))

    def _no_room(self, wanting: Wanting, now: float) -> None:
        """Queue the run for the next stop or arrival; refuse it where there is none to wait for."""
        others = [a for a in self.actors.values() if a is not wanting.actor and a.place == "device"]
        coming = [a.ready for a in others if a.state != "running" and a.ready > now]
        if self.policy.swaps and (coming or any(a.state == "running" and not a.waits for a in others)):
            self._waiting.append(wanting)
            if coming:
                self._at(min(coming), self._try_again)
            return
        self.score.refused += 1
        wanting.actor.state, wanting.actor.waits = "idle", False

    def _stop(self, actor: Actor, stop: Event, now: float) -> None:
        actor.state, actor.last, actor.moves = stop.state, now, actor.moves + 1
        self._rests(actor, now)
        if self.policy.at_once:
            self._leave(actor, now)
        moves = actor.moves
        self._at(now + WRITE_THROUGH_SECONDS, lambda then: self._write_through(actor, moves))
        if self._idle_seconds is not None:
            self._at(now + self._idle_seconds, lambda then: self._let_go(actor, moves, then))
        self._try_again(now)

    def _try_again(self, now: float) -> None:
        for _ in range(len(self._waiting)):
            self._begin(self._waiting.popleft(), now)

    def _write_through(self, actor: Actor, moves: int) -> None:
        if actor.moves == moves and actor.place == "device" and self.policy.swaps:
            self.score.bytes_out += actor.dirty
            actor.dirty = 0

    def _let_go(self, actor: Actor, moves: int, now: float) -> None:
        expected = self.idle_times.announced(actor.name, now) is not None
        present = actor.moves == moves and actor.place == "device" and actor.ready <= now
        if present and not expected and self.policy.swaps:
            self._leave(actor, now)

    def _signal_step(self, event: Event) -> Step:
        return lambda now: self._signal(event, now)

    def _signal(self, event: Event, now: float) -> None:
        actor = self.actors[event.session]
        match event.kind:
            case "close" | "rest" if actor.state == "running":  # its run waited, and ends later
                self._at(max(actor.until, now) + 0.05, self._signal_step(event))
                return
            case "close":
                self._close(actor)
                return
            case "rest":
                self._announce(actor, event.seconds, now)
                return
            case "quiet":
                actor.signals = actor.signals.noted("idle")
            case "gone":
                actor.held, actor.signals = False, actor.signals.noted("gone")
            case "focused" | "blurred" | "expected":
                actor.held, actor.signals = True, actor.signals.noted(event.kind)
        if actor.state != "running":
            self._rests(actor, now)
        if self._prefetch and (event.kind == "focused" or event.kind == "expected"):
            self._maybe_prefetch(actor, event.kind, now)

    def _rests(self, actor: Actor, now: float) -> None:
        if actor.size:
            self.idle_times.rests(actor.name, now)

    def _announce(self, actor: Actor, seconds: float, now: float) -> None:
        """Begin a rest whose length the session has announced."""
        if not actor.size:
            return
        self._rests(actor, now)
        self.idle_times.announce(actor.name, now + seconds)
        present = actor.place == "device" and actor.ready <= now
        if present and self.policy.swaps and self._idle_seconds is not None and seconds >= self._idle_seconds:
            self._leave(actor, now)
        moves, due = actor.moves, now + seconds
        if seconds >= WRITE_THROUGH_SECONDS:
            self._write_through(actor, moves)
        if self._prefetch:
            begin = max(now, due - activity.lead(self.restore_seconds(actor)))
            self._at(begin, lambda then: self._return(actor, moves, due, then))

    def _return(self, actor: Actor, moves: int, due: float, now: float) -> None:
        """Bring back a session that announced this, where there is room, which is looked for again until it is due."""
        if actor.moves != moves:
            return
        self._maybe_prefetch(actor, "announced", now)
        if actor.place in ("host", "disk") and now < due:
            self._at(now + activity.AGAIN_SECONDS, lambda then: self._return(actor, moves, due, then))

    def _close(self, actor: Actor) -> None:
        self._leave_device(actor)
        actor.place, actor.size, actor.dirty = "nowhere", 0, 0
        self.idle_times.forget(actor.name)

    def _bring(self, actor: Actor, size: int, now: float) -> float | None:
        """Bring the session to the device with `size` bytes; return the time when it is there, None without room."""
        here = actor.place == "device"
        need = size - actor.size if here else size
        room = self._make_room(actor, need, now)
        if room is None:
            return None
        self._used += need
        self.score.most = max(self.score.most, self._used)
        ready = max(room, actor.ready if here else now)
        if actor.place in ("host", "disk"):
            ready = self._load(actor, room)
        elif actor.place == "discarded":
            ready = room + actor.size / self.costs.recompute
        actor.dirty += size - actor.size
        actor.place, actor.size, actor.ready = "device", size, ready
        return ready

    def _load(self, actor: Actor, begin: float) -> float:
        rate = self.costs.host_in if actor.place == "host" else self.costs.disk_in
        self._on_host -= actor.size if actor.place == "host" else 0
        self.score.bytes_in += actor.size
        return self._transfer(actor.size, rate, begin)

    def _transfer(self, size: int, rate: float, begin: float) -> float:
        self._link_free = max(begin, self._link_free) + self.costs.latency + size / rate
        return self._link_free

    def _make_room(self, wanting: Actor, need: int, now: float) -> float | None:
        """Evict until `need` bytes are free; return that time. None, and no eviction, where that is impossible."""
        missing = self._used + need - self.costs.slab
        if missing <= 0:
            return now
        chosen = self._victims(wanting, missing, now)
        if chosen is None:
            return None
        return max([now, *(self._leave(self.actors[c.session], now) for c in chosen)])

    def _victims(self, wanting: Actor, missing: int, now: float) -> list[Candidate] | None:
        chosen = victims(self._in_order(wanting, now), missing)
        return chosen if sum(c.frees_bytes for c in chosen) >= missing else None

    def _in_order(self, wanting: Actor, now: float) -> list[Candidate]:
        may = [
            a
            for a in self.actors.values()
            if a is not wanting and a.place == "device" and a.state != "running" and a.ready <= now and a.size
        ]
        return self.policy.order(self, may, now) if self.policy.swaps else []

    def _leave(self, actor: Actor, now: float) -> float:
        """Evict the session; return the time when its place is free."""
        goes_to: Literal["host", "disk", "discarded"]
        goes_to = "host" if self._on_host + actor.size <= self.costs.host else "disk"
        if self.policy.discards(self, actor):
            goes_to = "discarded"
        when = now
        if actor.dirty and goes_to != "discarded":
            rate = self.costs.host_out if goes_to == "host" else self.costs.disk_out
            when = self._transfer(actor.dirty, rate, now)
            self.score.bytes_out += actor.dirty
        self._leave_device(actor)
        self._on_host += actor.size if goes_to == "host" else 0
        actor.place, actor.dirty = goes_to, 0
        return when

    def _leave_device(self, actor: Actor) -> None:
        if actor.place == "device":
            self._used -= actor.size
        self.prefetching.left(actor.name)

    def restore_seconds(self, actor: Actor) -> float:
        """Return the seconds to bring the session back from its tier, or from the tier it would be evicted to."""
        far = actor.place == "disk" or (actor.place == "device" and self._on_host + actor.size > self.costs.host)
        return self.costs.latency + actor.size / (self.costs.disk_in if far else self.costs.host_in)

    def _maybe_prefetch(self, actor: Actor, signal: activity.Signal, now: float) -> None:
        if actor.state == "running":
            return
        self.prefetching.signalled(actor.name, signal, now)
        if actor.place not in ("host", "disk"):
            return
        due_in = self.idle_times.announced(actor.name, now) if signal == "announced" else None
        missing = self._used + actor.size - self.costs.slab
        if missing <= 0 or may_leave_for(due_in or 0.0, self._in_order(actor, now), missing):
            self._bring(actor, actor.size, now)
            self.prefetching.began(actor.name, now)
