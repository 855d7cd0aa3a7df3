"""Readings of a stop: the influences on it, and the effect of its edits on the next token. Values only."""

from __future__ import annotations

from typing import Literal

from djinn_jupyter.wire import nouns
from djinn_jupyter.wire.arrays import Array
from djinn_jupyter.wire.naming import OwnName
from djinn_jupyter.wire.nouns import Noun, Origin, StopDescription, StopIdentity, TopToken

Applies = Literal[
    "applied", "ahead", "next pass", "other positions", "other passes", "condition", "refused", "not so far", "off"
]


class Change(Noun, frozen=True):
    """The change of a value by an edit (`rule` is None) or a steering rule, in words. `relative_size` is
    |after - before| / |before| of the part it touched; None where that part was zero, or where it was not measured."""

    what: str
    rule: int | None = None
    relative_size: float | None = None


class Override(Noun, frozen=True):
    """A value of the stopped pass that is not what the model computed there, with what made it, in order. `changes` is
    empty in a session that was kept by a version which did not note them."""

    site: str
    changes: tuple[Change, ...]


class RuleAtStop(Noun, frozen=True):
    """A steering rule of the session. `applies`: whether it was `applied` in the stopped pass, lies `ahead` of the
    stop, was set after the pass had gone by (`next pass`), names `other positions` or `other passes` (of the prompt, of
    new tokens), has a `condition` that held nowhere, was `refused` by a value that it does not fit (`trouble` says
    why), was `not so far` met within the layer of the stop, or is `off`. `relative_size` is that of the stopped pass,
    at its first site. A rule that is not `enabled` was `applied` where it was turned off after the pass had gone by."""

    number: int
    site: str
    what: str
    applies: Applies
    relative_size: float | None = None
    enabled: bool = True
    trouble: str | None = None


class EditAtStop(Noun, frozen=True):
    """An edit made at the stop itself; one that is not `enabled` is turned off and has no part in the value. Its number
    counts the edits of the stop from 1. `relative_size` is |after - before| / |before| of the part it touched, as it
    was when it was last applied; None where that part was zero."""

    number: int
    site: str
    what: str
    relative_size: float | None = None
    enabled: bool = True


class EarlierPasses(Noun, frozen=True):
    """Positions [start, end) that were fed under rules or with edits: their keys and values, and what was sampled after
    them, are not the model's own."""

    start: int
    end: int
    changes: tuple[str, ...]


class Influences(Noun, frozen=True):
    """All that makes a stop differ from the unmodified model, and the edits and rules that are turned off. `adapter` is
    the one that the session computes with."""

    rules: tuple[RuleAtStop, ...] = ()
    overrides: tuple[Override, ...] = ()
    earlier: tuple[EarlierPasses, ...] = ()
    edits: tuple[EditAtStop, ...] = ()
    adapter: str | None = None


class Branch(Noun, frozen=True):
    """The stops of one session, oldest first, and where it stands among them: `present` is an index, None where it runs
    or has finished; `state` says which. Stops that it shares with another session have the same numbers there.
    `dropped` older ones are not kept any more, or not told: a tree has some ten thousand. `tokens` and `text`: how long
    its line is, and its last tokens as text."""

    session: OwnName
    state: nouns.SessionState
    stops: tuple[StopDescription, ...]
    present: int | None
    tokens: int
    text: str
    forked_from: Origin | None = None
    stop: StopIdentity | None = None
    dropped: int = 0


class Contribution(Noun, frozen=True):
    """The part of a logit (or of a difference of two) that one module's output, or one head of it, adds."""

    point: str
    layer: int
    head: int | None
    value: float


class NeuronParts(Noun, frozen=True):
    """The parts that the neurons of one layer's MLP add, float64 [neurons]: what its last map makes of each."""

    layer: int
    values: Array


class TokenShift(Noun, frozen=True):
    """One token of the next-token distribution without (`before`) and with (`after`) the edits of the stop."""

    token: int
    text: str
    probability_before: float
    probability_after: float
    logit_before: float
    logit_after: float


class EffectReading(Noun, frozen=True):
    """The next-token distribution without and with the edits of the present stop. `kl` in nats, KL(with || without).
    `shifts` are the tokens of either head, the most probable with the edits first; `chosen` those that were asked
    for."""

    before: tuple[TopToken, ...]
    after: tuple[TopToken, ...]
    kl: float
    top1_changed: bool
    logit_difference_norm: float
    shifts: tuple[TokenShift, ...] = ()
    chosen: tuple[TokenShift, ...] = ()
