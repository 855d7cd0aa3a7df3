"""The plan of a pass: rules, then watches, then halts at each tap. Built when something changes."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol, TypeVar

from torch import Tensor

from djinn_jupyter.engine.interventions.breakpoints import Breakpoint
from djinn_jupyter.engine.interventions.change import Change
from djinn_jupyter.engine.interventions.site_value import SiteValue
from djinn_jupyter.engine.model.hooks.taps import Tap
from djinn_jupyter.wire.sites import Site


class Observer(Protocol):
    """Observes the value at a site and changes nothing of the pass. `mark` returns a callable that restores its present
    record."""

    @property
    def tap(self) -> Tap: ...

    def observe(self, site_value: SiteValue) -> None: ...

    def mark(self) -> Callable[[], None]: ...


class PassRule(Protocol):
    """Changes values at its taps while a pass runs; `places` are their sites. `apply` returns the changed value. A
    steering rule, or part of a path."""

    @property
    def taps(self) -> tuple[Tap, ...]: ...

    @property
    def places(self) -> Container[Site]: ...

    def apply(self, site_value: SiteValue, counted: bool) -> tuple[Tensor, Change] | None: ...

    def mark(self) -> Callable[[], None]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A tap to halt at without a condition, in the pass of `step`: the end of a step, a step back or a look."""

    tap: Tap
    step: int

    def meets(self, site_value: SiteValue) -> int | None:
        return site_value.positions[-1] if site_value.step == self.step else None


Halt = Breakpoint | Target
Placed = TypeVar("Placed", Observer, Halt)


@dataclass(frozen=True, slots=True, kw_only=True)
class TapPlan:
    """The rules, observers and halts at one tap."""

    tap: Tap
    rules: tuple[PassRule, ...]
    observers: tuple[Observer, ...]
    halts: tuple[Halt, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """`boundaries` by boundary number, in the order resid_post of the layer below, resid_pre of the layer above;
    `inside` are the places within layers, prologue and epilogue. `counted` is False when a pass is rerun: rules then
    count nothing. `yields`, called between layers, is true when the pass should yield to other work."""

    boundaries: Mapping[int, tuple[TapPlan, ...]]
    inside: tuple[TapPlan, ...]
    counted: bool = True
    yields: Callable[[], bool] | None = None
    all_logits: bool = False  # of all positions of the pass, in place of the last one's
    logits_of: tuple[int, ...] | None = None  # tokens: other logits are not wanted, and are NaN where that is less work
    after: Tap | None = None  # rules apply behind it alone: what they did before it is in the frame's overrides
    bare: bool = False  # a halt leaves the frame that was entered, and keeps no value

    def stages(self) -> frozenset[int]:
        """Return the stages that have a place inside them."""
        return frozenset(place.tap.stage for place in self.inside)

    @property
    def empty(self) -> bool:
        """True where nothing happens in the pass."""
        return not self.boundaries and not self.inside

    @property
    def halts(self) -> bool:
        """True where the plan may stop a pass."""
        return any(place.halts for places in (*self.boundaries.values(), self.inside) for place in places)

    @property
    def reach(self) -> int:
        """The last boundary at which no rule applies, because the pass stopped behind it; -2 where there is none."""
        if self.after is None:
            return -2
        return self.after.stage if self.after.boundary is None else self.after.boundary

    def undo(self) -> Callable[[], None]:
        """Return a callable that restores the present counts of rules and records of watches, for a pass that is
        entered again."""
        places = [*self.inside, *(place for here in self.boundaries.values() for place in here)]
        rules = {id(rule): rule for place in places for rule in place.rules}  # one at every layer is marked once
        marks = [rule.mark() for rule in rules.values()]
        marks += [observer.mark() for place in places for observer in place.observers]

        def go_back() -> None:
            for mark in marks:
                mark()

        return go_back


def make_plan(
    *,
    rules: Iterable[PassRule] = (),
    observers: Iterable[Observer] = (),
    halts: Iterable[Halt] = (),
    counted: bool = True,
    yields: Callable[[], bool] | None = None,
    all_logits: bool = False,
    logits_of: tuple[int, ...] | None = None,
    after: Tap | None = None,
    bare: bool = False,
) -> Plan:
    """Return a plan with one place per tap."""
    rules, observed, halting = tuple(rules), _by_site(observers), _by_site(halts)
    taps: dict[Site, Tap] = {}
    first = [there[0].tap for there in observed.values()] + [there[0].tap for there in halting.values()]
    for tap in (*(tap for rule in rules for tap in rule.taps), *first):
        taps.setdefault(tap.site.whole(), tap)
    places = [
        TapPlan(
            tap=tap,
            rules=tuple(rule for rule in rules if site in rule.places),
            observers=tuple(observed.get(site, ())),
            halts=tuple(halting.get(site, ())),
        )
        for site, tap in taps.items()
    ]
    boundaries: dict[int, tuple[TapPlan, ...]] = {}
    for place in sorted(
        (p for p in places if p.tap.boundary is not None), key=lambda p: p.tap.site.point == "resid_pre"
    ):
        assert place.tap.boundary is not None
        boundaries[place.tap.boundary] = (*boundaries.get(place.tap.boundary, ()), place)
    inside = tuple(p for p in places if p.tap.boundary is None)
    return Plan(
        boundaries=boundaries,
        inside=inside,
        counted=counted,
        yields=yields,
        all_logits=all_logits,
        logits_of=logits_of,
        after=after,
        bare=bare,
    )


def _by_site(placed: Iterable[Placed]) -> dict[Site, list[Placed]]:
    """Return observers or halts by their sites, in their order."""
    found: dict[Site, list[Placed]] = {}
    for one in placed:
        found.setdefault(one.tap.site.whole(), []).append(one)
    return found
