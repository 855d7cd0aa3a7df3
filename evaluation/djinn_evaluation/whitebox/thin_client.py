"""A client with a slow line, such as a phone's: the seconds and the bytes of a stop and of what is looked at there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from djinn_evaluation.afar import LINE_OF_ITS_OWN, is_afar
from djinn_evaluation.course import Course, Unmeasured, timed
from djinn_evaluation.outcomes import paused
from djinn_evaluation.slow_line import Line, over
from djinn_jupyter.api.engine import RemoteEngine
from djinn_jupyter.link.channel import SocketChannel
from djinn_jupyter.link.io_thread import IoThread

LINE: Final = Line(bits_per_second=50e6, delay_seconds=0.02)
REPETITIONS: Final = 6


def measure_thin_client(course: Course, engine: RemoteEngine, layer: int, prompt: list[int]) -> Any:
    """Return the fields of `slow_line`: `seconds` from the request until a stop and the hidden state of its last
    position are there, of each repetition; the same bytes and seconds of the whole hidden state beside."""
    if engine.entry is None:
        return Unmeasured(reason="the engine has no address of its own")
    if is_afar(engine):
        return LINE_OF_ITS_OWN
    course.check_time()
    with _afar(engine) as client:
        session = client.session("thin client", fresh=True)
        session.breakpoint(f"resid_post.{layer}", when="step == 0")
        found = [_stopped(client, session, prompt) for _ in range(REPETITIONS)]
        session.close()
    names = ("seconds", "bytes", "seconds_of_all_positions", "bytes_of_all_positions")
    fields = dict(zip(names, (list(column) for column in zip(*found, strict=True)), strict=True))
    return {"bits_per_second": LINE.bits_per_second, "delay_seconds": LINE.delay_seconds, **fields}


def _stopped(client: RemoteEngine, session: Any, prompt: list[int]) -> tuple[float, int, float, int]:
    def stop() -> Any:
        reached = paused(session.run(prompt, max_new_tokens=1, ignore_eos=True))
        session.inspect(positions=-1)
        return reached

    begun = client.wire_bytes
    reached, milliseconds = timed(stop)
    there = client.wire_bytes
    _, more = timed(lambda: reached.hidden)
    ended = client.wire_bytes
    crossed = there.sent + there.received - begun.sent - begun.received
    further = ended.sent + ended.received - there.sent - there.received
    return milliseconds / 1000, crossed, more / 1000, further


@contextmanager
def _afar(engine: RemoteEngine) -> Iterator[RemoteEngine]:
    """Yield the same engine to a client of its own, at the other end of the line."""
    assert engine.entry is not None
    with over(LINE, engine.entry) as entry:
        thread = IoThread()
        channel = SocketChannel(thread, entry, holder="thin client", user="thin client", notebook=None)
        try:
            yield RemoteEngine(channel, entry)
        finally:
            channel.close()
            thread.stop()
