"""Run, pause, resume, step and go back."""

from __future__ import annotations

from typing import TYPE_CHECKING

from djinn_jupyter.engine import looks, reports
from djinn_jupyter.engine.back import to_layer, to_token
from djinn_jupyter.engine.frame import Frame
from djinn_jupyter.engine.line import Line
from djinn_jupyter.engine.mailbox import Holder
from djinn_jupyter.engine.memory.cache import PagedCache
from djinn_jupyter.engine.model.taps import Tap
from djinn_jupyter.engine.plan import Target
from djinn_jupyter.engine.residency.belongings import tensors_of_stop
from djinn_jupyter.engine.residency.stop_room import fetched
from djinn_jupyter.engine.run import run as run_line
from djinn_jupyter.engine.sampling import Sampler, make_sampler
from djinn_jupyter.engine.scheduler import Steps
from djinn_jupyter.engine.session import Session
from djinn_jupyter.errors import IllegalMove, NoTokenizer, PromptTooLong, SlabFull, UsageError
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.replies import Paused, Pausing, SessionPaused, SessionRunning
from djinn_jupyter.wire.sites import Site

if TYPE_CHECKING:
    from djinn_jupyter.engine.engine import Engine


def run(engine: Engine, request: ask.Run, holder: Holder) -> Steps:
    session = engine.session(request.session)
    session.check_move("run")
    if request.extend and session.state == "paused":
        raise IllegalMove(
            f"Session {session.name!r} is stopped inside a pass; resume it to the end before extending its line."
        )
    prompt = list(request.tokens or ())
    kept = session.tokens if request.extend else []
    tokens = [*kept, *prompt]
    committed = session.cache.length if request.extend else 0
    _check_prompt(engine, tokens, committed, request.extend)
    sampler = make_sampler(engine.model, request.sampling, len(tokens), engine.forward.device)
    line = _line(engine, request, tokens, committed, sampler)
    if request.extend:
        session.cache.reserve(committed, len(tokens))  # SlabFull here, while the line is still the old one
        if engine.recurrent:
            line.states[committed] = session.cache.capture_all()
    else:
        _fresh_cache(engine, session, len(tokens))
        engine.swapping.begin_anew(session)
        session.history.clear()
        session.trail.cut(0)
        session.exactness, session.lost = "exact", False
        session.texts.clear()
        for rule in session.rules.values():
            rule.reset()
        session.runs += 1
        for watch in session.watches.values():
            watch.run = session.runs
    session.journal.clear()
    session.tokens = tokens
    session.line = line
    session.frame = session.next_frame(one_by_one=engine.one_by_one)
    session.logits_1V = None
    _set_off(engine, session, "run")
    return run_line(engine, session, free=request.free)


def _check_prompt(engine: Engine, tokens: list[int], committed: int, extends: bool) -> None:
    if len(tokens) <= committed:
        raise UsageError("There is nothing to extend; run a prompt first." if extends else "The prompt has no tokens.")
    vocabulary, context = engine.description.vocab_size, engine.description.context_length
    strange = next((token for token in tokens if token >= vocabulary), None)
    if strange is not None:
        raise UsageError(
            f"Token id {strange} is not in the vocabulary, which has {vocabulary} ids: 0 to {vocabulary - 1}."
        )
    if context is not None and len(tokens) > context:
        raise PromptTooLong(
            f"The prompt has {len(tokens)} tokens and the model {context} positions; "
            f"shorten it by {len(tokens) - context}."
        )
    if engine.forward.crosses(committed, len(tokens)):
        raise PromptTooLong(
            f"The model changes its rotary frequencies at {engine.forward.switches_at} positions, and the line's keys "
            "were made with the earlier ones; run all tokens as one prompt."
        )


def _fresh_cache(engine: Engine, session: Session, positions: int) -> None:
    """An empty cache with room for the prompt. The old line goes only when the new one has its pages."""
    fresh = engine.new_cache()
    try:
        fresh.reserve(0, positions)
    except SlabFull:
        if not _fits_in_place_of(session.cache, positions):
            raise
        session.cache.free()
        fresh.reserve(0, positions)
    else:
        session.cache.free()
    session.cache = fresh


def _fits_in_place_of(old: PagedCache, positions: int) -> bool:
    """Whether the pages that only `old` holds, with what is free, are enough for a new line."""
    short_bytes = 0
    for group in old.groups:
        pages = [group.slab.page(page) for page in group.table.pages]
        own = sum(page.references == 1 and page.resident for page in pages)
        wanted = -(-positions // group.geometry.page_positions)
        short = wanted - own - group.slab.statistics().pages_free
        short_bytes += max(0, short) * group.geometry.page_bytes
    return all(short_bytes <= group.slab.budget.free for group in old.groups)


def _line(engine: Engine, request: ask.Run, tokens: list[int], committed: int, sampler: Sampler) -> Line:
    if request.stop and not engine.description.has_tokenizer:
        raise NoTokenizer("There is no tokenizer for this model, so stop strings mean nothing; leave them out.")
    defaults = {} if request.sampling.model_defaults else engine.description.generation_defaults
    return Line(
        begins=len(tokens),
        fed_from=committed,
        max_new_tokens=request.max_new_tokens,
        sampler=sampler,
        stop=request.stop,
        eos=frozenset() if request.ignore_eos else frozenset(engine.description.eos_token_ids),
        ignored_defaults=tuple(f"{name}={value}" for name, value in defaults.items()),
    )


def resume(engine: Engine, request: ask.Resume, holder: Holder) -> Steps:
    session = engine.session(request.session)
    _go_on(engine, session)
    return run_line(engine, session, free=request.free)


def step(engine: Engine, request: ask.Step, holder: Holder) -> Steps:
    session = engine.session(request.session)
    session.check_move("go_on")
    frame = looks.stopped_frame(session)
    assert frame.tap is not None
    match request.by:
        case "point":
            targets = _next_points(engine, frame, request.count)
        case "token":
            targets = (Target(tap=frame.tap, step=frame.step + request.count),)
        case "layer":
            passes, layer = divmod(frame.boundary + request.count - 1, engine.forward.layers)
            targets = (Target(tap=engine.resolve(Site(point="resid_post", layer=layer)), step=frame.step + passes),)
    _go_on(engine, session)
    return run_line(engine, session, targets=targets)


def _next_points(engine: Engine, frame: Frame, count: int) -> tuple[Target, ...]:
    """All points of the stage in which the pass goes on, and the border after it. Only the pass itself knows their
    order (parallel layers, post-norms): the first one met is the next one. Another name of the stopped tensor is no
    step away."""
    assert frame.tap is not None
    if count != 1:
        raise UsageError("Points are stepped to one at a time; step by layers to go further.")
    taps = [tap for tap in engine.anatomy.taps.values() if isinstance(tap, Tap) and not tap.same_tensor(frame.tap)]
    stage, last = frame.tap.stage if frame.inside else frame.boundary, engine.forward.layers
    here = [Target(tap=tap, step=frame.step) for tap in taps if tap.boundary is None and tap.stage == stage]
    if stage == last:
        return (*here, *(Target(tap=tap, step=frame.step + 1) for tap in taps if tap.stage == -1 or tap.boundary == 0))
    return (*here, *(Target(tap=tap, step=frame.step) for tap in taps if tap.boundary == stage + 1))


def _go_on(engine: Engine, session: Session) -> None:
    """Leave the present stop with whatever was edited; later stops of the line are dropped."""
    session.check_move("go_on")
    frame = looks.stopped_frame(session)
    session.history.leave(frame)
    session.cache.truncate(frame.committed + len(frame.tokens))
    _set_off(engine, session, "go_on")


def _set_off(engine: Engine, session: Session, move: str) -> None:
    session.pause_requested = False
    session.move("run" if move == "run" else "go_on")
    session.history.present = None
    engine.publish(SessionRunning(session=session.name))


def pause(engine: Engine, request: ask.Pause, holder: Holder) -> Pausing:
    session = engine.session(request.session)
    running = session.state == "running"
    session.pause_requested = running
    return Pausing(was_running=running)


def back(engine: Engine, request: ask.Back, holder: Holder) -> Paused | Steps:
    session = engine.session(request.session)
    session.check_move("go_back")
    match request.by:
        case "layer":
            return _told(engine, to_layer(engine, session, request.count))
        case "token":
            return _told(engine, to_token(engine, session, request.count))
    if engine.older_stops.away(tensors_of_stop(session.history.before(request.count))):
        return _fetch_and_stand(engine, session, request.count)
    return _stand_back(engine, session, request.count)


def _fetch_and_stand(engine: Engine, session: Session, count: int) -> Steps:
    """The stop has left the device, and the session has not."""
    with engine.older_stops.pinned(tensors_of_stop(session.history.before(count))) as storages:
        yield from fetched(engine, session, storages)
        return _stand_back(engine, session, count)


def _stand_back(engine: Engine, session: Session, count: int) -> Paused:
    session.stand_at(session.history.go_back(count))
    session.recount(engine.forward.layers)
    session.move("go_back")
    reply = reports.paused(engine, session)
    _publish(engine, reply)
    return reply


def _told(engine: Engine, steps: Steps) -> Steps:
    """The same steps; whoever follows the session hears where it stands then."""
    reply = yield from steps
    assert isinstance(reply, Paused)
    _publish(engine, reply)
    return reply


def _publish(engine: Engine, reply: Paused) -> None:
    engine.publish(
        SessionPaused(session=reply.session, stop=reply.stop, site=reply.site, step=reply.step, reason="back")
    )
