"""Looks at a stopped pass, by parts of it that are run on the side; and edits of keys and values that are committed,
made in a fork, whose pages alone have them."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from djinn_jupyter.engine.memory.kv.cache import PagedCache, read_rows, readable, replace_rows
from djinn_jupyter.engine.memory.kv.geometry import LayerGeometry
from djinn_jupyter.engine.model.hooks.taps import Tap
from djinn_jupyter.engine.passes import controller, edits
from djinn_jupyter.engine.passes.frame import Frame
from djinn_jupyter.engine.session.history import CachedEdit
from djinn_jupyter.engine.session.residence import Blocked
from djinn_jupyter.engine.session.runtime import Runtime, entered
from djinn_jupyter.engine.session.session import Session
from djinn_jupyter.errors import IllegalMove, InvalidEdit, UnknownSite
from djinn_jupyter.wire.edits import Edit, PatchFrom
from djinn_jupyter.wire.sites import Site
from djinn_jupyter.wire.texts import in_quotes


def side_plan_of(
    session: Session,
    targets: Iterable[controller.Target],
    yields: Callable[[], bool],
    *,
    ruled: bool,
    observers: Iterable[controller.Observer] = (),
    all_logits: bool = False,
) -> controller.Plan:
    """Return a plan for a reading: no watches, no breakpoints, rules without counting (no rules where the pass is run
    again: there the frame's overrides have the rules' results)."""
    rules = session.rules_in_force if ruled else ()
    return controller.make_plan(
        rules=rules, observers=observers, halts=tuple(targets), counted=False, yields=yields, all_logits=all_logits
    )


# Reads of a stopped pass: values below the stop, values ahead of it, and the logits of the next token. A reading runs
# parts of the pass on the side. It samples nothing, fires no breakpoint, records no watch, counts no rule and commits
# nothing; afterwards the session's states are as before. It writes only in-flight KV: below the stop the same bits
# again, above it rows that the resumed pass will overwrite.

Provenance = Literal["exact", "re-run from the committed cache", "run ahead", "recomputed from q and k"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ObtainedValue:
    """A raw value of the stopped pass and how it was obtained."""

    raw: Tensor
    exactness: Provenance


def replay(
    runtime: Runtime,
    session: Session,
    frame: Frame,
    targets: tuple[controller.Target, ...],
    *,
    ruled: bool,
    observers: Iterable[controller.Observer] = (),
) -> Generator[Blocked | None, None, controller.Halted | controller.Completed]:
    """Run on from `frame` until a target or the end of the pass. `ruled` is False where the frame's overrides already
    have the rules' results."""
    plan = side_plan_of(session, targets, runtime.giving_way.asked, ruled=ruled, observers=observers)
    return (yield from passed(runtime, session, frame, plan))


def passed(
    runtime: Runtime, session: Session, frame: Frame, plan: controller.Plan
) -> Generator[Blocked | None, None, controller.Halted | controller.Completed]:
    """Run on from `frame` under a plan, yielding where the plan says so."""
    while True:
        outcome = yield from entered(runtime, session, frame, plan, session.cache, session.saved_states)
        runtime.counters.count_layers(outcome.layers_run)
        if not isinstance(outcome, controller.Yielded):
            return outcome
        frame = outcome.frame
        yield None


def run_line(
    runtime: Runtime,
    session: Session,
    tokens: tuple[int, ...],
    *,
    rules: Iterable[controller.PassRule] = (),
    observers: Iterable[controller.Observer] = (),
    all_logits: bool = False,
) -> Generator[Blocked | None, None, controller.Completed]:
    """Run tokens in a pass of their own, under the rules, in an empty session, which is empty afterwards. Observers see
    the values at their taps. Nothing is counted, and other jobs run between layers."""
    yields = runtime.giving_way.asked
    plan = controller.make_plan(rules=rules, observers=observers, counted=False, yields=yields, all_logits=all_logits)
    with isolated(session):
        outcome = yield from passed(runtime, session, Frame(tokens=tokens, committed=0, step=0), plan)
    assert isinstance(outcome, controller.Completed)
    return outcome


@contextmanager
def isolated(session: Session) -> Iterator[None]:
    """Replay within the stopped pass; afterwards the session's states, saved states and length are as before."""
    live, saved_states, committed = session.cache.capture_all(), dict(session.saved_states), session.cache.length
    try:
        yield
    finally:
        session.cache.rewind(committed)
        session.cache.restore_all(live)
        session.saved_states.clear()
        session.saved_states.update(saved_states)


def stopped_frame(session: Session) -> Frame:
    """Return the frame of a paused session. Raises IllegalMove where no pass is stopped."""
    if session.state != "paused" or session.frame is None:
        raise IllegalMove(
            f"Session {in_quotes(session.name)} is {session.state}: no forward pass is stopped. "
            "Set a breakpoint and run a prompt."
        )
    return session.frame


def value_at(
    runtime: Runtime, session: Session, tap: Tap, ahead: bool
) -> Generator[Blocked | None, None, ObtainedValue]:
    """Return the raw value at `tap` in the stopped pass. Raises UnknownSite where it is not available."""
    frame = stopped_frame(session)
    assert frame.tap is not None and frame.raw is not None
    if tap.site.whole() == frame.tap.site.whole() or tap.same_tensor(frame.tap):
        return ObtainedValue(raw=frame.raw, exactness="exact")
    replaced = [override.raw for override in frame.overrides if tap.same_tensor(override.tap)]
    if replaced:
        return ObtainedValue(raw=replaced[-1], exactness="exact")
    if tap.boundary is not None and tap.boundary == frame.boundary and frame.hidden is not None:
        return ObtainedValue(raw=frame.hidden, exactness="exact")
    if may_be_reached(tap, frame):
        seen = yield from _below(runtime, session, frame, tap)
        if seen is not None:
            return seen
    if not ahead:
        here = session.history.here
        at = frame.tap.site if here is None else here.site
        raise UnknownSite(
            f"{tap.site} lies ahead of the stop at {at}; resume or step to it, or look ahead with --ahead."
        )
    with isolated(session):
        outcome = yield from replay(runtime, session, frame, (controller.Target(tap=tap, step=frame.step),), ruled=True)
    return _seen(outcome, tap, "run ahead")


def may_be_reached(tap: Tap, frame: Frame) -> bool:
    """True where the stopped pass may have reached the tap: it lies in a stage that has run or in the stop's stage."""
    if tap.boundary is not None:
        return tap.boundary <= frame.boundary
    return tap.stage < frame.boundary or (frame.inside and frame.tap is not None and tap.stage <= frame.tap.stage)


def _below(
    runtime: Runtime, session: Session, frame: Frame, tap: Tap
) -> Generator[Blocked | None, None, ObtainedValue | None]:
    """Run the pass again from its start up to the tap. Return None where the stop itself comes first."""
    assert frame.tap is not None
    targets = (controller.Target(tap=tap, step=frame.step), controller.Target(tap=frame.tap, step=frame.step))
    with isolated(session):
        outcome = yield from replay(runtime, session, frame.at_start(), targets, ruled=False)
    met = outcome.frame.tap if isinstance(outcome, controller.Halted) else None
    if met is not None and met.site != tap.site:
        return None
    return _seen(outcome, tap, "re-run from the committed cache")


def _seen(outcome: controller.Halted | controller.Completed, tap: Tap, exactness: Provenance) -> ObtainedValue:
    if isinstance(outcome, controller.Completed) or outcome.frame.raw is None:
        raise UnknownSite(f"{tap.site} was not met in this pass.")
    return ObtainedValue(
        raw=outcome.frame.raw, exactness="recomputed from q and k" if tap.kind == "recomputed" else exactness
    )


def as_it_went(
    runtime: Runtime, session: Session, frame: Frame, observers: Iterable[controller.Observer]
) -> Generator[Blocked | None, None, None]:
    """Run the pass again from its start to the stop, with observers."""
    assert frame.tap is not None
    target = controller.Target(tap=frame.tap, step=frame.step)
    with isolated(session):
        yield from replay(runtime, session, frame.at_start(), (target,), ruled=False, observers=observers)


def as_it_would_go_on(
    runtime: Runtime, session: Session, frame: Frame, observers: Iterable[controller.Observer]
) -> Generator[Blocked | None, None, Tensor]:
    """Finish the pass on the side, with observers. Return the logits [T, V] of all its positions."""
    asked = runtime.giving_way.asked
    plan = side_plan_of(session, (), asked, ruled=True, observers=observers, all_logits=True)
    with isolated(session):
        outcome = yield from passed(runtime, session, frame, plan)
    assert isinstance(outcome, controller.Completed)
    return outcome.logits_1TV[0]


def next_logits(runtime: Runtime, session: Session, frame: Frame) -> Generator[Blocked | None, None, Tensor]:
    """Return the logits [V] of the pass's last position if it continued from `frame`."""
    with isolated(session):
        outcome = yield from replay(runtime, session, frame, (), ruled=True)
    assert isinstance(outcome, controller.Completed)
    return outcome.logits_1V[0]


KEYS, VALUES = "k_rot", "v"


@torch.inference_mode()
def edit_cached(
    runtime: Runtime, session: Session, edit: Edit, site: Site, positions: Sequence[int] | None, words: str | None
) -> CachedEdit:
    """Edit committed keys (`k_rot.N`) or values (`v.N`) of a session and record that in its pass log. Raises
    InvalidEdit, UnknownSite and SlabFull; nothing has changed then."""
    layer = _cache_layer(runtime, session.frame, site)
    available = readable(session.cache, layer)
    chosen = _chosen(positions, available)
    keys = site.point == KEYS
    before = read_rows(session.cache, layer, chosen, keys=keys)
    if isinstance(edit, PatchFrom):
        raise InvalidEdit("patch_from takes the value of a stop, and these rows are of none; use set with an array.")
    edits.check(edit, before.shape[-1])
    part = edits.take(before, None, site.selector)
    after = edits.compute(part, edit, None)
    if not bool(torch.isfinite(after).all()):
        raise InvalidEdit("The edit makes NaN or infinity of the keys or values; there is no fork.")
    made = CachedEdit(
        at=session.committed,
        site=site,
        positions=chosen,
        rows_nHD=edits.put(before, after, None, site.selector).to("cpu"),
        what=edits.spell_at(words or edits.spell(edit), site, chosen) + ", in the cache",
        size=float(edits.sizes(part, after).relative),
    )
    put_back(runtime, session.cache, made)
    session.pass_log.edited.append(made)
    return made


def put_back(runtime: Runtime, cache: PagedCache, made: CachedEdit) -> None:
    """Put the edited rows into a cache, except those that a window has released. Raises SlabFull."""
    assert made.site.layer is not None
    (layer,) = runtime.forward.anatomy.cache_layers_of(made.site.layer)
    here = readable(cache, layer)
    kept = [index for index, position in enumerate(made.positions) if position in here]
    positions = [made.positions[index] for index in kept]
    replace_rows(cache, layer, positions, made.rows_nHD[kept], keys=made.site.point == KEYS)


def _cache_layer(runtime: Runtime, frame: Frame | None, site: Site) -> int:
    """Return the cache layer of a site. Raises InvalidEdit where it is not in the cache, or the stopped pass has read
    it."""
    if site.point not in (KEYS, VALUES) or site.layer is None:
        raise InvalidEdit(
            f"{site} is not in the cache: it keeps keys, after the rotary embedding, and values. Write "
            f"{KEYS}.{site.layer or 0} or {VALUES}.{site.layer or 0}, with heads in brackets."
        )
    runtime.resolve(site)
    layers = runtime.forward.anatomy.cache_layers_of(site.layer)
    if len(layers) != 1:
        raise InvalidEdit(f"Layer {site.layer} keeps no keys and values of its own.")
    if frame is not None and frame.tap is not None:
        first = frame.tap.stage + 1 if frame.inside else frame.boundary
        if site.layer < first:
            raise InvalidEdit(
                f"Layer {site.layer} has run in the stopped pass, with the keys and values as they were. Go back to "
                "before it, or fork when no pass is stopped."
            )
    return layers[0]


def _chosen(positions: Sequence[int] | None, available: range) -> tuple[int, ...]:
    if not available:
        raise InvalidEdit("No position is committed yet, so the cache holds nothing to edit; run a prompt first.")
    if positions is None:
        return tuple(available)
    absolute = [available.stop + one if one < 0 else one for one in positions]
    strange = next((one for one in absolute if one not in available), None)
    if strange is not None:
        raise InvalidEdit(
            f"Position {strange} has no keys and values in this layer's cache, which holds positions "
            f"{available.start} to {available.stop - 1}."
        )
    return tuple(dict.fromkeys(absolute))


def fits_layer(geometry: LayerGeometry, site: Site, rows_nHD: Tensor) -> bool:
    """True where rows have the shape and dtype of the site's keys or values in a cache layer."""
    width = geometry.key_dim if site.point == KEYS else geometry.value_dim
    return rows_nHD.shape[1:] == (geometry.kv_heads, width) and rows_nHD.dtype == geometry.dtype
