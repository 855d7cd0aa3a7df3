"""Runs: pass after pass until a stop or the end; and going back to a place without a stop by running again. Each
`yield` lets other jobs run; the value returned is the reply.

Going back by layers keeps the values that edits and rules put into the pass before that layer. Going back by tokens
runs the passes under the rules that hold now."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from dataclasses import replace
from typing import Final

import torch
from msgspec import UNSET
from torch import Tensor

from djinn_jupyter.engine.model.hooks.taps import Tap
from djinn_jupyter.engine.model.loading.tokenizer import Stream
from djinn_jupyter.engine.passes.breakpoints import Breakpoint, Rule
from djinn_jupyter.engine.passes.controller import Completed, Halted, Hit, Outcome, Plan, Target, Yielded, make_plan
from djinn_jupyter.engine.passes.frame import Frame, States
from djinn_jupyter.engine.session import queries, reports
from djinn_jupyter.engine.session.generation import STATE_PERIOD
from djinn_jupyter.engine.session.history import StopRecord, same_rules
from djinn_jupyter.engine.session.residence import Blocked, RunSteps, Steps
from djinn_jupyter.engine.session.runtime import GENERATOR_BYTES, Runtime, entered
from djinn_jupyter.engine.session.session import Session
from djinn_jupyter.engine.session.shared_prompts import Seat
from djinn_jupyter.engine.session.table import tensors_of_states
from djinn_jupyter.errors import OverQuota, SlabFull, UsageError
from djinn_jupyter.wire.base import Progress, WorkProgressed
from djinn_jupyter.wire.nouns import FinishReason, PauseReason
from djinn_jupyter.wire.replies import Finished, Paused, RuleRefused, SessionFinished, SessionPaused, TokenSampled
from djinn_jupyter.wire.sites import Site

PAUSED: Final = "It was paused while it waited for room on the device."


def run(
    runtime: Runtime,
    session: Session,
    *,
    free: bool = False,
    targets: Iterable[Target] = (),
    reason: PauseReason = "step",
    stream: Stream | None = None,
) -> RunSteps:
    """Continue from `session.frame`. `reason` is the reported reason of a halt at `targets`; `stream` has the text."""
    seat = Seat(session)
    try:
        stream = stream or _stream_of(runtime, session)
        return (yield from _run(runtime, session, seat, stream, free=free, targets=tuple(targets), reason=reason))
    finally:
        runtime.sharing.leave(seat)


def _stream_of(runtime: Runtime, session: Session) -> Stream:
    """Return the stream of the session's text. If the run has stop strings, its `tail` is the new tokens'."""
    generation = session.generation
    assert generation is not None
    begins = generation.begins if generation.stop else len(session.tokens)
    stream = runtime.tokenizer.stream(session.tokens[:begins])
    for token in session.tokens[begins:]:
        stream.add(token)
    return stream


def _run(
    runtime: Runtime,
    session: Session,
    seat: Seat,
    stream: Stream,
    *,
    free: bool,
    targets: tuple[Target, ...],
    reason: PauseReason,
) -> RunSteps:
    version, plan = -1, make_plan()
    rules: tuple[Rule, ...] = ()
    begun_under: tuple[Rule, ...] | None = None
    while True:
        frame = session.frame
        assert frame is not None and session.generation is not None
        if session.pause_requested and frame.hidden is None:
            targets = (*targets, Target(tap=runtime.resolve(Site(point="resid_pre", layer=0)), step=frame.step))
            version, reason = -1, session.pause_requested
        if version != session.plan_version:
            armed = () if free else (one for one in session.breakpoints.values() if one.enabled)
            plan = make_plan(
                rules=session.rules_in_force,
                observers=session.watches.values(),
                halts=(*armed, *targets),
                yields=runtime.giving_way.asked,
            )
            version, rules = session.plan_version, session.rules_in_force
        seat.version = version
        if frame.hidden is None and frame.tap is None:
            begun_under = rules
        try:
            outcome = yield from _passed(runtime, session, frame, plan, seat)
        except (SlabFull, OverQuota) as full:
            if not session.generation.new_tokens(session.tokens):
                raise
            return finish(runtime, session, "slab_full", str(full))
        if outcome is None:
            continue
        _announce_refusals(runtime, session, rules)
        session.generation.layers_run += outcome.layers_run
        runtime.counters.count_layers(outcome.layers_run)
        forward = runtime.forward
        if forward.graphs is not None:  # a session of another attention has none in an engine that has
            runtime.counters.note_graphs(replayed=forward.graphs.replayed, postponed=len(forward.graphs.postponed))
        match outcome:
            case Yielded():
                session.frame = outcome.frame
                runtime.counters.count_preemption()
                yield None
                if session.pause_requested:
                    return (yield from _paused_between(runtime, session, session.pause_requested))
            case Halted():
                return pause(runtime, session, outcome, reason)
            case Completed():
                whole = begun_under is not None and same_rules(begun_under, rules)
                session.pass_log.record(frame, rules, whole=whole)
                ended = _after_pass(runtime, session, outcome, stream)
                if ended is not None:
                    return ended
                if outcome is not seat.outcome:  # a run that shares a pass yields where it takes its seat
                    yield None


def _passed(
    runtime: Runtime, session: Session, frame: Frame, plan: Plan, seat: Seat
) -> Generator[Blocked | None, None, Outcome | None]:
    """Run a pass: together with others where the run asked for that and nothing is to happen in it, else alone. None
    where the plan has changed while it waited for the others, or for room."""
    assert session.generation is not None
    shares = session.generation.mode == "fast" and session.as_loaded and _may_be_shared(frame) and plan.empty
    wanted = session.cache.bytes_wanted(frame.committed, frame.end) if shares else 0
    if shares and runtime.space.short_of_owner_budget(session, wanted) <= 0:  # else it waits for room, alone
        shared = yield from runtime.sharing.passed(seat)
        if shared is not None:
            session.generation.shared += 1
            if seat.difference is not None:
                session.generation.difference = max(seat.difference, session.generation.difference or 0.0)
            session.exactness = "fast"
            return shared
        if not seat.up_to_date:
            return None
    seat.outcome = None  # the run does this pass by itself
    steps = entered(runtime, session, frame, plan, session.cache, session.saved_states)
    return (yield from _while_up_to_date(seat, steps))


def _while_up_to_date(
    seat: Seat, steps: Generator[Blocked | None, None, Outcome]
) -> Generator[Blocked | None, None, Outcome | None]:
    """Run the steps of entering a pass; None where its plan changes while they wait for room. Raises SlabFull where
    there is none yet when the session is to pause before the pass."""
    while True:
        try:
            blocked = next(steps)
        except StopIteration as done:
            outcome: Outcome = done.value
            return outcome
        yield None if blocked is None else _until_paused(seat.session, blocked)
        if blocked is not None and blocked() and _pauses_before(seat.session):
            raise SlabFull(PAUSED)
        if not seat.up_to_date:
            return None


def _until_paused(session: Session, blocked: Blocked) -> Blocked:
    return lambda: blocked() and not _pauses_before(session)


def _pauses_before(session: Session) -> bool:
    """True where the session is to pause and its pass has not begun."""
    return session.pause_requested is not None and session.frame is not None and session.frame.hidden is None


def _may_be_shared(frame: Frame) -> bool:
    """True for a whole prompt and for one generated token, before anything of the pass has run."""
    begun = frame.hidden is not None or frame.tap is not None or bool(frame.overrides)
    return not begun and (not frame.committed or (len(frame.tokens) == 1 and frame.step > 0))


def draw_and_run(runtime: Runtime, session: Session, *, free: bool = False) -> RunSteps:
    """Draw the next token from the kept logits of the last pass, and continue from there."""
    stream = _stream_of(runtime, session)
    ended = _draw(runtime, session, stream)
    return ended if ended is not None else (yield from run(runtime, session, free=free, stream=stream))


def _announce_refusals(runtime: Runtime, session: Session, rules: tuple[Rule, ...]) -> None:
    """Publish the rules that a value refused for the first time in this run."""
    for rule in rules:
        message = rule.announce()
        if message is not None:
            runtime.publish(RuleRefused(session=session.name, number=rule.number, message=message))


def _after_pass(runtime: Runtime, session: Session, outcome: Completed, stream: Stream) -> Finished | None:
    """Sample after a committed pass that reached the last token. Return the final reply where the run ended."""
    generation = session.generation
    assert generation is not None
    generation.passes += 1
    runtime.counters.count_pass()
    session.cache.release_behind(session.history.oldest_position(session.cache.length))
    _keep_states(runtime, session)
    if session.cache.length < len(session.tokens):
        session.begin_pass(token_by_token=runtime.token_by_token)
        return None
    _keep_logits(session, outcome.logits_1V)
    return _draw(runtime, session, stream)


def _draw(runtime: Runtime, session: Session, stream: Stream) -> Finished | None:
    """Sample, and prepare the next pass. Return the final reply where the run ended."""
    generation = session.generation
    assert generation is not None
    if generation.max_new_tokens > len(generation.new_tokens(session.tokens)):
        _sample(runtime, session, stream)
    ending = _ending(runtime, session, stream)
    if ending is not None:
        return finish(runtime, session, *ending)
    session.begin_pass(token_by_token=runtime.token_by_token)
    return None


def _keep_logits(session: Session, logits_1V: Tensor) -> None:
    """Keep the last position's logits; cloned where they are a view of all positions' logits."""
    logits_1V = logits_1V.to(torch.float32)
    if logits_1V.untyped_storage().nbytes() > logits_1V.nbytes:
        logits_1V = logits_1V.clone()
    session.keep_logits(logits_1V)


def _keep_states(runtime: Runtime, session: Session) -> None:
    """Keep states every STATE_PERIOD tokens, after the prompt and edited passes: going back by tokens starts there."""
    generation, frame = session.generation, session.frame
    assert generation is not None and frame is not None
    if runtime.recurrent and (session.cache.length % STATE_PERIOD == 0 or frame.overrides or frame.step == 0):
        kept = session.cache.capture_all()
        runtime.space.note_tensors(tensors_of_states(kept))
        if generation.keep_states(session.cache.length, kept, session.pass_log.not_alike()):
            runtime.space.let_go()


def _sample(runtime: Runtime, session: Session, stream: Stream) -> None:
    generation = session.generation
    assert generation is not None and session.logits_1V is not None
    if generation.sampler.draws:
        generation.drawn.append(generation.sampler.generator.get_state())
    token = generation.sampler.choose(session.tokens, session.logits_1V)
    session.tokens.append(token)
    runtime.counters.count_token()
    step = len(generation.new_tokens(session.tokens))
    generation.note_probability(session.logits_1V, token, step)
    text = "" if token in generation.eos else stream.add(token)
    told = generation.log_probabilities[-1]
    known = UNSET if told is None else told
    runtime.publish(TokenSampled(session=session.name, step=step, token=token, text=text, log_probability=known))


def _ending(runtime: Runtime, session: Session, stream: Stream) -> tuple[FinishReason, str | None] | None:
    generation = session.generation
    assert generation is not None
    new = generation.new_tokens(session.tokens)
    if new and new[-1] in generation.eos:
        return "eos", None
    if generation.stop:
        told = stream.tail + stream.rest()
        for text in generation.stop:
            if text in told:
                return "stop_string", text
    if len(new) >= generation.max_new_tokens:
        return "length", None
    context = runtime.description.context_length
    if context is not None and len(session.tokens) > context:
        return "context", f"The model has {context} positions and all are taken."
    if runtime.forward.crosses(session.cache.length, len(session.tokens)):
        return "context", (
            f"The model changes its rotary frequencies at {runtime.forward.switches_at} positions; "
            "run all tokens as one prompt to go on."
        )
    return None


def _paused_between(runtime: Runtime, session: Session, reason: PauseReason) -> RunSteps:
    """Stop where the pass yielded, between two layers, at a residual site; the stop needs copies of the states."""
    yield from runtime.space.set_aside(session, GENERATOR_BYTES + session.cache.recurrent_bytes)
    frame = session.frame
    assert frame is not None and frame.hidden is not None
    tap = runtime.resolve(Site(point="resid_post", layer=frame.boundary - 1))
    live = session.cache.capture_all()
    stopped = replace(
        frame,
        tap=tap,
        raw=frame.hidden,
        states=live or None,
        start_states={**live, **session.saved_states} or None,
    ).read()
    return pause(runtime, session, Halted(frame=stopped, hits=(), layers_run=0), reason)


def pause(runtime: Runtime, session: Session, halted: Halted, reason: PauseReason) -> Paused:
    """Stop the session at the halt. Breakpoints there are counted; one-time ones are removed."""
    met = [hit for hit in halted.hits if isinstance(hit.halt, Breakpoint)]
    for hit in met:
        assert isinstance(hit.halt, Breakpoint)
        hit.halt.count_hit()
        if hit.halt.once and hit.halt.number in session.breakpoints:
            session.remove(session.breakpoints, [hit.halt.number])
    arrive_at(runtime, session, halted.frame, "breakpoint" if met else reason, met)
    reply = reports.paused(runtime, session)
    runtime.publish(
        SessionPaused(session=session.name, stop=reply.stop, site=reply.site, step=reply.step, reason=reply.reason)
    )
    return reply


def arrive_at(runtime: Runtime, session: Session, frame: Frame, reason: PauseReason, met: list[Hit]) -> None:
    """Make `frame` the session's present stop."""
    assert session.generation is not None
    breakpoints = [hit.halt for hit in met if isinstance(hit.halt, Breakpoint)]
    session.history.append(
        StopRecord(
            frame=frame,
            generation=session.generation,
            tokens=tuple(session.tokens),
            generator=session.generation.sampler.generator.get_state(),
            reason=reason,
            breakpoint=breakpoints[0].describe() if breakpoints else None,
            also=tuple(str(b.site) for b in breakpoints[1:]),
            matched=met[0].position if met else None,
            number=session.next_edition(),
        )
    )
    runtime.space.bound(session)
    session.stop_at(frame)


def finish(runtime: Runtime, session: Session, reason: FinishReason, detail: str | None) -> Finished:
    """End the run; the session is idle, and its tokens can be extended or rewound."""
    assert session.generation is not None
    session.finish()
    new = len(session.generation.new_tokens(session.tokens))
    reply = reports.finished(runtime, session, reason, detail)
    runtime.publish(SessionFinished(session=session.name, stop=reply.stop, reason=reason, new_tokens=new))
    return reply


SECONDS_BETWEEN: Final = 0.2


def publish_progress(
    runtime: Runtime, session: Session, doing: str, done: int, total: int | None, counted: str
) -> None:
    """Record the progress (such as "reading heads", 3 of 8 "lines"), and publish it unless that was just done."""
    session.progress.note(now := Progress(doing=doing, done=done, total=total, counted=counted))
    if session.progress.is_due(SECONDS_BETWEEN):
        runtime.publish(WorkProgressed(session=session.name, progress=now))


def to_layer(runtime: Runtime, session: Session, count: int) -> Steps[Paused]:
    """Stop `count` layer boundaries before the present stop, in the same pass."""
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
    session.history.drop_from(outcome.frame.committed, outcome.frame.boundary)  # the new stop replaces those after it
    session.move("rerun")
    return _arrive_back(runtime, session, outcome.frame)


def boundary_tap(runtime: Runtime, boundary: int) -> Tap:
    site = Site(point="resid_pre", layer=0) if boundary == 0 else Site(point="resid_post", layer=boundary - 1)
    return runtime.resolve(site)


def _before(tap: Tap, boundary: int) -> bool:
    return tap.boundary <= boundary if tap.boundary is not None else tap.stage < boundary


def to_token(runtime: Runtime, session: Session, count: int) -> Steps[Paused]:
    """Stop in the pass `count` tokens earlier, at the site of the present stop (of the last one, when the run is over;
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
    """Fetch the states, which may have been evicted, then run again; until they are there the session is unchanged."""
    committed, end = place
    with runtime.space.pinned(tensors_of_states(states or {})) as storages:
        yield from runtime.space.fetched(session, storages)
        session.frame = None
        _cut(runtime, session, end, start)
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
    """Return the nearest length at or before `committed` from which the tokens can be run again, with the states there.
    Where rows of a sliding window were released it is the beginning, if no stop was dropped from the history (a dropped
    one may have been edited)."""
    generation = session.generation
    assert generation is not None
    kept: dict[int, States | None] = dict(generation.states) if runtime.recurrent else {committed: None}
    if generation.fed_from == 0 and (committed == 0 or not session.history.dropped):
        kept[0] = runtime.space.new_cache().capture_all() or None
    edited = session.pass_log.last_edited(committed)  # rows that a rerun would make without the edit
    start = max((at for at in kept if edited < at <= committed and session.cache.may_enter(at)), default=None)
    if start is None:
        raise UsageError("The states or the window of that token are no longer kept; go back by stop.")
    return start, kept[start]


def _cut(runtime: Runtime, session: Session, end: int, committed: int) -> None:
    """Forget the tokens after `end` and restore the sampler to before it drew the next one."""
    generation = session.generation
    assert generation is not None
    generation.draw_again(runtime.forward.model, end - generation.begins)
    session.cut(session.tokens[:end], committed)


def _arrive_back(runtime: Runtime, session: Session, frame: Frame) -> Paused:
    arrive_at(runtime, session, frame, "back", [])
    recount(session, runtime.forward.layers)
    return reports.paused(runtime, session)


def recount(session: Session, layers: int) -> None:
    """Recount the passes and layers of a session that went back to its frame, for a model of `layers` layers."""
    assert session.generation is not None and session.frame is not None
    generation = session.generation
    generation.passes = session.pass_log.count(generation.fed_from, session.frame.committed)
    generation.layers_run = generation.passes * layers + session.frame.boundary
