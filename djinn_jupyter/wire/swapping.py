"""Requests that move a session, or the weights, between the device and its tiers, and their replies."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from djinn_jupyter.wire.limits import require_rest
from djinn_jupyter.wire.nouns import SessionDescription, Tier, Transfer, WeightsStatistics
from djinn_jupyter.wire.reply_base import ReplyBase
from djinn_jupyter.wire.request_base import RequestBase, SessionRequest


class SwapOut(SessionRequest, frozen=True, tag="SwapOut"):
    """The session's pages and states leave the device for `tier`; it comes back when it is next needed."""

    tier: Tier = "host"


class SwapIn(SessionRequest, frozen=True, tag="SwapIn"):
    """Bring the session back now. Answered at once when it is resident."""


class Rest(SessionRequest, frozen=True, tag="Rest"):
    """Announce that the session will be used again in so many seconds. A rest of `idle_swap_seconds` or more begins
    with leaving the device; before its end the session is brought back."""

    expected_seconds: float

    def __post_init__(self) -> None:
        require_rest(self.expected_seconds)


class Sleep(RequestBase, frozen=True, tag="Sleep"):
    """The weights leave the device until the next request that needs them. Refused while a session runs."""


class Wake(RequestBase, frozen=True, tag="Wake"): ...


class ReadCopies(RequestBase, frozen=True, tag="ReadCopies"):
    """The copies of streamed layers that have arrived, with higher numbers than `since`; the last few thousand are
    kept."""

    since: Annotated[int, Meta(ge=0)] = 0


class Swapped(ReplyBase, frozen=True, tag="Swapped"):
    """`transfer` is None when nothing had to move."""

    session: SessionDescription
    transfer: Transfer | None


class WeightsMoved(ReplyBase, frozen=True, tag="WeightsMoved"):
    """`seconds` is 0 when they were there already."""

    weights: WeightsStatistics
    seconds: float
