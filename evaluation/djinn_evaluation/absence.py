"""Swap a session out and back in: the time that a caller waits, and the bytes copied."""

from __future__ import annotations

import time
from dataclasses import dataclass

from djinn_evaluation.course import timed
from djinn_evaluation.link import TimedCopy, Way
from djinn_jupyter.api.engine import RemoteEngine
from djinn_jupyter.api.session import RemoteSession
from djinn_jupyter.errors import DjinnError
from djinn_jupyter.link.channel import expect
from djinn_jupyter.wire.nouns import Transfer
from djinn_jupyter.wire.replies import Swapped
from djinn_jupyter.wire.requests import SwapOut


@dataclass(frozen=True, slots=True, kw_only=True)
class Absence:
    """Milliseconds and bytes of a session's way to the host and back. `copy_ms` and `back_copy_ms` are those of the
    mover's copies; None where all bytes had a copy already."""

    out_ms: float  # from the request until the bytes are on the host
    dispatch_ms: float  # the wait of another session's request meanwhile
    still_ms: float  # the wait of the same request right before, while nothing leaves
    copy_ms: float | None
    back_ms: float  # from the request until the stopped pass can go on
    back_copy_ms: float | None
    bytes_moved: int
    bytes_back: int
    bytes_left: int  # on the device after the order to leave it

    def copies(self) -> list[TimedCopy]:
        """Return the copies of both ways, as the mover timed them."""
        ways: list[tuple[Way, int, float | None]] = [
            ("out", self.bytes_moved, self.copy_ms),
            ("in", self.bytes_back, self.back_copy_ms),
        ]
        return [
            TimedCopy(what=f"A session's way {way}", way=way, nbytes=nbytes, seconds=milliseconds / 1000)
            for way, nbytes, milliseconds in ways
            if milliseconds is not None
        ]


def absence(engine: RemoteEngine, session: RemoteSession) -> Absence:
    """Swap the session to the host and back. DjinnError where nothing moves."""
    bystander = engine.session("bystander")
    _, still_ms = timed(bystander.describe)
    out, out_ms, dispatch_ms = _leave(engine, session, bystander)
    left = session.describe().device_bytes
    back, back_ms = timed(session.swap_in)
    if out is None or back is None:
        raise DjinnError("A stopped session was told to leave the device, and nothing moved.")
    return Absence(
        out_ms=out_ms,
        dispatch_ms=dispatch_ms,
        still_ms=still_ms,
        copy_ms=copy_milliseconds(out),
        back_ms=back_ms,
        back_copy_ms=copy_milliseconds(back),
        bytes_moved=out.bytes_moved,
        bytes_back=back.bytes_moved,
        bytes_left=left,
    )


def copy_milliseconds(moved: Transfer) -> float | None:
    """Return the milliseconds of the mover's copies alone; None where nothing was copied."""
    return None if moved.copy_seconds is None else 1000 * moved.copy_seconds


def _leave(
    engine: RemoteEngine, session: RemoteSession, bystander: RemoteSession
) -> tuple[Transfer | None, float, float]:
    """Return the transfer, the milliseconds until it was over, and the milliseconds until the bystander's request,
    sent right after, was answered."""
    begun = time.perf_counter()
    leaving = engine.channel.ask(SwapOut(session=session.name, tier="host"))
    bystander.describe()
    dispatch_ms = 1000 * (time.perf_counter() - begun)
    moved = expect(leaving.result(), Swapped).transfer
    return moved, 1000 * (time.perf_counter() - begun), dispatch_ms
