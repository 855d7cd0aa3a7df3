"""A trace of notebook work: events of sessions with their times and bytes. Values and their file.

kind      means
run       the session is asked to run; `bytes` are its bytes when the run stops
stop      it is stopped in a pass (`paused`) or its run has ended (`idle`), by `state`
focused   its notebook got its user's focus; blurred: it lost it
expected  a cell that uses the session is about to run; quiet: that cell has ended
gone      its kernel has ended (or its laptop was closed); any other event says that it is back
rest      it says that it will be used again in `seconds`
close     it is closed
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

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
