"""The bytes on the wire for one stop and one resume, counted at the socket. Keys and values must not be among them."""

from __future__ import annotations

from typing import Any

from djinn_evaluation.outcomes import finished, paused
from djinn_jupyter.api.engine import RemoteEngine


def measure_wire(engine: RemoteEngine, layer: int, prompt: list[int], new: int) -> dict[str, int]:
    """Return the bytes of a stop with its hidden state fetched, and of a resume with its last logits fetched. Array
    bytes beyond these two are counted as keys and values."""
    session = engine.session("wire", fresh=True)
    session.breakpoint(f"resid_post.{layer}", when="step == 0")
    begun = engine.wire_bytes
    stop = paused(session.run(prompt, max_new_tokens=new, ignore_eos=True))
    hidden: Any = stop.hidden
    stopped = engine.wire_bytes
    logits = finished(session.resume()).fetch_logits()
    ended = engine.wire_bytes
    session.close()
    arrays = ended.arrays_sent + ended.arrays_received - begun.arrays_sent - begun.arrays_received
    return {
        "wire_bytes_stop": stopped.sent + stopped.received - begun.sent - begun.received,
        "wire_bytes_resume": ended.sent + ended.received - stopped.sent - stopped.received,
        "kv_bytes_on_wire": max(0, arrays - hidden.nbytes - logits.nbytes),  # a line may compress the two
    }
