"""Describe the influences on a stop: all differences from the unmodified model (edits, rules, overrides, changes in
earlier passes)."""

from __future__ import annotations

from collections.abc import Iterator

from djinn_jupyter.api.names import labelled
from djinn_jupyter.units import significant
from djinn_jupyter.wire.readings import Change, Influences, RuleAtStop, at_positions

WHY_NOT = {
    "ahead": "not met yet: it lies ahead of the stop",
    "next pass": "holds from the next pass on: this one had gone by",
    "other positions": "touches no position of this pass",
    "other passes": "is not for this pass",
    "condition": "its condition held at no position of this pass",
    "refused": "could not be applied in this pass",
    "not so far": "not met in this pass so far",
    "applied": "applied in this pass",
    "off": "off",
}
Edits = tuple[str, ...]
ADAPTED = "computed with"
EDITED, RULES, OFF = "edited here", "steering rules in force", "turned off"
OVERRIDES, EARLIER = "put in place earlier in this pass", "in passes before this one"
UNKNOWN = "a value put in place; what made it was not noted"


def influence_lines(told: Influences, edits: Edits = (), but: Edits = ()) -> list[str]:
    """Return one line per influence. `edits` are the stop's own edits to list, `but` the edits listed elsewhere."""
    names = {EDITED: "edited", RULES: "in force", OFF: "off", OVERRIDES: "put in place", EARLIER: "before this pass"}
    names[ADAPTED] = ADAPTED
    return [
        f"{names[name]}: {line} ({size})" if size else f"{names[name]}: {line}"
        for name, told_there in sections(told, edits, but).items()
        for line, size in told_there
    ]


def sections(told: Influences, edits: Edits = (), but: Edits = ()) -> dict[str, list[tuple[str, str]]]:
    """Return the influences in display order, (what, size or reason) by section name, without empty sections."""
    found = {
        ADAPTED: [] if told.adapter is None else [(f"the adapter {told.adapter}", "")],
        EDITED: list(_edited(told, edits)),
        RULES: [(f"rule {rule.number}: {rule.what}", rule_size(rule)) for rule in told.rules if rule.applies != "off"],
        OFF: list(_off(told)),
        OVERRIDES: list(_others(told, (*edits, *but))),
        EARLIER: list(_earlier(told)),
    }
    return {name: [(labelled(line), size) for line, size in lines] for name, lines in found.items() if lines}


def rule_size(rule: RuleAtStop) -> str:
    """Return the size of a rule's change in the stopped pass, or the reason that it changed nothing."""
    if rule.applies != "applied":
        return WHY_NOT[rule.applies] + (f": {rule.trouble}" if rule.trouble else "")
    return size_line(rule.relative_size) + ("" if rule.enabled else "; off from the next pass on")


def size_line(size: float | None) -> str:
    """Spell a relative size: `relative size 0.31`, or `changed nothing` for zero."""
    if size is None:
        return "relative size undefined (the value was zero)"
    return f"relative size {significant(size)}" if size else "changed nothing"


def _edited(told: Influences, edits: Edits) -> Iterator[tuple[str, str]]:
    """Yield the edits of the stop with their sizes, which are stored with the overrides."""
    made = [change for override in told.overrides for change in override.changes if change.rule is None]
    numbers = {edit.what: edit.number for edit in told.edits if edit.enabled} if len(told.edits) > 1 else {}
    for what in edits:
        found = next((change for change in made if change.what == what), None)
        named = f"edit {numbers[what]}: {what}" if what in numbers else what
        yield named, "" if found is None else size_line(found.relative_size)


def _off(told: Influences) -> Iterator[tuple[str, str]]:
    """Yield the disabled edits and rules."""
    yield from ((f"edit {edit.number}: {edit.what}", "") for edit in told.edits if not edit.enabled)
    yield from ((f"rule {rule.number}: {rule.what}", "") for rule in told.rules if rule.applies == "off")


def _others(told: Influences, edits: Edits) -> Iterator[tuple[str, str]]:
    """Yield the edits of earlier stops in this pass, and the changes made by rules that have since ended."""
    in_force = {rule.number for rule in told.rules}
    for override in told.overrides:
        if not override.changes:
            yield f"{override.site}: {UNKNOWN}", ""
        for change in override.changes:
            if change.rule not in in_force and change.what not in edits:
                yield _change(change), size_line(change.relative_size)


def _change(change: Change) -> str:
    return change.what if change.rule is None else f"rule {change.rule}, since ended: {change.what}"


def _earlier(told: Influences) -> Iterator[tuple[str, str]]:
    for passes in told.earlier:
        where = at_positions(range(passes.start, passes.end))
        yield from ((f"{where}: {what}", "") for what in passes.changes)
