"""Requests that change what a pass computes: edits of a stop, and steering rules."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from djinn_jupyter.wire.edits import Edit
from djinn_jupyter.wire.limits import Chosen, Positions, Spelling
from djinn_jupyter.wire.request_base import SessionRequest, StopRequest


class ApplyEdit(StopRequest, frozen=True, tag="ApplyEdit"):
    """Change the stopped value. `site` must be the stopped one (with any selector) or None. `positions` are absolute,
    negative from the end of the pass, None for all of the pass."""

    edit: Edit
    site: Spelling | None = None
    positions: Positions | None = None


class RevertEdits(StopRequest, frozen=True, tag="RevertEdits"): ...


class EnableEdit(StopRequest, frozen=True, tag="EnableEdit"):
    """Turn an edit of the present stop off, or on again: the stopped value is then that with the other edits alone."""

    number: int
    enabled: bool


class MeasureEffect(SessionRequest, frozen=True, tag="MeasureEffect"):
    """`tokens`, by text or number, are read besides the `top` most probable without and with the edits."""

    top: Annotated[int, Meta(ge=1, le=1000)] = 5
    tokens: Chosen = ()


class Steer(SessionRequest, frozen=True, tag="Steer"):
    site: Spelling
    edit: Edit
    positions: Positions | None = None


class Unsteer(SessionRequest, frozen=True, tag="Unsteer"):
    """`number` None removes all rules."""

    number: int | None = None


class EnableRule(SessionRequest, frozen=True, tag="EnableRule"):
    """Turn a steering rule off without ending it, or on again, from the next pass (or the rest of this one) on."""

    number: int
    enabled: bool
