"""A session as a thread of the debugger: its state, and the move in progress."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from djinn_jupyter.api.session import RemoteSession
from djinn_jupyter.api.stops import Paused
from djinn_jupyter.editors.dap.breakpoints import BreakpointRecord
from djinn_jupyter.editors.dap.protocol import Request
from djinn_jupyter.editors.dap.values import StoppedValues
from djinn_jupyter.errors import IllegalMove
from djinn_jupyter.wire.nouns import SessionDescription, StopIdentity
from djinn_jupyter.wire.texts import in_quotes

MoveName = Literal["run", "continue", "step", "back"]


@dataclass(slots=True, kw_only=True, eq=False)
class ThreadMove:
    """A move requested here that has no reply yet. `request` is None once it is answered."""

    name: MoveName
    request: Request | None = None


@dataclass(slots=True, kw_only=True, eq=False)
class DebugThread:
    """A session that the client sees. `number` is its thread id. `look` holds the values fetched at the present stop,
    None where the session is not stopped or none were fetched. `breakpoint_record` has the breakpoints that the editor
    set in it."""

    number: int
    session: RemoteSession
    state: Literal["idle", "running", "paused"] = "idle"
    look: StoppedValues | None = None
    move: ThreadMove | None = None
    breakpoint_record: BreakpointRecord = field(default_factory=BreakpointRecord)

    @property
    def name(self) -> str:
        return self.session.name

    @property
    def seen(self) -> StopIdentity | None:
        """The stop that the editor was shown last, until the session leaves it."""
        return None if self.look is None else self.look.identity

    @property
    def stopped(self) -> StoppedValues:
        """The values at the present stop. IllegalMove where the session stands at none."""
        self.require_stopped()
        if self.look is None:
            self.look = StoppedValues(self.session, self.session.stop)
        return self.look

    def arrived(self, stop: Paused) -> None:
        self.state, self.look = "paused", StoppedValues(self.session, stop)

    def left(self) -> None:
        """Mark the session as running and drop the values of its stop."""
        self.state, self.look = "running", None

    def require_stopped(self) -> None:
        if self.move is not None or self.state == "running":
            raise IllegalMove(f"Session {in_quotes(self.session.label)} is running; pause it first.")
        if self.state != "paused":
            raise IllegalMove(
                f"Session {in_quotes(self.session.label)} stands at no stop: its run is over or has not begun."
            )


def state_of(session: SessionDescription) -> Literal["idle", "running", "paused"]:
    return "idle" if session.state == "closed" else session.state
