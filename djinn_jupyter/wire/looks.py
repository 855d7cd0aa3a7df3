"""The circumstances of a measurement: what its numbers follow from besides its request and its sequences, and the
passes in which a sequence was fed. Readings at a stop, and watches."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from djinn_jupyter.wire.arrays import Array
from djinn_jupyter.wire.base import Cleared, Frozen, Positions, ReplyBase
from djinn_jupyter.wire.modules import AdapterIdentity, ModuleIdentity
from djinn_jupyter.wire.nouns import AttentionName, LensRow, Snapshot, StopIdentity, WatchDescription
from djinn_jupyter.wire.provenance import Provenance
from djinn_jupyter.wire.readings import EffectReading, Influences
from djinn_jupyter.wire.request_base import Chosen, ConditionText, Name, SessionRequest, Spelling
from djinn_jupyter.wire.running import ApplyEdit, Steer


class FedTokens(Frozen, frozen=True):
    """Positions [start, end) of a sequence, fed `each` at a time under these steering `rules`."""

    start: Annotated[int, Meta(ge=0)]
    end: int
    each: Annotated[int, Meta(ge=1)]
    rules: tuple[Steer, ...] = ()


class Circumstances(Frozen, frozen=True):
    """The steering `rules` in force, as requested; the `attention`, None for the engine's own; the `adapter`; the added
    `modules` of the sites in rules and request; and the model and machine of the computation."""

    rules: tuple[Steer, ...]
    attention: AttentionName | None
    by: Provenance
    adapter: AdapterIdentity | None = None
    modules: tuple[ModuleIdentity, ...] = ()


# Readings at a stop (the value of a site, the logit lens, the effect of its edits), and the recipe of each, which
# reproduces the stop.


class LookRecipe(Frozen, frozen=True):
    """Everything needed to repeat a reading at a stop: the `line` (token sequence), whose first positions were fed in
    these `passes` and the others in a pass without rules, stopped at `site`, with these `edits` of the value there, and
    the request, its tokens by their numbers."""

    line: tuple[int, ...]
    site: str
    edits: tuple[ApplyEdit, ...]
    asked: Inspect | Lens | MeasureEffect
    made: Circumstances
    passes: tuple[FedTokens, ...] = ()


class Inspected(ReplyBase):
    """`made` is everything needed to reproduce the stop; None where that is impossible, for the reason `unmade`."""

    snapshot: Snapshot
    made: LookRecipe | None = None
    unmade: str = ""


class Effect(ReplyBase):
    """The effect at the stop at `site`. Rules in force and overrides before the stop apply on both sides. `made` and
    `unmade` are as in Inspected."""

    stop: StopIdentity
    effect: EffectReading
    site: str
    edits: tuple[str, ...] = ()
    influences: Influences = Influences()
    made: LookRecipe | None = None
    unmade: str = ""


class LensRead(ReplyBase):
    """`notes` are sentences on tokens whose meaning may be ambiguous; `made` and `unmade` are as in Inspected."""

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


class Direction(Frozen, frozen=True):
    """A `vector` as wide as the watched site; a session's watches of one site name their directions by `name`."""

    name: Name
    vector: Array


class Unwatch(SessionRequest[Cleared], shared="write", browser="asks", while_running=True):
    """`site` None ends all watches; `direction` is the name of a direction."""

    site: Spelling | None = None
    direction: Name | None = None


class Watching(ReplyBase):
    watch: WatchDescription


class Watch(SessionRequest[Watching], shared="write", browser="asks", while_running=True):
    """Record a site over all runs from now on: its value, or the component of its value along a `direction`. `fresh`
    discards earlier recordings."""

    site: Spelling
    byte_cap: Annotated[int, Meta(ge=1)] = 256 * 2**20
    fresh: bool = False
    direction: Direction | None = None


class WatchedLine(Frozen, frozen=True):
    """The token sequence of a run, as far as it was fed when the watch was read or the run was left, and its passes."""

    run: int
    tokens: tuple[int, ...]
    passes: tuple[FedTokens, ...]


class WatchRecipe(Frozen, frozen=True):
    """Everything needed to record the passes of a watch again: the sequences of its runs, and the `direction`."""

    lines: tuple[WatchedLine, ...]
    direction: Direction | None
    made: Circumstances


class WatchRead(ReplyBase):
    """All recorded passes of a site, one value a pass, each with its absolute positions and its run: the session's
    first prompt is run 1. `made` is everything needed to reproduce them; None where that is impossible, for the reason
    `unmade`."""

    watch: WatchDescription
    axes: str
    values: tuple[Array, ...]
    positions: tuple[tuple[int, ...], ...]
    runs: tuple[int, ...]
    made: WatchRecipe | None = None
    unmade: str = ""


def spell_watch(site: str, direction: str | None) -> str:
    """Spell a watch: `resid_post.4`, or `resid_post.4 along gender`."""
    return site if direction is None else f"{site} along {direction}"


class ReadWatch(SessionRequest[WatchRead], shared="read", browser="asks", resent="anew", while_running=True):
    """`direction` is the name of a direction; None reads the watch of the value."""

    site: Spelling
    direction: Name | None = None
