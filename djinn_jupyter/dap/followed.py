"""A session as a thread of the debugger: where it stands, and the move that is under way."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from djinn_jupyter.client.session import RemoteSession
from djinn_jupyter.client.stops import Paused, Stop
from djinn_jupyter.dap.breakpoints import BreakpointBook
from djinn_jupyter.dap.conversation import Asked
from djinn_jupyter.dap.values import Look
from djinn_jupyter.errors import IllegalMove
from djinn_jupyter.wire.nouns import SessionDescription, StopIdentity

MoveName = Literal["run", "continue", "step", "back"]


@dataclass(slots=True, kw_only=True, eq=False)
class Move:
    """A verb that was asked of the engine here and has not come to its end. `asked` is None once it is answered;
    `ended` when the event that ends it was heard, `outcome` when its reply is there: it is over when both are."""

    name: MoveName
    asked: Asked | None = None
    ended: bool = False
    outcome: Stop | None = None
    deadline: float | None = None


@dataclass(slots=True, kw_only=True, eq=False)
class Followed:
    """`number` is its thread id. `look` is what was fetched of the present stop, None where it does not stand or nobody
    has looked. `book` has the breakpoints that the editor set in it."""

    number: int
    session: RemoteSession
    state: Literal["idle", "running", "paused"] = "idle"
    look: Look | None = None
    move: Move | None = None
    frames: dict[int, int] = field(default_factory=dict)
    book: BreakpointBook = field(default_factory=BreakpointBook)

    @property
    def name(self) -> str:
        return self.session.name

    @property
    def seen(self) -> StopIdentity | None:
        """The stop that the editor was shown last, while it stands."""
        return None if self.look is None else self.look.identity

    def arrived(self, stop: Paused, look: Look) -> None:
        self.state, self.look = "paused", look

    def left(self) -> None:
        """It goes on, or has ended: nothing of the stop is true any more."""
        self.state, self.look = "running", None

    def require_stopped(self) -> None:
        if self.move is not None or self.state == "running":
            raise IllegalMove(f"Session {self.session.label!r} is running; pause it first.")
        if self.state != "paused":
            raise IllegalMove(f"Session {self.session.label!r} stands at no stop: its run is over or has not begun.")


def state_of(session: SessionDescription) -> Literal["idle", "running", "paused"]:
    return "idle" if session.state == "closed" else session.state
