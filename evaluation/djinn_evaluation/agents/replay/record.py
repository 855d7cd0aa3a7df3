"""Record a trace from a running engine, by the events that it publishes to any client.

`python -m djinn_evaluation.agents.replay.record PATH` drives a demo engine for two minutes, as six impatient people
would, and saves the trace of its events.
"""

from __future__ import annotations

import random
import sys
import threading
from pathlib import Path
from queue import SimpleQueue
from time import monotonic, sleep
from typing import Final

import djinn_jupyter as dj
from djinn_evaluation.agents.replay.stage import Event, EventKind, Trace
from djinn_evaluation.benchmarks.harness import engine_of, setting
from djinn_evaluation.machine import computed_on
from djinn_jupyter.api.engine import RemoteEngine
from djinn_jupyter.api.session import RemoteSession
from djinn_jupyter.wire import replies

SECONDS: Final = 120.0
STORY: Final = "The capital of France is Paris. The capital of Italy is Rome. The capital of Spain is"


class Recorder:
    """Listens to all sessions of an engine from now on. `note` adds a user's actions, which no engine publishes."""

    def __init__(self, engine: RemoteEngine) -> None:
        self._engine, self._begun = engine, monotonic()
        self._heard: SimpleQueue[tuple[float, replies.Event]] = SimpleQueue()
        self._notes: list[Event] = []
        self._stop = engine.channel.listen("", lambda event: self._heard.put((self._now(), event)))

    def note(self, session: str, kind: EventKind) -> None:
        self._notes.append(Event(time=self._now(), session=session, kind=kind))

    def trace(self, name: str, origin: str) -> Trace:
        """Return the trace so far. A run takes the bytes that its session has now; unfinished runs are left out."""
        self._stop()
        sizes = {s.name: max(s.device_bytes, s.host_bytes, s.disk_bytes) for s in self._engine.sessions()}
        events: list[Event] = []
        running: dict[str, Event] = {}
        while not self._heard.empty():
            when, event = self._heard.get()
            size = sizes.get(event.session, 0)
            if isinstance(event, replies.SessionRunning):
                running[event.session] = Event(time=when, session=event.session, kind="run", bytes=size)
            elif isinstance(event, replies.SessionClosed):
                events.append(Event(time=when, session=event.session, kind="close"))
            elif isinstance(event, replies.SessionPaused | replies.SessionFinished | replies.SessionFailed):
                run = running.pop(event.session, None)
                state = "paused" if isinstance(event, replies.SessionPaused) else "idle"
                if run is not None:
                    events += [run, Event(time=when, session=event.session, kind="stop", bytes=size, state=state)]
        return Trace.of(name, [*events, *self._notes], origin)

    def _now(self) -> float:
        return monotonic() - self._begun


def drive(engine: RemoteEngine, recorder: Recorder, *, seconds: float, persons: int = 6) -> None:
    """Simulate persons with two sessions and a thread each: they run, stop, step, read, turn to the other session."""
    end = monotonic() + seconds
    threads = [threading.Thread(target=_work, args=(engine, recorder, n, end)) for n in range(persons)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _work(engine: RemoteEngine, recorder: Recorder, number: int, end: float) -> None:
    rand = random.Random(number)
    sessions = [engine.session(f"p{number}n{n}", fresh=True) for n in range(2)]
    for session in sessions:
        session.breakpoint(rand.randrange(1, 5), when="step == 2")
    while monotonic() < end:
        session = rand.choice(sessions)
        recorder.note(session.name, "focused")
        sleep(rand.lognormvariate(0.0, 0.5))
        for _ in range(rand.randrange(1, 5)):
            _cell(session, recorder, rand)
            sleep(rand.lognormvariate(0.5, 0.9))
        recorder.note(session.name, "blurred")
        sleep(rand.choice((0.0, 0.0, rand.lognormvariate(2.0, 0.8))))


def _cell(session: RemoteSession, recorder: Recorder, rand: random.Random) -> None:
    recorder.note(session.name, "expected")
    stop = session.run(f"{STORY * rand.randrange(1, 4)}", max_new_tokens=rand.randrange(4, 24))
    while isinstance(stop, dj.Paused):
        sleep(rand.lognormvariate(0.0, 0.7))
        stop = session.step() if rand.random() < 0.5 else session.resume(free=True)
    recorder.note(session.name, "quiet")


def main() -> None:
    options = {"quick": False, "threads": 1, "device": computed_on()}
    with setting(**options) as place, engine_of("demo", place, page_positions=16) as engine:
        recorder = Recorder(engine)
        drive(engine, recorder, seconds=SECONDS)
        trace = recorder.trace("recorded", f"a demo engine driven for {SECONDS:.0f} s by six threads")
    trace.save(Path(sys.argv[1]))
    print(f"{len(trace.events)} events of {len(trace.sessions)} sessions")


if __name__ == "__main__":
    main()
