"""Swap a session out and back in: the time that a caller waits, and the bytes copied."""

from __future__ import annotations

import time
from dataclasses import dataclass

from djinn_jupyter.client.connection.channel import expect
from djinn_jupyter.client.engine import RemoteEngine
from djinn_jupyter.client.session import RemoteSession
from djinn_jupyter.errors import DjinnError
from djinn_jupyter.experiments.course import timed
from djinn_jupyter.wire.nouns import Transfer
from djinn_jupyter.wire.replies import Swapped
from djinn_jupyter.wire.requests import SwapOut


@dataclass(frozen=True, slots=True, kw_only=True)
class Absence:
    """`out_ms` is from the request until the bytes are on the host; a request of another session meanwhile waits for
    `dispatch_ms`. Copying alone takes `copy_ms`, coming back `back_ms`. `bytes_left` stay on the device meanwhile."""

    out_ms: float
    dispatch_ms: float
    copy_ms: float
    back_ms: float
    bytes_moved: int
    bytes_left: int


def absence(engine: RemoteEngine, session: RemoteSession) -> Absence:
    """Swap the session to the host and back. DjinnError where nothing moves."""
    bystander = engine.session("bystander")
    out, out_ms, dispatch_ms = _leave(engine, session, bystander)
    left = session.describe().device_bytes
    back, back_ms = timed(session.swap_in)
    if out is None or back is None:
        raise DjinnError("A stopped session was told to leave the device, and nothing moved.")
    return Absence(
        out_ms=out_ms,
        dispatch_ms=dispatch_ms,
        copy_ms=1000 * out.seconds,
        back_ms=back_ms,
        bytes_moved=out.bytes_moved,
        bytes_left=left,
    )


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
