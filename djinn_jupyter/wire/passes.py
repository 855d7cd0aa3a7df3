"""Values of a stopped pass: those of one site, read as they are or through the lens, and those of many at once."""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta

from djinn_jupyter.wire.arrays import Array
from djinn_jupyter.wire.limits import Positions, Spelling
from djinn_jupyter.wire.nouns import Snapshot, StopIdentity
from djinn_jupyter.wire.reply_base import ReplyBase
from djinn_jupyter.wire.request_base import SessionRequest, StopRequest
from djinn_jupyter.wire.running import Finished

MOST_SITES: Final = 16_384


class PassRead(ReplyBase):
    """The values at those of the sites that the pass has met, as they were asked for; `logits` are fp32 [positions of
    the pass, vocabulary]."""

    stop: StopIdentity
    sites: tuple[str, ...]
    values: tuple[Array, ...]
    logits: Array | None = None


class ReadPass(SessionRequest[PassRead], shared="read", browser="asks", resent="anew"):
    """Read the values at `sites` of the stopped pass, as it went up to the stop; with `ahead` also as it would go on
    from there with the edits made so far, and with `logits` those of all its positions. Where `value` is given it would
    go on with that in the place of the stopped one at `positions`, as in ResumeWith; the stop itself stays as it is."""

    sites: Annotated[tuple[Spelling, ...], Meta(max_length=MOST_SITES)] = ()
    ahead: bool = False
    logits: bool = False
    value: Array | None = None
    positions: Positions | None = None


class Reached(ReplyBase):
    """The stop that a ResumeWith came to: the value there, `step` and `positions` of its pass, as in Paused, and the
    tokens that the run has `drawn` so far."""

    snapshot: Snapshot
    step: int
    positions: tuple[int, ...]
    drawn: tuple[int, ...]


class ResumeWith(StopRequest[Reached | Finished], shared="write", wakes_weights=True):
    """Resume with `value` in the place of the stopped one, and read the value at the next stop: an edit, a Resume and
    an Inspect in one. `positions` are absolute, negative from the end of the pass, None for all of the pass; `value`
    None leaves all of it. `halts` are the breakpoints that the session has from here on; None leaves those it has."""

    value: Array | None = None
    positions: Positions | None = None
    halts: Annotated[tuple[Spelling, ...], Meta(max_length=MOST_SITES)] | None = None
