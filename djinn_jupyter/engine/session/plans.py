"""Plans for the passes of a session: what its breakpoints, rules and watches do in them."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from djinn_jupyter.engine.forward.plan import Observer, Plan, Target, make_plan
from djinn_jupyter.engine.session.session import Session


def plan_of(session: Session, *, free: bool, targets: Iterable[Target], yields: Callable[[], bool]) -> Plan:
    """Return the plan for a pass of its run; `free` passes all breakpoints."""
    armed = [] if free else [b for b in session.breakpoints.values() if b.enabled]
    return make_plan(
        rules=session.rules_in_force,
        observers=session.watches.values(),
        halts=(*armed, *targets),
        yields=yields,
    )


def side_plan_of(
    session: Session,
    targets: Iterable[Target],
    yields: Callable[[], bool],
    *,
    ruled: bool,
    observers: Iterable[Observer] = (),
    all_logits: bool = False,
) -> Plan:
    """Return a plan for a look: no watches, no breakpoints, rules without counting (no rules at all where the pass is
    run again: there the frame's overrides hold what the rules made)."""
    rules = session.rules_in_force if ruled else ()
    return make_plan(
        rules=rules, observers=observers, halts=tuple(targets), counted=False, yields=yields, all_logits=all_logits
    )
