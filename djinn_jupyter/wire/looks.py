"""The circumstances of a measurement: what its numbers follow from, besides its request and its lines, and the passes
that a line was fed in."""

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
    """Positions [start, end) of a line, which were fed `each` at a time under these steering `rules`."""

    start: Annotated[int, Meta(ge=0)]
    end: int
    each: Annotated[int, Meta(ge=1)]
    rules: tuple[Steer, ...] = ()


class Circumstances(Frozen, frozen=True):
    """The steering `rules` that held, as they are asked for, the `attention`, None for the engine's own, the
    `adapter`, the added `modules` that the sites of rules and request are of, and the model and machine that computed
    it."""

    rules: tuple[Steer, ...]
    attention: AttentionName | None
    by: Provenance
    adapter: AdapterIdentity | None = None
    modules: tuple[ModuleIdentity, ...] = ()


# Looks at a stop, the value of a site, the logit lens and the effect of its edits, and the recipe of each: what makes
# the stop again.


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


class Direction(Frozen, frozen=True):
    """A `vector` as wide as the watched site; a session's watches of one site tell their directions apart by `name`."""

    name: Name
    vector: Array


class Unwatch(SessionRequest[Cleared], shared="write", browser="asks", while_running=True):
    """`site` None ends all watches; `direction` is the name of one."""

    site: Spelling | None = None
    direction: Name | None = None


class Watching(ReplyBase):
    watch: WatchDescription


class Watch(SessionRequest[Watching], shared="write", browser="asks", while_running=True):
    """Record a site over all runs from now on: its value, or the component of its value along a `direction`. `fresh`
    forgets what was recorded so far."""

    site: Spelling
    byte_cap: Annotated[int, Meta(ge=1)] = 256 * 2**20
    fresh: bool = False
    direction: Direction | None = None


class WatchedLine(Frozen, frozen=True):
    """The line of a run, as far as it was fed when it was read or left, and the passes that it was fed in."""

    run: int
    tokens: tuple[int, ...]
    passes: tuple[FedTokens, ...]


class WatchRecipe(Frozen, frozen=True):
    """All that makes the recorded passes of a watch again: the lines of their runs, and the `direction`."""

    lines: tuple[WatchedLine, ...]
    direction: Direction | None
    made: Circumstances


class WatchRead(ReplyBase):
    """All recorded passes of a site, one value a pass, each with the absolute positions it covers and the run that it
    belongs to: the session's first prompt is run 1. `made` is what makes them again; None where nothing does, for the
    reason `unmade`."""

    watch: WatchDescription
    axes: str
    values: tuple[Array, ...]
    positions: tuple[tuple[int, ...], ...]
    runs: tuple[int, ...]
    made: WatchRecipe | None = None
    unmade: str = ""


def spell_watch(site: str, direction: str | None) -> str:
    """Spell what is recorded: `resid_post.4`, or `resid_post.4 along gender`."""
    return site if direction is None else f"{site} along {direction}"


class ReadWatch(SessionRequest[WatchRead], shared="read", browser="asks", resent="anew", while_running=True):
    """`direction` is the name of one; None reads the watch of the value."""

    site: Spelling
    direction: Name | None = None
