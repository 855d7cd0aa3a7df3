"""Looks at a stop, the value of a site, the logit lens and the effect of its edits, and the recipe of each: what makes
the stop again."""

from __future__ import annotations

from djinn_jupyter.wire.circumstances import Circumstances, FedTokens
from djinn_jupyter.wire.frozen import Frozen
from djinn_jupyter.wire.interventions import ApplyEdit, MeasureEffect
from djinn_jupyter.wire.nouns import LensRow, Snapshot, StopIdentity
from djinn_jupyter.wire.passes import Inspect, Lens
from djinn_jupyter.wire.readings import EffectReading, Influences
from djinn_jupyter.wire.reply_base import ReplyBase


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


class Inspected(ReplyBase, frozen=True, tag="Inspected"):
    """`made` is what makes the stop again; None where nothing does, for the reason `unmade`."""

    snapshot: Snapshot
    made: LookRecipe | None = None
    unmade: str = ""


class Effect(ReplyBase, frozen=True, tag="Effect"):
    """Of the stop at `site`. Rules in force and what was put in place before the stop hold on both sides of it. `made`
    and `unmade` are as in Inspected."""

    stop: StopIdentity
    effect: EffectReading
    site: str
    edits: tuple[str, ...] = ()
    influences: Influences = Influences()
    made: LookRecipe | None = None
    unmade: str = ""


class LensRead(ReplyBase, frozen=True, tag="LensRead"):
    """`notes` are sentences on tokens that may have been meant otherwise; `made` and `unmade` are as in Inspected."""

    stop: StopIdentity
    site: str
    rows: tuple[LensRow, ...]
    notes: tuple[str, ...] = ()
    made: LookRecipe | None = None
    unmade: str = ""
