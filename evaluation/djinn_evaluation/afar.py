"""A run on an engine that is reached over a line: the words for what is not seen from here, and what its files and its
report say of the line."""

from __future__ import annotations

import statistics
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from djinn_evaluation.course import Course, Unmeasured
from djinn_jupyter.api.engine import RemoteEngine
from djinn_jupyter.link.channel import Channel

OVER: Final = "the engine is reached over a line"
PROCESS_UNSEEN: Final = Unmeasured(reason=f"{OVER}, and its process is not seen from here")
LINK_UNSEEN: Final = Unmeasured(reason=f"{OVER}, and the link of its machine is not seen from here")
LINE_OF_ITS_OWN: Final = Unmeasured(reason=f"{OVER} of its own, and no other is laid before it")
SIDES_APART: Final = Unmeasured(
    reason=f"{OVER}, and the sides beside it compute on this machine: they are no comparison"
)
OTHER_BITS: Final = Unmeasured(
    reason=f"{OVER} and computes other bits than plain Hugging Face on this machine, without any stop: there is no "
    "reference"
)
DOWN: Final = "The line to the engine was down in the run: times of that while have it in them."
PINGS: Final = 9
FIELD: Final = "reached_over_a_line"  # of every result file of such a run


def is_afar(engine: RemoteEngine) -> bool:
    """Return True for an engine that is reached over a line, whose process and machine are not seen from here."""
    return engine.entry is not None and engine.entry.is_afar


def join(thread: threading.Thread, channel: Channel) -> None:
    """Wait for the end of a thread that asks the engine, but not of one that waits for a line, for minutes perhaps."""
    thread.join(None if channel.down_since is None else 0)


def sentence(unmeasured: Unmeasured) -> str:
    """Return a reason as a sentence of the report."""
    return f"{unmeasured.reason[0].upper()}{unmeasured.reason[1:]}."


@contextmanager
def noted(course: Course, engine: RemoteEngine) -> Iterator[None]:
    """Have every file say that the engine is reached over a line, where it is, and how long that is. A line that is
    down for a while in the block leaves the run undecided, for the times of that while are the line's."""
    if not is_afar(engine):
        yield
        return
    course.afar = True
    milliseconds = 1000 * statistics.median(engine.ping() for _ in range(PINGS))
    course.every_file[FIELD] = {"round_trip_ms": milliseconds, "device": engine.description.device}
    course.remark(
        "The engine is reached over a line: its times have the line in them, sides beside it computed on this machine, "
        "so that times of two sides are no comparison, and the machine below is this one."
    )
    forget = engine.channel.watch_line(lambda since: None if since is None else course.leave_open(DOWN))
    try:
        yield
    finally:
        forget()
