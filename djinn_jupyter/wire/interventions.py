"""Requests that change what a pass computes: edits of a stop, and steering rules."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from djinn_jupyter.wire.edits import Edit
from djinn_jupyter.wire.limits import ConditionText, Positions, Spelling
from djinn_jupyter.wire.nouns import PassesMeant, StopIdentity
from djinn_jupyter.wire.reply_base import Cleared, ReplyBase
from djinn_jupyter.wire.request_base import SessionRequest, StopRequest
from djinn_jupyter.wire.rules import RuleDescription
from djinn_jupyter.wire.running import Paused


class RevertEdits(StopRequest[Paused], shared="write", browser="asks", without_rows=True): ...


class EnableEdit(StopRequest[Paused], shared="write", browser="asks", without_rows=True):
    """Turn an edit of the present stop off, or on again: the stopped value is then that with the other edits alone."""

    number: int
    enabled: bool


class Unsteer(SessionRequest[Cleared], shared="write", browser="asks", while_running=True):
    """`number` None removes all rules."""

    number: int | None = None


class Edited(ReplyBase):
    """The effect of an edit. `shape` is the shape touched, `relative_size` = |after - before| / |before| over that
    part. `stop` has the edition that it made."""

    stop: StopIdentity
    site: str
    edit: str
    shape: tuple[int, ...]
    positions: tuple[int, ...]
    norm_before: float
    norm_after: float
    relative_size: float | None
    entries_changed: int


class Steered(ReplyBase):
    rule: RuleDescription
    existed: bool


class ApplyEdit(StopRequest[Edited], shared="write", browser="asks", keeps_arrays=True):
    """Change the stopped value. `site` must be the stopped one (with any selector) or None. `positions` are absolute,
    negative from the end of the pass, None for all of the pass. `words` say what an edit was made of."""

    edit: Edit
    site: Spelling | None = None
    positions: Positions | None = None
    words: Spelling | None = None


class EnableRule(SessionRequest[Steered], shared="write", browser="asks", while_running=True):
    """Turn a steering rule off without ending it, or on again, from the next pass (or the rest of this one) on."""

    number: int
    enabled: bool


class Steer(SessionRequest[Steered], shared="write", browser="asks", keeps_arrays=True, while_running=True):
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
