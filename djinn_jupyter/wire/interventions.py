"""Requests that change what a pass computes: edits of a stop, and steering rules."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from djinn_jupyter.wire.edits import Edit
from djinn_jupyter.wire.limits import Chosen, ConditionText, Positions, Spelling
from djinn_jupyter.wire.nouns import PassesMeant
from djinn_jupyter.wire.request_base import SessionRequest, StopRequest


class ApplyEdit(StopRequest, frozen=True, tag="ApplyEdit"):
    """Change the stopped value. `site` must be the stopped one (with any selector) or None. `positions` are absolute,
    negative from the end of the pass, None for all of the pass. `words` say what an edit was made of."""

    edit: Edit
    site: Spelling | None = None
    positions: Positions | None = None
    words: Spelling | None = None


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
    """Apply `edit` at every pass that meets `site`, which may be a point of every layer (`resid_post.*`): at these
    `positions` (negative from the end of each pass) and all from `onward` on, or all of the pass; in passes over the
    prompt or over new tokens (`on`), or both; where the condition `when` holds at the position. An array with a row
    for each of several `positions` gives each its row. `words` say what an edit was made of."""

    site: Spelling
    edit: Edit
    positions: Positions | None = None
    onward: Annotated[int, Meta(ge=0)] | None = None
    on: PassesMeant | None = None
    when: ConditionText | None = None
    words: Spelling | None = None


class Unsteer(SessionRequest, frozen=True, tag="Unsteer"):
    """`number` None removes all rules."""

    number: int | None = None


class EnableRule(SessionRequest, frozen=True, tag="EnableRule"):
    """Turn a steering rule off without ending it, or on again, from the next pass (or the rest of this one) on."""

    number: int
    enabled: bool
