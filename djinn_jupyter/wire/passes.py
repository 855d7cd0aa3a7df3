"""Values of a stopped pass: those of one site, read as they are or through the lens, and those of many at once."""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta

from djinn_jupyter.wire.arrays import Array
from djinn_jupyter.wire.limits import Chosen, Positions, Spelling
from djinn_jupyter.wire.nouns import Snapshot, StopIdentity
from djinn_jupyter.wire.reply_base import ReplyBase
from djinn_jupyter.wire.request_base import SessionRequest, StopRequest

MOST_SITES: Final = 16_384


class Inspect(SessionRequest, frozen=True, tag="Inspect"):
    """A site's value in the stopped pass. Sites not reached yet need `ahead`. `site` None is the stopped one."""

    site: Spelling | None = None
    positions: Positions | None = None
    ahead: bool = False


class Lens(SessionRequest, frozen=True, tag="Lens"):
    """Logit lens at a residual site of the stopped pass; `site` None is the stopped one. `tokens`, by text or number,
    are read besides the `top` most probable."""

    site: Spelling | None = None
    positions: Positions | None = None
    top: Annotated[int, Meta(ge=1, le=1000)] = 5
    tokens: Chosen = ()


class ReadPass(SessionRequest, frozen=True, tag="ReadPass"):
    """Read the values at `sites` of the stopped pass, as it went up to the stop; with `ahead` also as it would go on
    from there with the edits made so far, and with `logits` those of all its positions. Where `value` is given it would
    go on with that in the place of the stopped one at `positions`, as in ResumeWith; the stop itself stays as it is."""

    sites: Annotated[tuple[Spelling, ...], Meta(max_length=MOST_SITES)] = ()
    ahead: bool = False
    logits: bool = False
    value: Array | None = None
    positions: Positions | None = None


class PassRead(ReplyBase, frozen=True, tag="PassRead"):
    """The values at those of the sites that the pass has met, as they were asked for; `logits` are fp32 [positions of
    the pass, vocabulary]."""

    stop: StopIdentity
    sites: tuple[str, ...]
    values: tuple[Array, ...]
    logits: Array | None = None


class ResumeWith(StopRequest, frozen=True, tag="ResumeWith"):
    """Resume with `value` in the place of the stopped one, and read the value at the next stop: an edit, a Resume and
    an Inspect in one. `positions` are absolute, negative from the end of the pass, None for all of the pass; `value`
    None leaves all of it. `halts` are the breakpoints that the session has from here on; None leaves those it has."""

    value: Array | None = None
    positions: Positions | None = None
    halts: Annotated[tuple[Spelling, ...], Meta(max_length=MOST_SITES)] | None = None


class Reached(ReplyBase, frozen=True, tag="Reached"):
    """The stop that a ResumeWith came to: the value there, `step` and `positions` of its pass, as in Paused, and the
    tokens that the run has `drawn` so far."""

    snapshot: Snapshot
    step: int
    positions: tuple[int, ...]
    drawn: tuple[int, ...]
