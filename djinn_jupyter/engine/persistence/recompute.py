"""Recompute the rows and states that a session lost with an earlier process: run its tokens once more, in the same
passes, under the rules then in force and with the overrides then in place.

Draws no random number, fires no breakpoint, records no watch, does no accounting of rules.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import replace
from typing import Any

from djinn_jupyter.engine.forward.frame import Frame
from djinn_jupyter.engine.forward.pass_controller import (
    Completed,
    Halted,
    SavedStates,
    Yielded,
)
from djinn_jupyter.engine.forward.plan import Plan, Target, make_plan
from djinn_jupyter.engine.memory.kv.cache import PagedCache
from djinn_jupyter.engine.session.cached_edits import put_back
from djinn_jupyter.engine.session.entering import entered
from djinn_jupyter.engine.session.pass_log import Passes
from djinn_jupyter.engine.session.rewind import boundary_tap
from djinn_jupyter.engine.session.runtime import Runtime
from djinn_jupyter.engine.session.session import Session
from djinn_jupyter.engine.session.steps import Blocked, Pieces
from djinn_jupyter.engine.system.to_home import to_home
from djinn_jupyter.errors import StorageFailed


def recompute(runtime: Runtime, session: Session) -> Pieces:
    """Run the passes again, in steps that give way as a prefill does. The session has what is there meanwhile, so that
    it leaves the device with it where the work waits for room. An error leaves the session lost, as it was."""
    cache = runtime.space.new_cache()
    session.take_cache(cache)  # the former is empty, or of other work that recomputes it, which goes on by itself
    try:
        yield from _Recomputing(runtime, session, cache).run()
        session.count_rows(cache)
    finally:
        if session.needs_recompute or session.cache is not cache:
            cache.free()


class _Recomputing:
    """Runs one session's passes into a cache that the session takes over at the end."""

    def __init__(self, runtime: Runtime, session: Session, cache: PagedCache) -> None:
        self.runtime, self.session, self.cache = runtime, session, cache
        self.saved_states: SavedStates = {}
        self._prompt_end = 0  # the tokens after it were generated; a rule's condition may ask for the step
        self._oldest = session.history.oldest_position(session.committed)

    def run(self) -> Pieces:
        self._keep_states()
        edits = list(self.session.pass_log.edited)
        for passes in self.session.pass_log.passes:
            self._prompt_end = self._prompt_end if passes.decode else passes.end
            for frame in self._frames(passes):
                yield from self._pass(frame, passes)
                while edits and edits[0].at == self.cache.length:
                    put_back(self.runtime, self.cache, edits.pop(0))
                self.cache.release_behind(self._oldest)
                self._keep_states()
        if edits:
            raise StorageFailed(f"An edit of keys and values was made at {edits[0].at} positions, where no pass ended.")
        stopped = self.session.frame
        if stopped is not None:
            yield from self._to_the_stop(stopped)

    def _frames(self, passes: Passes) -> Iterator[Frame]:
        for start in range(passes.start, passes.end, passes.each):
            tokens = self.session.tokens[start : min(start + passes.each, passes.end)]
            step = start + len(tokens) - self._prompt_end if passes.decode else 0
            yield Frame(tokens=tuple(tokens), committed=start, step=step)

    def _pass(self, frame: Frame, passes: Passes) -> Pieces:
        """Run a pass; one that stopped on its way in one go, for its stop has no room of its own beside the present."""
        after = None
        if passes.entry is not None:
            after = passes.entry.tap or boundary_tap(self.runtime, passes.entry.boundary)
            homes = self.runtime.forward.home_of
            overrides = tuple(replace(i, raw=to_home(i.raw, homes(i.tap))) for i in passes.entry.overrides)
            frame = replace(frame, overrides=overrides)
        yield from self._enter(frame, self._plan(rules=passes.rules, after=after))

    def _to_the_stop(self, stopped: Frame) -> Pieces:
        """Recompute the in-flight rows below the present stop; the stop itself is as it was stored."""
        assert stopped.tap is not None
        target = Target(tap=stopped.tap, step=stopped.step)
        reached = yield from self._enter(stopped.at_start(), self._plan(halts=(target,), bare=True))
        if isinstance(reached, Completed):
            raise StorageFailed("A stop of this session was not met again when its tokens were run once more.")
        if stopped.states is not None:
            self.cache.restore_all(stopped.states)
        self.cache.flush()

    def _plan(self, **told: Any) -> Plan:
        return make_plan(**told, counted=False, yields=self.runtime.giving_way.asked)

    def _enter(self, frame: Frame, plan: Plan) -> Generator[Blocked | None, None, Halted | Completed]:
        while True:
            outcome = yield from entered(self.runtime, self.session, frame, plan, self.cache, self.saved_states)
            self.runtime.counters.count_layers(outcome.layers_run)
            yield None
            if not isinstance(outcome, Yielded):
                return outcome
            frame = outcome.frame

    def _keep_states(self) -> None:
        """Capture the states at the lengths where generations had kept recurrent states."""
        length = self.cache.length
        for generation in self.session.generations:
            if length in generation.states and not generation.states[length]:
                generation.states[length] = self.cache.capture_all()
