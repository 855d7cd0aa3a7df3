"""Going back to a place without a stop by running again: a layer of the stopped pass, or an earlier token.

Going back by layers keeps the values that edits and rules put into the pass before that layer. Going back by tokens
runs the passes under the rules that hold now.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from djinn_jupyter.engine.model.hooks.taps import Tap
from djinn_jupyter.engine.passes.controller import Completed, Halted, Target
from djinn_jupyter.engine.passes.frame import Frame, States
from djinn_jupyter.engine.session import queries, reports
from djinn_jupyter.engine.session.footprint import tensors_of_states
from djinn_jupyter.engine.session.residence import Steps
from djinn_jupyter.engine.session.run import arrive_at
from djinn_jupyter.engine.session.runtime import Runtime
from djinn_jupyter.engine.session.session import Session
from djinn_jupyter.errors import UsageError
from djinn_jupyter.wire.replies import Paused
from djinn_jupyter.wire.sites import Site


def to_layer(runtime: Runtime, session: Session, count: int) -> Steps[Paused]:
    """Stand `count` layer boundaries before the present stop, in the same pass."""
    frame = queries.stopped_frame(session)
    boundary = frame.boundary - (count - 1 if frame.inside else count)
    if boundary < 0:
        raise UsageError(
            f"This pass begins {frame.boundary} layers before its stop, so {count} layers back there is nothing; "
            "go back by token or by stop to reach an earlier pass."
        )
    tap = boundary_tap(runtime, boundary)
    start = replace(frame.at_start(), overrides=tuple(i for i in frame.overrides if _before(i.tap, boundary)))
    with queries.isolated(session):
        outcome = yield from queries.replay(runtime, session, start, (Target(tap=tap, step=frame.step),), ruled=False)
    assert isinstance(outcome, Halted)
    return _stand(runtime, session, outcome.frame)


def boundary_tap(runtime: Runtime, boundary: int) -> Tap:
    site = Site(point="resid_pre", layer=0) if boundary == 0 else Site(point="resid_post", layer=boundary - 1)
    return runtime.resolve(site)


def _before(tap: Tap, boundary: int) -> bool:
    return tap.boundary <= boundary if tap.boundary is not None else tap.stage < boundary


def to_token(runtime: Runtime, session: Session, count: int) -> Steps[Paused]:
    """Stand in the pass `count` tokens earlier, at the site of the present stop (of the last one, when the run is over;
    before the first layer where there was none)."""
    generation = session.generation
    if generation is None:
        raise UsageError("There is nothing to go back to: no prompt was run.")
    here = session.frame.step if session.frame is not None else len(generation.new_tokens(session.tokens))
    step = here - count
    if step < 0:
        raise UsageError(f"The run is at its token {here}; it can go back at most {here} tokens, to the prompt.")
    tap = _present_tap(runtime, session)
    committed, end = _pass_of(runtime, session, step)
    start, states = _restart(runtime, session, committed)
    session.move("rerun")
    return _fetch_and_rerun(runtime, session, tap, start, states, (committed, end))


def _fetch_and_rerun(
    runtime: Runtime, session: Session, tap: Tap, start: int, states: States | None, place: tuple[int, int]
) -> Steps[Paused]:
    """Fetch the states, which may have been evicted, then run again; until they are there the line is unchanged."""
    committed, end = place
    with runtime.space.pinned(tensors_of_states(states or {})) as storages:
        yield from runtime.space.fetched(session, storages)
        session.frame = None
        _cut(session, end, start)
        session.history.drop_from(committed, 0)
        return (yield from _rerun(runtime, session, tap, start, states, committed))


def _rerun(
    runtime: Runtime, session: Session, tap: Tap, start: int, states: States | None, committed: int
) -> Steps[Paused]:
    """Run the passes from `start` again, then the one at `committed` up to the tap."""
    for first, end in _passes(runtime, session, start, committed):
        frame = _pass(session, first, end, states)
        yield from queries.replay(runtime, session, frame, (), ruled=True)
        session.pass_log.record(frame, session.rules_in_force, whole=True)
        states = session.cache.capture_all() or None
    frame = _pass(session, committed, len(session.tokens), states)
    outcome = yield from queries.replay(runtime, session, frame, (Target(tap=tap, step=frame.step),), ruled=True)
    if isinstance(outcome, Completed):
        raise UsageError(f"{tap.site} was not met in that pass.")
    return _arrive_back(runtime, session, outcome.frame)


def _passes(runtime: Runtime, session: Session, start: int, committed: int) -> Iterator[tuple[int, int]]:
    """Yield the passes that fed the tokens [start, committed): the prompt at once, others one by one."""
    generation = session.generation
    assert generation is not None
    at_once = start == generation.fed_from and generation.begins <= committed and not (runtime.token_by_token and start)
    if at_once:
        yield start, generation.begins
    for position in range(generation.begins if at_once else start, committed):
        yield position, position + 1


def _pass(session: Session, start: int, end: int, states: States | None) -> Frame:
    tokens = tuple(session.tokens[start:end])
    return Frame(tokens=tokens, committed=start, step=session.step_at(end), states=states, start_states=states)


def _present_tap(runtime: Runtime, session: Session) -> Tap:
    if session.frame is not None and session.frame.tap is not None:
        return session.frame.tap
    if session.history.stops:
        last = session.history.stops[-1].frame.tap
        assert last is not None
        return last
    return boundary_tap(runtime, 0)


def _pass_of(runtime: Runtime, session: Session, step: int) -> tuple[int, int]:
    """Return the first position and the end of a step's pass; with token-by-token feeding, of the prompt's last."""
    generation = session.generation
    assert generation is not None
    if step > 0:
        return generation.begins + step - 1, generation.begins + step
    single = runtime.token_by_token and generation.fed_from > 0
    return (generation.begins - 1 if single else generation.fed_from), generation.begins


def _restart(runtime: Runtime, session: Session, committed: int) -> tuple[int, States | None]:
    """Return the nearest length at or before `committed` from which the line can be run again, with the states there.
    Where the rows of a sliding window were given up it is the line's beginning, if no stop was dropped from the
    history (a dropped one may have been edited)."""
    generation = session.generation
    assert generation is not None
    kept: dict[int, States | None] = dict(generation.states) if runtime.recurrent else {committed: None}
    if generation.fed_from == 0 and (committed == 0 or not session.history.dropped):
        kept[0] = runtime.space.new_cache().capture_all() or None
    edited = session.pass_log.last_edited(committed)  # rows that running again would make anew, without the edit
    start = max((at for at in kept if edited < at <= committed and session.cache.may_enter(at)), default=None)
    if start is None:
        raise UsageError("The states or the window of that token are no longer kept; go back by stop.")
    return start, kept[start]


def _cut(session: Session, end: int, committed: int) -> None:
    """Forget the tokens after `end` and put the sampler where it was before it drew the next one."""
    generation = session.generation
    assert generation is not None
    drawn = end - generation.begins
    if generation.sampler.draws and 0 <= drawn < len(generation.drawn):
        generation.sampler.generator.set_state(generation.drawn[drawn])
    session.cut(session.tokens[:end], committed)


def _stand(runtime: Runtime, session: Session, frame: Frame) -> Paused:
    """Make a frame reached by a side run the session's present stop; it replaces all later ones of its pass."""
    session.history.drop_from(frame.committed, frame.boundary)
    session.move("rerun")
    return _arrive_back(runtime, session, frame)


def _arrive_back(runtime: Runtime, session: Session, frame: Frame) -> Paused:
    arrive_at(runtime, session, frame, "back", [])
    recount(session, runtime.forward.layers)
    return reports.paused(runtime, session)


def recount(session: Session, layers: int) -> None:
    """Recount the passes and layers of a line that went back to its frame, for a model of `layers` layers."""
    assert session.generation is not None and session.frame is not None
    generation = session.generation
    generation.passes = session.pass_log.count(generation.fed_from, session.frame.committed)
    generation.layers_run = generation.passes * layers + session.frame.boundary
