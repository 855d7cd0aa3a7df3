"""Runs: pass after pass until a stop or the end. Each `yield` is a place to give way, the value returned the reply."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from djinn_jupyter.engine import reports
from djinn_jupyter.engine.breakpoints import Breakpoint
from djinn_jupyter.engine.crossing import Completed, Halted, Hit, Yielded
from djinn_jupyter.engine.frame import Frame
from djinn_jupyter.engine.history import Checkpoint
from djinn_jupyter.engine.line import STATE_PERIOD
from djinn_jupyter.engine.model.tokenizer import Stream
from djinn_jupyter.engine.plan import Target, make_plan
from djinn_jupyter.engine.residency.belongings import tensors_of_states
from djinn_jupyter.engine.residency.stop_room import GENERATOR_BYTES, set_aside
from djinn_jupyter.engine.scheduler import Steps
from djinn_jupyter.engine.session import Session
from djinn_jupyter.engine.steering import Rule
from djinn_jupyter.engine.trail import same_rules
from djinn_jupyter.errors import SlabFull
from djinn_jupyter.wire.nouns import FinishReason, PauseReason
from djinn_jupyter.wire.replies import Reply, SessionFinished, SessionPaused, TokenSampled
from djinn_jupyter.wire.sites import Site

if TYPE_CHECKING:
    from djinn_jupyter.engine.engine import Engine


def run(
    engine: Engine,
    session: Session,
    *,
    free: bool = False,
    targets: Iterable[Target] = (),
    reason: PauseReason = "step",
) -> Steps:
    """Go on from `session.frame`. `reason` is what a halt at one of `targets` is called."""
    targets = tuple(targets)
    assert session.line is not None
    stream = engine.tokenizer.stream(session.tokens)
    version, plan = -1, make_plan()
    rules: tuple[Rule, ...] = ()
    begun_under: tuple[Rule, ...] | None = None
    while True:
        frame = session.frame
        assert frame is not None and session.line is not None
        if session.pause_requested and frame.hidden is None:
            targets = (*targets, Target(tap=engine.resolve(Site(point="resid_pre", layer=0)), step=frame.step))
            version, reason = -1, "interrupt"
        if version != session.plan_version:
            plan = session.plan(free=free, targets=targets, yields=engine.wanted_elsewhere)
            version, rules = session.plan_version, session.rules_in_force
        if frame.hidden is None and frame.tap is None:
            begun_under = rules
        try:
            outcome = yield from engine.entered(session, frame, plan)
        except SlabFull as full:
            if not session.line.new_tokens(session.tokens):
                raise
            return finish(engine, session, "slab_full", str(full))
        session.line.layers_run += outcome.layers_run
        engine.books.layers_run += outcome.layers_run
        match outcome:
            case Yielded():
                session.frame = outcome.frame
                engine.scheduler.preemptions += 1
                yield None
                if session.pause_requested:
                    return (yield from _paused_between(engine, session))
            case Halted():
                return pause(engine, session, outcome, reason)
            case Completed():
                whole = begun_under is not None and same_rules(begun_under, rules)
                session.trail.record(frame, rules, whole=whole)
                ended = _after_pass(engine, session, outcome, stream)
                if ended is not None:
                    return ended
                yield None


def _after_pass(engine: Engine, session: Session, outcome: Completed, stream: Stream) -> Reply | None:
    """Commit is done: sample when the pass reached the last token, and say whether that was the end."""
    line = session.line
    assert line is not None
    line.passes += 1
    engine.books.passes += 1
    session.cache.release_behind(session.history.oldest_position(session.cache.length))
    _keep_states(engine, session)
    if session.cache.length < len(session.tokens):
        session.frame = session.next_frame(one_by_one=engine.one_by_one)
        return None
    _keep_logits(engine, session, outcome.logits_1V)
    if line.max_new_tokens > len(line.new_tokens(session.tokens)):
        _sample(engine, session, stream)
    ending = _ending(engine, session)
    if ending is not None:
        return finish(engine, session, *ending)
    session.frame = session.next_frame(one_by_one=engine.one_by_one)
    return None


def _keep_logits(engine: Engine, session: Session, logits_1V: Tensor) -> None:
    """In memory of their own, where the model gives those of all positions; the last ones go out of the books."""
    logits_1V = logits_1V.to(torch.float32)
    if logits_1V.untyped_storage().nbytes() > logits_1V.nbytes:
        logits_1V = logits_1V.clone()
    before = None if session.logits_1V is None else engine.blobs.known(session.logits_1V)
    session.logits_1V = logits_1V
    engine.blobs.let_go(before)


def _keep_states(engine: Engine, session: Session) -> None:
    """States every so many tokens, and after every pass that was edited: from there going back by tokens runs again."""
    line, frame = session.line, session.frame
    assert line is not None and frame is not None
    if engine.recurrent and (session.cache.length % STATE_PERIOD == 0 or frame.inlays or frame.step == 0):
        kept = session.cache.capture_all()
        engine.blobs.note(tensors_of_states(kept))
        if line.keep_states(session.cache.length, kept, session.trail.not_alike()):
            engine.blobs.untidy = True


def _sample(engine: Engine, session: Session, stream: Stream) -> None:
    line = session.line
    assert line is not None and session.logits_1V is not None
    tokens_1T = torch.tensor([session.tokens], device=session.logits_1V.device)
    if line.sampler.draws:
        line.drawn.append(line.sampler.generator.get_state())
    token = line.sampler.choose(tokens_1T, session.logits_1V)
    session.tokens.append(token)
    engine.books.tokens_sampled += 1
    step = len(line.new_tokens(session.tokens))
    line.note_probability(session.logits_1V, token, step)
    text = "" if token in line.eos else stream.add(token)
    engine.publish(TokenSampled(session=session.name, step=step, token=token, text=text))


def _ending(engine: Engine, session: Session) -> tuple[FinishReason, str | None] | None:
    line = session.line
    assert line is not None
    new = line.new_tokens(session.tokens)
    if new and new[-1] in line.eos:
        return "eos", None
    if line.stop:
        tail = engine.tokenizer.decode(new[-line.stop_window :])
        for text in line.stop:
            if text in tail:
                return "stop_string", text
    if len(new) >= line.max_new_tokens:
        return "length", None
    context = engine.description.context_length
    if context is not None and len(session.tokens) > context:
        return "context", f"The model has {context} positions and all are taken."
    if engine.forward.crosses(session.cache.length, len(session.tokens)):
        return "context", (
            f"The model changes its rotary frequencies at {engine.forward.switches_at} positions; "
            "run all tokens as one prompt to go on."
        )
    return None


def _paused_between(engine: Engine, session: Session) -> Steps:
    """Stand where the pass stepped aside; of states it needs copies."""
    yield from set_aside(engine, session, GENERATOR_BYTES + session.cache.recurrent_bytes)
    return pause(engine, session, _halted_between(engine, session), "interrupt")


def _halted_between(engine: Engine, session: Session) -> Halted:
    """The yielded frame as a stop: it stands between two layers, where a residual site is."""
    frame = session.frame
    assert frame is not None and frame.hidden is not None
    tap = engine.resolve(Site(point="resid_post", layer=frame.boundary - 1))
    live = session.cache.capture_all()
    stopped = replace(
        frame,
        tap=tap,
        raw=frame.hidden,
        states=live or None,
        start_states={**live, **session.journal} or None,
    ).read()
    return Halted(frame=stopped, hits=(), layers_run=0)


def pause(engine: Engine, session: Session, halted: Halted, reason: PauseReason) -> Reply:
    """The session stands at the halt; breakpoints met there are counted, and gone if they were for once."""
    met = [hit for hit in halted.hits if isinstance(hit.halt, Breakpoint)]
    for hit in met:
        _count(session, hit)
    arrive_at(engine, session, halted.frame, "breakpoint" if met else reason, met)
    reply = reports.paused(engine, session)
    engine.publish(
        SessionPaused(session=session.name, stop=reply.stop, site=reply.site, step=reply.step, reason=reply.reason)
    )
    return reply


def _count(session: Session, hit: Hit) -> None:
    assert isinstance(hit.halt, Breakpoint)
    hit.halt.hits += 1
    if hit.halt.once:
        session.breakpoints.pop(hit.halt.number, None)


def arrive_at(engine: Engine, session: Session, frame: Frame, reason: PauseReason, met: list[Hit]) -> None:
    """Make `frame` the session's present stop."""
    assert session.line is not None
    breakpoints = [hit.halt for hit in met if isinstance(hit.halt, Breakpoint)]
    session.history.arrive(
        Checkpoint(
            frame=frame,
            line=session.line,
            tokens=tuple(session.tokens),
            generator=session.line.sampler.generator.get_state(),
            reason=reason,
            breakpoint=breakpoints[0].describe() if breakpoints else None,
            also=tuple(str(b.site) for b in breakpoints[1:]),
            matched=met[0].position if met else None,
            number=session.next_stop_number(),
        )
    )
    engine.older_stops.bound(session)
    session.frame = frame
    session.edits.clear()
    session.pause_requested = False
    session.move("stop")


def finish(engine: Engine, session: Session, reason: FinishReason, detail: str | None) -> Reply:
    """The run is over; the session is idle, its line can be extended or gone back on."""
    assert session.line is not None
    session.frame = None
    session.history.present = None
    session.pause_requested = False
    session.move("finish")
    new = len(session.line.new_tokens(session.tokens))
    reply = reports.finished(engine, session, reason, detail)
    engine.publish(SessionFinished(session=session.name, stop=reply.stop, reason=reason, new_tokens=new))
    return reply
