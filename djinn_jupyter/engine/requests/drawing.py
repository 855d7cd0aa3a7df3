"""Memory for tensors that a request adds to the engine. Knows no kind of request."""

from __future__ import annotations

from djinn_jupyter.engine.session.added_tensors import AddedTensors
from djinn_jupyter.engine.session.runtime import Runtime
from djinn_jupyter.engine.session.session import Session
from djinn_jupyter.engine.session.steps import Pieces


def draw_for(added: AddedTensors, size: int, runtime: Runtime, session: Session) -> Pieces:
    """Draw bytes for what this session adds; its person's own sessions leave for them, and where that is not enough
    others. Raises OverQuota and SlabFull."""
    yield from runtime.space.set_aside(session, size, of_quota=size)
    runtime.space.put_back()
    added.draw(size)
