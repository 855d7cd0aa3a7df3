"""A pass as it runs: its plan (rules, then watches, then halts at each tap), what the log tells of it, and its entry
into the model."""

from __future__ import annotations

import logging
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol, TypeVar

from torch import Tensor

from djinn_jupyter.engine.memory.kv.cache import PagedCache
from djinn_jupyter.engine.memory.kv.geometry import LayerState
from djinn_jupyter.engine.model.discovery.model_map import Anatomy
from djinn_jupyter.engine.model.hooks.gates import Leave
from djinn_jupyter.engine.model.hooks.layout import laid_as
from djinn_jupyter.engine.model.hooks.taps import Tap
from djinn_jupyter.engine.passes.breakpoints import Breakpoint
from djinn_jupyter.engine.passes.edits import Change
from djinn_jupyter.engine.passes.frame import Attended, Frame, Override
from djinn_jupyter.engine.passes.site_value import Lens, SiteValue
from djinn_jupyter.engine.system.arrays import tensors_within
from djinn_jupyter.engine.system.log import present, told
from djinn_jupyter.errors import SlabFull
from djinn_jupyter.modules.engine.feature_layout import ThroughLayout
from djinn_jupyter.wire.sites import Site

log = logging.getLogger(__name__)

STOPPED: Final = "The pass stopped at %s, step %d; layers run: %d"


def tell_stop(site: Site, *, layer: int, step: int, layers_run: int) -> None:
    if present() is not None:
        fields = told("pass.stopped", site=str(site), layer=layer, step=step, layers_run=layers_run)
        log.info(STOPPED, site, step, layers_run, extra=fields)


@contextmanager
def failure_told(layer: Callable[[], int], *, step: int) -> Iterator[None]:
    """Log the layer in which a pass fails, and the class of the error; its text is in the reply."""
    try:
        yield
    except Leave:
        raise
    except Exception as error:
        if present() is not None:
            at, name = layer(), type(error).__name__
            fields = told("pass.failed", layer=at, step=step, error_type=name)
            log.warning("The pass failed in layer %d, step %d: %s", at, step, name, extra=fields)
        raise


def tells_layers() -> bool:
    return log.isEnabledFor(logging.DEBUG) and present() is not None


def tell_layer(layer: int, **fields: Any) -> None:
    log.debug("Layer %d has run", layer, extra=told("pass.layer", layer=layer, **fields))


def tell_rules(site: Site, count: int) -> None:
    if tells_layers():
        log.debug("Edited by %d rules at %s", count, site, extra=told("pass.edited", site=str(site), rules=count))


class Observer(Protocol):
    """Observes the value at a site and changes nothing. `mark` returns a function that restores its record."""

    @property
    def tap(self) -> Tap: ...

    def observe(self, site_value: SiteValue) -> None: ...

    def mark(self) -> Callable[[], None]: ...


class PassRule(Protocol):
    """Changes values at its taps during a pass; `places` are their sites. `apply` returns the changed value. A steering
    rule, or part of a path."""

    @property
    def taps(self) -> tuple[Tap, ...]: ...

    @property
    def places(self) -> Container[Site]: ...

    def apply(self, site_value: SiteValue, counted: bool) -> tuple[Tensor, Change] | None: ...

    def mark(self) -> Callable[[], None]: ...


class Unmarked:
    """An observer or rule with nothing to restore: a value seen again replaces the earlier one, and none is counted."""

    __slots__ = ()

    def mark(self) -> Callable[[], None]:
        return lambda: None


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A tap to halt at without a condition, in the pass of `step`: the end of a step, a step back or a reading."""

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
    logits_of: tuple[int, ...] | None = None  # tokens: other logits are not wanted, and are NaN where that saves work
    after: Tap | None = None  # rules apply only after it: their earlier effects are in the frame's overrides
    bare: bool = False  # a halt leaves the frame that was entered, and keeps no value

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
        """The last boundary at which no rule applies, because the pass stopped after it; -2 where there is none."""
        if self.after is None:
            return -2
        return self.after.stage if self.after.boundary is None else self.after.boundary

    def undo(self) -> Callable[[], None]:
        """Return a function that restores the counts of rules and records of watches, to enter a pass again."""
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


# Control one entry into a forward pass: decide what happens at every tap, and how the pass is left. The gates and the
# taps call it. It applies overrides and rules, runs watches, checks the halts, yields to other work, and on leaving
# makes the frame from which the pass can resume. Runs no model.

SavedStates = dict[int, LayerState]
Admit = Callable[[int], None]
"""Called with the bytes about to be kept; raises SlabFull where there is no room for them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hit:
    """A halt that fired, with the absolute position to report."""

    halt: Halt
    position: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Halted:
    """The pass stopped at a tap, `frame.tap`; `hits` are the halts that fired."""

    frame: Frame
    hits: tuple[Hit, ...]
    layers_run: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Yielded:
    """The pass yielded to other work between two layers; no halt fired there."""

    frame: Frame
    layers_run: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Completed:
    """The pass is complete and committed. `logits_1TV`, in the model's dtype, are those of its last position, or of
    all where its plan says so."""

    logits_1TV: Tensor
    layers_run: int

    @property
    def logits_1V(self) -> Tensor:
        """The logits of the last position."""
        return self.logits_1TV[:, -1]


Outcome = Halted | Yielded | Completed


class PassController:
    """Crosses one pass of one session from `frame` under `plan`. `saved_states` keeps each cache layer's states from
    before this pass first touched them, across all entries of the pass."""

    def __init__(
        self,
        frame: Frame,
        plan: Plan,
        anatomy: Anatomy,
        cache: PagedCache,
        saved_states: SavedStates,
        lens: Callable[[Tap], Lens | None],
        admit: Admit,
    ) -> None:
        self.frame, self.plan, self.anatomy, self.cache = frame, plan, anatomy, cache
        self.saved_states, self.lens, self._admit = saved_states, lens, admit
        self.boundary, self.hidden = frame.boundary, frame.hidden
        self.layers_run = 0
        self.left: Halted | Yielded | None = None
        self._last = len(anatomy.layers)
        self._places = {place.tap.site: place for place in plan.inside}
        self._overrides: dict[Site, Override] = {override.tap.site: override for override in frame.overrides}
        self._made: dict[Site, Override] = {}
        self._boundary_overrides = {i.tap.boundary: i.raw for i in frame.overrides if i.tap.boundary is not None}
        self._stages = {place.tap.stage for place in plan.inside}
        self._stage = -1 if frame.hidden is None else frame.boundary
        self._entry = frame.hidden
        self._kwargs: dict[str, Any] = {}
        self._attended: tuple[int, Attended] | None = None
        self._handed = {given: frame.shared[given] for _, given in anatomy.handed if given in frame.shared}
        self._stopped_at = frame.tap if frame.inside else plan.after
        self._replaying = frame.inside or self._stage < plan.reach or (self._stage == plan.reach and not self._between)
        self._tells_layers = tells_layers()

    @property
    def layer(self) -> int:
        """The layer that runs, or that runs next."""
        return max(0, self.boundary + self.layers_run)

    def halting(self) -> frozenset[int]:
        """Return the layers ahead in which the pass may stop."""
        ahead = range(max(self.boundary, 0), self._last)
        return frozenset(place.tap.stage for place in self.plan.inside if place.halts and place.tap.stage in ahead)

    def taps(self) -> list[Tap]:
        """Return the taps within layers to catch: those of the plan and those with an override, except in layers below
        the frame, which do not run. Where several are on one tensor (a point and a module path, parts of a fused
        projection) their order must be the same at every entry of a pass, whatever was armed since."""
        taps = {place.tap.site: place.tap for place in self.plan.inside}
        taps.update({site: override.tap for site, override in self._overrides.items() if override.tap.boundary is None})
        if self._stopped_at is not None and not self._between:
            taps[self._stopped_at.site] = self._stopped_at
        later = [one for tap in taps.values() for one in tap.later]
        met = [tap for some in (taps.values(), later) for tap in sorted(some, key=lambda tap: str(tap.site))]
        return [tap for tap in met if not 0 <= tap.stage < self.boundary]

    # --- called by the gates ---------------------------------------------------------------------------------------

    def receive(self, boundary: int, hidden: Tensor, kwargs: dict[str, Any]) -> Tensor:
        self._kwargs = kwargs
        places = self.plan.boundaries.get(boundary, ())
        override = self._boundary_overrides.get(boundary)
        if self._between and boundary == self.plan.reach:
            self._replaying = False
        if override is not None:
            hidden = override.clone()
        elif boundary > self.plan.reach:
            for place in places:
                hidden = self._ruled(place, hidden)
        hits = [hit for place in places for hit in self._look(place, hidden)]
        if hits:
            self._leave(boundary, hidden, places[-1].tap if len(places) == 1 else hits[0].halt.tap, hidden, hits)
        if self.plan.yields is not None and self.layers_run and boundary < self._last and self.plan.yields():
            self._step_aside(boundary, hidden)
        if boundary == self._last:
            self._stage, self._entry = boundary, hidden.clone() if boundary in self._stages else hidden
        return hidden

    def about_to_run(self, layer: int, hidden: Tensor, kwargs: dict[str, Any]) -> None:
        self._kwargs = kwargs
        self._stage = layer
        if layer == self.boundary:
            for name in self.anatomy.mappings:
                if name in self.frame.shared:
                    kwargs[name].update(self.frame.shared[name])
        if layer in self._stages:
            self._entry = hidden.clone()
        for index in self.anatomy.cache_layers_of(layer):
            state = self.cache.capture(index) if index not in self.saved_states else None
            if state is not None:
                self.saved_states[index] = state

    def has_run(self, layer: int, output: Any) -> None:
        self.layers_run += 1
        if self._tells_layers:
            tell_layer(layer, step=self.frame.step)
        self._handed = {argument: output[slot] for slot, argument in self.anatomy.handed}

    def given(self) -> Mapping[int | str, Any]:
        kept: Mapping[int | str, Any] = _kept(self._handed)
        return kept

    def note_attended(self, layer: int, attended: Attended) -> None:
        """Record the output of a layer's attention, with which a later stop in the layer continues."""
        self._attended = (layer, attended)

    # --- called by the taps ----------------------------------------------------------------------------------------

    def meet(self, tap: Tap, raw: Tensor) -> Tensor | None:
        """Return the raw tensor that replaces the present one, None to keep it."""
        if tap.stage < self._stage:
            return None  # the prologue runs at every entry, but its values count at the first only
        if tap.handed_by is not None:
            return self._with_rest(tap, raw)
        override = self._overrides.get(tap.site)
        place = self._places.get(tap.site)
        if self._replaying:
            return self._replay(tap, raw, override)
        changed = raw
        if override is not None:
            changed = override.raw.clone()
        elif place is not None:
            changed = self._ruled(place, raw)
        hits = [] if place is None else list(self._look(place, changed))
        if hits:
            boundary = min(max(tap.stage, 0), self._last)
            self._leave(boundary, self._entry, tap, changed, hits)
        return None if changed is raw else changed

    def _with_rest(self, tap: Tap, raw: Tensor) -> Tensor | None:
        """Return the raw tensor at a later tap plus the addition of an override at an earlier one."""
        assert tap.handed_by is not None
        override = self._made.get(tap.handed_by) or self._overrides.get(tap.handed_by)
        if override is None or not isinstance(override.tap.layout, ThroughLayout):
            return None
        number = 1 + [one.site for one in override.tap.later].index(tap.site)
        return override.tap.layout.handed(override.raw, number, raw)

    def _replay(self, tap: Tap, raw: Tensor, override: Override | None) -> Tensor | None:
        """Replay up to the stop of this pass: the same values as the first time, no rules, no halts."""
        if self._stopped_at is not None and tap.site == self._stopped_at.site:
            self._replaying = False
            if self.frame.raw is not None and tap.editable:
                return laid_as(self.frame.raw, raw) if override is None else self.frame.raw.clone()
        return None if override is None else override.raw.clone()

    @property
    def _between(self) -> bool:
        """True where the pass stopped between two layers."""
        return self._stopped_at is not None and self._stopped_at.boundary is not None

    # --- helpers ---------------------------------------------------------------------------------------------------

    def _site_value(self, tap: Tap, raw: Tensor) -> SiteValue:
        frame = self.frame
        return SiteValue(
            tap=tap, raw=raw, tokens=frame.tokens, positions=frame.positions, step=frame.step, lens=self.lens(tap)
        )

    def _ruled(self, place: TapPlan, raw: Tensor) -> Tensor:
        """Return the raw tensor with the rules of a place applied. It is kept as an override, because a rule may be
        gone when this pass is rerun."""
        if not place.rules:
            return raw
        changes: list[Change] = []
        site_value = self._site_value(place.tap, raw)
        for rule in place.rules:
            applied = rule.apply(site_value, self.plan.counted)
            if applied is not None:
                value, change = applied
                site_value.change(value)
                changes.append(change)
        if not changes:
            return raw
        raw = site_value.written()
        tell_rules(place.tap.site, len(changes))
        self._made[place.tap.site] = Override(tap=place.tap, raw=raw.clone(), changes=tuple(changes))
        return raw

    def _look(self, place: TapPlan, raw: Tensor) -> list[Hit]:
        if not place.observers and not place.halts:
            return []
        site_value = self._site_value(place.tap, raw)
        for observer in place.observers:
            observer.observe(site_value)
        hits = []
        for halt in place.halts:
            position = halt.meets(site_value)
            if position is not None:
                hits.append(Hit(halt=halt, position=position))
        return hits

    def _step_aside(self, boundary: int, hidden: Tensor) -> None:
        """Leave the pass for other work. Without room to keep its frame, continue; the other work waits."""
        try:
            self._admit(self._kept_bytes(hidden, None))
        except SlabFull:
            return
        frame = replace(
            self.frame, boundary=boundary, hidden=hidden, tap=None, raw=None, **self._path(), states=None, attended=None
        )
        self.left = Yielded(frame=frame, layers_run=self.layers_run)
        raise Leave

    def states_before(self) -> SavedStates:
        """Return the states, from before this entry, of the layers that it ran or was running."""
        run = range(self.boundary, self.boundary + self.layers_run + 1)
        touched = {index for layer in run if layer < self._last for index in self.anatomy.cache_layers_of(layer)}
        return {index: state for index, state in self.saved_states.items() if index in touched}

    def _leave(self, boundary: int, hidden: Tensor | None, tap: Tap, raw: Tensor, hits: list[Hit]) -> None:
        if self.plan.bare:
            self.left = Halted(frame=self.frame, hits=tuple(hits), layers_run=self.layers_run)
            raise Leave
        attended = sum(tensor.nbytes for tensor in tensors_within(self._attended_at(tap)))
        self._admit(self._kept_bytes(hidden, None if raw is hidden else raw) + attended + self.cache.recurrent_bytes)
        live = self.cache.capture_all()
        start = {**live, **self.saved_states}
        if tap.boundary is None and 0 <= tap.stage < self._last:
            touched = self.anatomy.cache_layers_of(tap.stage)
            live.update({index: self.saved_states[index] for index in touched if index in self.saved_states})
        frame = replace(
            self.frame,
            boundary=boundary,
            hidden=hidden,
            tap=tap,
            raw=raw if raw is hidden else raw.clone(),
            **self._path(),
            states=live or None,
            start_states=start or None,
            attended=self._attended_at(tap),
        ).read()
        self.left = Halted(frame=frame, hits=tuple(hits), layers_run=self.layers_run)
        tell_stop(tap.site, layer=boundary, step=frame.step, layers_run=self.layers_run)
        raise Leave

    def _attended_at(self, tap: Tap) -> Attended | None:
        """Return the output of the attention of the tap's layer; None where it has not run, and between layers."""
        here = self._attended is not None and tap.boundary is None and self._attended[0] == tap.stage
        return self._attended[1] if here and self._attended is not None else None

    def _kept_bytes(self, hidden: Tensor | None, raw: Tensor | None) -> int:
        """Return the bytes of a frame made here: the hidden state's whole storage, the other tensors as copies."""
        whole = 0 if hidden is None else hidden.untyped_storage().nbytes()
        copied = [raw, self._handed, *(self._kwargs[name] for name in self.anatomy.mappings if name in self._kwargs)]
        made = sum(override.raw.nbytes for override in self._made.values())
        saved_states = sum(state.nbytes for state in self.saved_states.values())
        return whole + sum(tensor.nbytes for tensor in tensors_within(copied)) + made + saved_states

    def _path(self) -> dict[str, Any]:
        """Return the frame's fields for the path so far: the overrides, and the values that layers pass on."""
        kept = tuple(override for override in self.frame.overrides if override.tap.site not in self._made)
        shared: dict[int | str, Any] = {
            name: _kept(self._kwargs[name]) for name in self.anatomy.mappings if name in self._kwargs
        }
        return {"overrides": (*kept, *self._made.values()), "shared": {**shared, **_kept(self._handed)}}


def _kept(value: Any) -> Any:
    """Return a copy: values that layers pass on are views of the working copy, which later passes write."""
    if isinstance(value, Tensor):
        return value.clone()
    if isinstance(value, Mapping):
        return {key: _kept(part) for key, part in value.items()}
    return type(value)(_kept(part) for part in value) if isinstance(value, tuple | list) else value
