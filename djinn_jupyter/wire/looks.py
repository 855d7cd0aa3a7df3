"""Looks at a stop, the value of a site, the logit lens and the effect of its edits, and the recipe of each: what makes
the stop again."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from djinn_jupyter.wire.bounds import Positions
from djinn_jupyter.wire.circumstances import Circumstances, FedTokens
from djinn_jupyter.wire.frozen import Frozen
from djinn_jupyter.wire.interventions import ApplyEdit
from djinn_jupyter.wire.limits import Chosen, ConditionText, Spelling
from djinn_jupyter.wire.nouns import LensRow, Snapshot, StopIdentity
from djinn_jupyter.wire.readings import EffectReading, Influences
from djinn_jupyter.wire.reply_base import ReplyBase
from djinn_jupyter.wire.request_base import SessionRequest


class LookRecipe(Frozen, frozen=True):
    """All that makes a look again: the `line`, of which the first positions were fed in these `passes` and the others
    in a pass without rules, stopped at `site`, with these `edits` of the value there, and the request, its tokens by
    their numbers."""

    line: tuple[int, ...]
    site: str
    edits: tuple[ApplyEdit, ...]
    asked: Inspect | Lens | MeasureEffect
    made: Circumstances
    passes: tuple[FedTokens, ...] = ()


class Inspected(ReplyBase):
    """`made` is what makes the stop again; None where nothing does, for the reason `unmade`."""

    snapshot: Snapshot
    made: LookRecipe | None = None
    unmade: str = ""


class Effect(ReplyBase):
    """Of the stop at `site`. Rules in force and what was put in place before the stop hold on both sides of it. `made`
    and `unmade` are as in Inspected."""

    stop: StopIdentity
    effect: EffectReading
    site: str
    edits: tuple[str, ...] = ()
    influences: Influences = Influences()
    made: LookRecipe | None = None
    unmade: str = ""


class LensRead(ReplyBase):
    """`notes` are sentences on tokens that may have been meant otherwise; `made` and `unmade` are as in Inspected."""

    stop: StopIdentity
    site: str
    rows: tuple[LensRow, ...]
    notes: tuple[str, ...] = ()
    made: LookRecipe | None = None
    unmade: str = ""


class Evaluated(ReplyBase):
    """`value` of the expression at the absolute `position`."""

    stop: StopIdentity
    value: bool | int | float | str
    site: str
    position: int


class Inspect(SessionRequest[Inspected], shared="read", browser="asks", resent="anew"):
    """A site's value in the stopped pass. Sites not reached yet need `ahead`. `site` None is the stopped one."""

    site: Spelling | None = None
    positions: Positions | None = None
    ahead: bool = False


class Lens(SessionRequest[LensRead], shared="read", browser="asks", resent="anew"):
    """Logit lens at a residual site of the stopped pass; `site` None is the stopped one. `tokens`, by text or number,
    are read besides the `top` most probable."""

    site: Spelling | None = None
    positions: Positions | None = None
    top: Annotated[int, Meta(ge=1, le=1000)] = 5
    tokens: Chosen = ()


class MeasureEffect(SessionRequest[Effect], shared="read", browser="asks", changes=False):
    """`tokens`, by text or number, are read besides the `top` most probable without and with the edits."""

    top: Annotated[int, Meta(ge=1, le=1000)] = 5
    tokens: Chosen = ()


class Evaluate(SessionRequest[Evaluated], shared="read", browser="asks", changes=False):
    """Evaluate an expression of the condition language at a position of the stopped pass, as a breakpoint there would
    read it. `site` None is the stopped one; `position` is absolute, negative from the end of the pass."""

    expression: ConditionText
    site: Spelling | None = None
    position: int = -1
