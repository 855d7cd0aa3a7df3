"""Requests that move a session, or the weights, between the device and its tiers, and their replies."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from djinn_jupyter.wire.limits import require_rest
from djinn_jupyter.wire.nouns import Activity, SessionDescription, Tier, Transfer, WeightsStatistics
from djinn_jupyter.wire.opening import Described
from djinn_jupyter.wire.reply_base import ReplyBase
from djinn_jupyter.wire.request_base import RequestBase, SessionRequest
from djinn_jupyter.wire.weights import Copies


class Swapped(ReplyBase):
    """`transfer` is None when nothing had to move."""

    session: SessionDescription
    transfer: Transfer | None


class SwapOut(SessionRequest[Swapped], shared="write", browser="asks", changes=False, while_away=True):
    """The session's pages and states leave the device for `tier`; it comes back when it is next needed."""

    tier: Tier = "host"


class SwapIn(SessionRequest[Swapped], shared="write", browser="asks", changes=False, while_away=True):
    """Bring the session back now. Answered at once when it is resident."""


class Rest(
    SessionRequest[Described], shared="write", browser="asks", changes=False, while_away=True, without_rows=True
):
    """Announce that the session will be used again in so many seconds. A rest of `idle_swap_seconds` or more begins
    with leaving the device; before its end the session is brought back."""

    expected_seconds: float

    def __post_init__(self) -> None:
        require_rest(self.expected_seconds)


class Noted(ReplyBase): ...


class Note(
    SessionRequest[Noted],
    shared="read",
    unasked="view",
    changes=False,
    while_running=True,
    while_looking=True,
    at_once=True,
):
    """Report the activity of its notebook, which says how soon the session will be wanted: a cell of its kernel runs or
    has ended, it has the focus or lost it, a cell that uses it is about to run, its magics act on this session from now
    on, its kernel is gone."""

    activity: Activity


class WeightsMoved(ReplyBase):
    """`seconds` is 0 when they were there already."""

    weights: WeightsStatistics
    seconds: float


class Sleep(RequestBase[WeightsMoved], browser="asks", of_the_engine=True):
    """The weights leave the device until the next request that needs them. Refused while a session runs."""


class Wake(RequestBase[WeightsMoved], browser="asks", of_the_engine=True): ...


class ReadCopies(RequestBase[Copies], browser="asks", resent="anew"):
    """The copies of streamed layers that have arrived, with higher numbers than `since`; the last few thousand are
    kept."""

    since: Annotated[int, Meta(ge=0)] = 0
