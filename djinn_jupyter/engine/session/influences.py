"""All that makes a stop differ from the model alone: rules, values put in place, earlier passes. Reads only."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Final

from djinn_jupyter.engine.passes.edits import Change
from djinn_jupyter.engine.passes.frame import Frame, Override
from djinn_jupyter.engine.passes.steering import Rule
from djinn_jupyter.engine.session.pass_log import Passes
from djinn_jupyter.engine.session.queries import may_be_reached
from djinn_jupyter.engine.session.session import Session
from djinn_jupyter.wire import readings
from djinn_jupyter.wire.readings import Applies, EarlierPasses, Influences, RuleAtStop

CHANGES_TOLD: Final = 4096  # of earlier passes; more are told by their number


def influences(session: Session, frame: Frame) -> Influences:
    """Return all influences on the stopped pass of `frame`."""
    return Influences(
        rules=tuple(_rule(rule, frame) for rule in session.rules.values()),
        edits=tuple(edit.describe() for edit in session.edits),
        overrides=tuple(_override(override) for override in frame.overrides),
        earlier=tuple(_earlier(session)),
        adapter=None if session.adapter is None else session.adapter.name,
    )


def has_edits(session: Session) -> bool:
    """Return whether edits of values are in what a session has computed: those of its stop, of stops before, and of its
    cache."""
    made_by = [passes.entry for passes in session.pass_log.passes] + [session.frame]
    overrides = (override for frame in made_by if frame is not None for override in frame.overrides)
    return bool(session.edits_in_force or session.pass_log.edited) or any(map(_is_edit, overrides))


def _is_edit(override: Override) -> bool:
    """Return whether a value was put in place by an edit: rules say their numbers."""
    return any(change.rule is None for change in override.changes) or not override.changes


def _override(override: Override) -> readings.Override:
    changes = (readings.Change(what=c.what, rule=c.rule, relative_size=_finite(c)) for c in override.changes)
    return readings.Override(site=str(override.tap.site), changes=tuple(changes))


def _finite(change: Change) -> float | None:
    size = float(change.size)
    return size if math.isfinite(size) else None


def _rule(rule: Rule, frame: Frame) -> RuleAtStop:
    made = next((c for override in frame.overrides for c in override.changes if c.rule == rule.number), None)
    return RuleAtStop(
        number=rule.number,
        site=rule.named,
        what=rule.what,
        applies="applied" if made is not None else _why_not(rule, frame),
        relative_size=None if made is None else _finite(made),
        enabled=rule.enabled,
        trouble=rule.trouble if rule.refused_at == frame.committed else None,
    )


def _why_not(rule: Rule, frame: Frame) -> Applies:
    """Return why a rule does not show in the stopped pass."""
    if not rule.enabled:
        return "off"
    if not rule.takes(frame.step):
        return "other passes"
    if rule.rows_in(frame.positions) == []:
        return "other positions"
    if not may_be_reached(rule.taps[0], frame):
        return "ahead"
    if rule.refused_at == frame.committed:
        return "refused"
    if rule.guard is not None and rule.met_at == frame.committed:
        return "condition"
    stage = None if frame.tap is None else frame.tap.stage
    inside = any(tap.boundary is None and tap.stage == stage for tap in rule.taps)
    return "not so far" if inside and frame.inside else "next pass"


def _earlier(session: Session) -> Iterator[EarlierPasses]:
    """Yield the committed passes that rules or overrides changed, oldest first, then edits of committed rows; of the
    oldest together how many changes there were, where all are more than are told."""
    found: list[EarlierPasses] = []
    for passes in session.pass_log.passes:
        changes = _changes(passes)
        if changes:
            found.append(EarlierPasses(start=passes.start, end=passes.end, changes=changes))
    for edit in session.pass_log.edited:
        found.append(EarlierPasses(start=min(edit.positions), end=max(edit.positions) + 1, changes=(edit.what,)))
    told = len(found)
    left = CHANGES_TOLD
    while told and left >= len(found[told - 1].changes):
        left -= len(found[told - 1].changes)
        told -= 1
    if told:
        yield _in_sum(found[:told])
    yield from found[told:]


def _in_sum(passes: Sequence[EarlierPasses]) -> EarlierPasses:
    count = sum(len(one.changes) for one in passes)
    start, end = min(one.start for one in passes), max(one.end for one in passes)
    return EarlierPasses(start=start, end=end, changes=(f"{count:,} changes that are not told one by one",))


def _changes(passes: Passes) -> tuple[str, ...]:
    """Return the rules that held and touched a position, and the other values put in place; each once."""
    held = [rule for rule in passes.rules if _touches(rule, passes)]
    numbers = {rule.number for rule in held}
    found = [f"rule {rule.number}: {rule.what}" for rule in held]
    for override in passes.entry.overrides if passes.entry is not None else ():
        found += [_spell(c) for c in override.changes if c.rule not in numbers]
        found += [] if override.changes else [f"a value put in place at {override.tap.site}"]
    return tuple(dict.fromkeys(found))


def _touches(rule: Rule, passes: Passes) -> bool:
    return rule.takes(int(passes.decode)) and any(
        rule.rows_in(range(start, min(start + passes.each, passes.end))) != []
        for start in range(passes.start, passes.end, passes.each)
    )


def _spell(change: Change) -> str:
    return change.what if change.rule is None else f"rule {change.rule}, since ended: {change.what}"
