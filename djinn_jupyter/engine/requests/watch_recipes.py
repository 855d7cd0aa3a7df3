"""The recipe of what a watch recorded: the lines of its runs, each with the passes that it was fed in."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from djinn_jupyter.engine.interventions.fed_line import FedLine
from djinn_jupyter.engine.interventions.watches import Watch
from djinn_jupyter.engine.persistence.identity import ModelIdentity
from djinn_jupyter.engine.requests.look_recipes import fed_tokens
from djinn_jupyter.engine.requests.origin import circumstances
from djinn_jupyter.engine.session.feeding import fed_line
from djinn_jupyter.engine.session.session import Session
from djinn_jupyter.engine.system.arrays import to_array
from djinn_jupyter.wire.nouns import ModelDescription
from djinn_jupyter.wire.watches import Direction, WatchedLine, WatchRecipe

EMPTY: Final = "it recorded no pass"
BACK: Final = "the session went back, and other passes followed than some of those recorded"
GONE: Final = "it went on in another process than the one that recorded it"
UNDER_WAY: Final = "a recorded pass is still under way, or is no part of the line any more"


def watch_recipe(
    identity: ModelIdentity, model: ModelDescription, session: Session, watch: Watch
) -> tuple[WatchRecipe | None, str]:
    """Return what makes the recorded passes again; None, with the reason, where nothing does."""
    lines = _lines(session, watch)
    unmade = next(_why_not(watch, lines), "")
    if unmade:
        return None, unmade
    taps = [
        watch.tap,
        *(tap for line in lines.values() for one in line.passes for rule in one.rules for tap in rule.taps),
    ]
    recipe = WatchRecipe(
        lines=tuple(WatchedLine(run=run, tokens=line.tokens, passes=fed_tokens(line)) for run, line in lines.items()),
        direction=_direction(watch),
        made=circumstances(identity, model, session, (), taps),
    )
    return recipe, ""


def _lines(session: Session, watch: Watch) -> dict[int, FedLine]:
    """Return the lines of the runs with recorded passes, as far as this process knows them."""
    present = fed_line(
        session.tokens, session.pass_log, session.exactness, session.history.arrived, session.rules_in_force
    )
    known = watch.lines | {session.runs: present}
    return {run: known[run] for run in dict.fromkeys(watch.runs) if run in known}


def _why_not(watch: Watch, lines: dict[int, FedLine]) -> Iterator[str]:
    """Yield the reasons for which the recorded passes are not made again."""
    if not watch.values:
        yield EMPTY
    for run, positions in zip(watch.runs, watch.positions, strict=True):
        line = lines.get(run)
        if line is None:
            yield f"of run {run}, {GONE}"
        elif run in watch.repeated:
            yield f"in run {run}, {BACK}"
        elif line.unmade:
            yield f"in run {run}, {line.unmade}"
        elif not line.has_pass(positions):
            yield f"of run {run}, {UNDER_WAY}"


def _direction(watch: Watch) -> Direction | None:
    if watch.direction is None or watch.unit is None:
        return None
    return Direction(name=watch.direction, vector=to_array(watch.unit))
