"""Looks at a stop, the logit lens and the effect of its edits, and the recipe of each: what makes the stop again."""

from __future__ import annotations

from djinn_jupyter.wire.circumstances import Circumstances
from djinn_jupyter.wire.frozen import Frozen
from djinn_jupyter.wire.interventions import ApplyEdit, MeasureEffect
from djinn_jupyter.wire.nouns import LensRow, StopIdentity
from djinn_jupyter.wire.passes import Lens
from djinn_jupyter.wire.readings import EffectReading, Influences
from djinn_jupyter.wire.reply_base import ReplyBase


class LookRecipe(Frozen, frozen=True):
    """All that makes a look again: a pass over `line` without rules, stopped at `site`, with these `edits` of the value
    there, and the request, its tokens by their numbers."""

    line: tuple[int, ...]
    site: str
    edits: tuple[ApplyEdit, ...]
    asked: Lens | MeasureEffect
    made: Circumstances


class Effect(ReplyBase, frozen=True, tag="Effect"):
    """Of the stop at `site`. Rules in force and what was put in place before the stop hold on both sides of it.
    `made` is None where a pass over its line alone does not come to the stop: behind other passes, under rules."""

    stop: StopIdentity
    effect: EffectReading
    site: str
    edits: tuple[str, ...] = ()
    influences: Influences = Influences()
    made: LookRecipe | None = None


class LensRead(ReplyBase, frozen=True, tag="LensRead"):
    """`notes` are sentences on tokens that may have been meant otherwise; `made` is as in an Effect."""

    stop: StopIdentity
    site: str
    rows: tuple[LensRow, ...]
    notes: tuple[str, ...] = ()
    made: LookRecipe | None = None
