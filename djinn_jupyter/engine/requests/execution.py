"""Run, pause, resume, step and go back; resume with a value and read the next stop, answered once."""

from __future__ import annotations

from typing import Literal

from djinn_jupyter.engine.loop.mailbox import Holder
from djinn_jupyter.engine.loop.parts import BuiltOfParts, EngineParts
from djinn_jupyter.engine.memory.kv.cache import PagedCache
from djinn_jupyter.engine.model.hooks.taps import Tap
from djinn_jupyter.engine.passes.controller import Target
from djinn_jupyter.engine.passes.frame import Frame
from djinn_jupyter.engine.requests.bounds import require_fit
from djinn_jupyter.engine.requests.handlers import handles
from djinn_jupyter.engine.requests.inspection import InspectionRequests
from djinn_jupyter.engine.requests.interventions import InterventionRequests
from djinn_jupyter.engine.session import history, queries, reports
from djinn_jupyter.engine.session.generation import GENERATION, Generation, Sampler, make_sampler
from djinn_jupyter.engine.session.residence import RunSteps, Steps
from djinn_jupyter.engine.session.run import draw_and_run, recount, to_layer, to_token
from djinn_jupyter.engine.session.run import run as run_line
from djinn_jupyter.engine.session.runtime import Runtime
from djinn_jupyter.engine.session.session import Session
from djinn_jupyter.engine.session.table import tensors_of_stop
from djinn_jupyter.errors import IllegalMove, NoTokenizer, PromptTooLong, SlabFull, UsageError
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.edits import Set
from djinn_jupyter.wire.replies import Finished, Paused, Pausing, Reached, SessionPaused, SessionRunning
from djinn_jupyter.wire.sites import Site
from djinn_jupyter.wire.texts import in_quotes


class ExecutionRequests(BuiltOfParts):
    def __init__(self, parts: EngineParts, inspection: InspectionRequests, interventions: InterventionRequests) -> None:
        super().__init__(parts)
        self._description = parts.runtime.description
        self._inspection, self._interventions = inspection, interventions

    @handles(ask.Run)
    def run(self, request: ask.Run, session: Session, holder: Holder) -> RunSteps:
        session.check_move("run")
        if request.extend and session.state == "paused":
            raise IllegalMove(
                f"Session {in_quotes(session.name)} is stopped inside a pass; resume it to the end before "
                "extending its line."
            )
        prompt = list(request.tokens or ())
        kept = session.tokens if request.extend else []
        tokens = [*kept, *prompt]
        committed = session.cache.length if request.extend else 0
        before = _run_so_far(session) if request.extend and len(tokens) == committed else None
        if before is None:
            self._check_prompt(tokens, committed, request.extend)
        sampler = make_sampler(
            self._forward.model, request.sampling, len(tokens), request.max_new_tokens, self._forward.device
        )
        generation = self._generation(request, tokens, committed, sampler, extends=len(kept))
        if before is not None:
            return self._draw_on(session, generation.going_on(before), free=request.free)
        if request.extend:
            session.cache.reserve(committed, len(tokens))  # SlabFull here, while the old tokens are still in place
            if self._runtime.recurrent:
                generation.states[committed] = session.cache.capture_all()
        else:
            self._fresh_cache(session, len(tokens))
            self._residency.begin_anew(session)
            session.begin_anew()
        session.take_generation(generation, tokens, token_by_token=self._runtime.token_by_token)
        self._start(session, "run")
        return run_line(self._runtime.of(session), session, free=request.free)

    def _draw_on(self, session: Session, generation: Generation, *, free: bool) -> RunSteps:
        """Continue from the final logits of a prompt that was run for no new token: nothing is fed before a draw."""
        logits_1V = session.logits_1V
        assert logits_1V is not None
        session.take_generation(generation, session.tokens, token_by_token=self._runtime.token_by_token)
        session.keep_logits(logits_1V)
        self._start(session, "run")
        return draw_and_run(self._runtime.of(session), session, free=free)

    def _check_prompt(self, tokens: list[int], committed: int, extends: bool) -> None:
        if len(tokens) <= committed:
            raise UsageError(
                "There is nothing to extend; run a prompt first." if extends else "The prompt has no tokens."
            )
        require_fit(self._description, tokens, "The prompt")
        if self._forward.crosses(committed, len(tokens)):
            raise PromptTooLong(
                f"The model changes its rotary frequencies at {self._forward.switches_at} positions, and the "
                "line's keys were made with the earlier ones; run all tokens as one prompt."
            )

    def _fresh_cache(self, session: Session, positions: int) -> None:
        """Give the session an empty cache with room for the prompt, in the old tokens' working memory. Frees the old
        tokens only when the new cache has, or can take, its pages."""
        fresh = self._runtime.space.new_cache()
        try:
            fresh.allocate(0, positions)
        except SlabFull:
            if not _fits_in_place_of(session.cache, positions):
                raise
            session.cache.free()
            fresh.allocate(0, positions)
        else:
            fresh.take_working(session.cache)
            session.cache.free()
        session.take_cache(fresh)

    def _generation(
        self, request: ask.Run, tokens: list[int], committed: int, sampler: Sampler, *, extends: int
    ) -> Generation:
        if request.stop and not self._description.has_tokenizer:
            raise NoTokenizer("There is no tokenizer for this model, so stop strings mean nothing; leave them out.")
        defaults = self._description.generation_defaults
        if request.sampling.model_defaults:
            defaults = {name: value for name, value in defaults.items() if name not in GENERATION.computed}
        return Generation(
            begins=len(tokens),
            fed_from=committed,
            extends=extends,
            max_new_tokens=request.max_new_tokens,
            sampler=sampler,
            stop=request.stop,
            eos=frozenset() if request.ignore_eos else frozenset(self._description.eos_token_ids),
            ignored_defaults=tuple(f"{name}={value}" for name, value in defaults.items()),
            mode=request.mode,
        )

    @handles(ask.Resume)
    def resume(self, request: ask.Resume, session: Session, holder: Holder) -> RunSteps:
        generation = session.drawing(self._forward.model, request.sampling)
        self._go_on(session)
        session.draw_with(generation)
        if request.mode is not None and session.generation is not None:
            session.generation.share(request.mode)
        return run_line(self._runtime.of(session), session, free=request.free)

    @handles(ask.Step)
    def step(self, request: ask.Step, session: Session, holder: Holder) -> RunSteps:
        session.check_move("go_on")
        frame, runtime = queries.stopped_frame(session), self._runtime.of(session)
        assert frame.tap is not None
        match request.by:
            case "point":
                targets = _next_points(runtime, frame, request.count)
            case "token":
                targets = (Target(tap=frame.tap, step=frame.step + request.count),)
            case "layer":
                passes, layer = divmod(frame.boundary + request.count - 1, self._forward.layers)
                targets = (
                    Target(tap=runtime.resolve(Site(point="resid_post", layer=layer)), step=frame.step + passes),
                )
        self._go_on(session)
        return run_line(self._runtime.of(session), session, targets=targets)

    def _go_on(self, session: Session) -> None:
        """Leave the present stop with its edits; drop later stops."""
        session.check_move("go_on")
        frame = queries.stopped_frame(session)
        session.history.leave(frame)
        session.cache.truncate(frame.committed + len(frame.tokens))
        self._start(session, "go_on")

    def _start(self, session: Session, move: Literal["run", "go_on"]) -> None:
        session.leave_stop(move)
        self._runtime.publish(SessionRunning(session=session.name))

    @handles(ask.Pause)
    def pause(self, request: ask.Pause, session: Session, holder: Holder) -> Pausing:
        return Pausing(was_running=session.request_pause())

    @handles(ask.Back)
    def back(self, request: ask.Back, session: Session, holder: Holder) -> Paused | Steps[Paused]:
        session.check_move("go_back")
        match request.by:
            case "layer":
                return self._told(to_layer(self._runtime.of(session), session, request.count))
            case "token":
                return self._told(to_token(self._runtime.of(session), session, request.count))
        if self._residency.away(tensors_of_stop(session.history.before(request.count))):
            return self._fetch_and_stand(session, request.count)
        return self._stand_back(session, request.count)

    def _fetch_and_stand(self, session: Session, count: int) -> Steps[Paused]:
        """Fetch a stop that has left the device while its session stayed, and go back to it."""
        with self._residency.pinned(tensors_of_stop(session.history.before(count))) as storages:
            yield from self._residency.fetched(session, storages)
            return self._stand_back(session, count)

    def _stand_back(self, session: Session, count: int) -> Paused:
        session.stand_at(session.history.go_back(count))
        recount(session, self._forward.layers)
        session.move("go_back")
        reply = reports.paused(self._runtime, session)
        self._publish(reply)
        return reply

    def _told(self, steps: Steps[Paused]) -> Steps[Paused]:
        """Run the same steps, then send the session's listeners its present stop."""
        reply = yield from steps
        self._publish(reply)
        return reply

    def _publish(self, reply: Paused) -> None:
        self._runtime.publish(
            SessionPaused(session=reply.session, stop=reply.stop, site=reply.site, step=reply.step, reason="back")
        )

    @handles(ask.ResumeWith)
    def resume_with(self, request: ask.ResumeWith, session: Session, holder: Holder) -> Steps[Reached | Finished]:
        session.check_move("go_on")
        halts = self._sites(session, request.halts)
        if request.value is not None:
            self._put(session, Set(value=request.value), request.positions)
        if halts is not None:
            self._arm(session, halts)
        steps = self.resume(ask.Resume(session=session.name), session, holder)
        return self._looked(session, steps, holder)

    def _sites(self, session: Session, halts: tuple[str, ...] | None) -> list[Site] | None:
        """Return the sites of the requested breakpoints. Raises UnknownSite before anything has changed."""
        sites = None if halts is None else [self._runtime.site(site) for site in halts]
        for site in sites or ():
            self._runtime.of(session).resolve(site)
        return sites

    def _arm(self, session: Session, halts: list[Site]) -> None:
        """Make the session stop at these sites, without a condition, and nowhere else."""
        wanted, there = set(halts), session.breakpoints.items()
        left = [n for n, one in there if one.condition is not None or one.site not in wanted]
        session.remove(session.breakpoints, left)
        for one in session.breakpoints.values():
            one.arm(enabled=True, once=False)
            session.set_breakpoint(one)
        armed = {one.site for one in session.breakpoints.values()}
        for site in dict.fromkeys(halts):
            if site not in armed:
                self._interventions.add(session, site, self._runtime.of(session).resolve(site), None, once=False)

    def _put(self, session: Session, edit: Set, positions: tuple[int, ...] | None) -> None:
        """Edit the present stop. Raises InvalidEdit, and SlabFull without room for it now."""
        frame = queries.stopped_frame(session)
        assert frame.tap is not None and frame.raw is not None
        history.require_editable(frame.tap)
        self._residency.set_aside_now(frame.raw.nbytes)
        site = reports.site_of(session)
        made = history.make(frame, edit, site, positions, number=len(session.edits) + 1)
        session.set_edits(made.frame, [*session.edits, made.noted])
        self._residency.accounted(session)

    def _looked(self, session: Session, steps: RunSteps, holder: Holder) -> Steps[Reached | Finished]:
        """Run the steps to the next stop. Return the value there; the end where there is none."""
        stop = yield from steps
        if not isinstance(stop, Paused):
            return stop
        seen = yield from self._inspection.inspect(ask.Inspect(session=session.name), session, holder)
        drawn = stop.tokens[stop.prompt_tokens :]
        return Reached(snapshot=seen.snapshot, step=stop.step, positions=stop.positions, drawn=drawn)


def _next_points(runtime: Runtime, frame: Frame, count: int) -> tuple[Target, ...]:
    """Return all points of the stage in which the pass continues, and the border after it. Only the pass itself has
    their order (parallel layers, post-norms): the first one reached is the next one. Another name of the stopped tensor
    does not count as a step."""
    assert frame.tap is not None
    if count != 1:
        raise UsageError("Points are stepped to one at a time; step by layers to go further.")
    taps = [
        tap for tap in runtime.forward.anatomy.taps.values() if isinstance(tap, Tap) and not tap.same_tensor(frame.tap)
    ]
    stage, last = frame.tap.stage if frame.inside else frame.boundary, runtime.forward.layers
    here = [Target(tap=tap, step=frame.step) for tap in taps if tap.boundary is None and tap.stage == stage]
    if stage == last:
        return (
            *here,
            *(Target(tap=tap, step=frame.step + 1) for tap in taps if tap.stage == -1 or tap.boundary == 0),
        )
    return (*here, *(Target(tap=tap, step=frame.step) for tap in taps if tap.boundary == stage + 1))


def _run_so_far(session: Session) -> Generation | None:
    """Return the run whose next token can be drawn at once: all of its tokens have run, and their logits are here."""
    return session.generation if session.logits_1V is not None and session.tokens else None


def _fits_in_place_of(old: PagedCache, positions: int) -> bool:
    """True where the pages that only `old` holds, plus the free ones, suffice for new tokens."""
    short_bytes = 0
    for group in old.groups:
        pages = [group.slab.page(page) for page in group.table.pages]
        own = sum(page.references == 1 and page.resident for page in pages)
        wanted = -(-positions // group.geometry.page_positions)
        short = wanted - own - group.slab.statistics().pages_free
        short_bytes += max(0, short) * group.geometry.page_bytes
    return all(short_bytes <= group.slab.budget.free for group in old.groups)
