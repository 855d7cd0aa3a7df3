"""The client's handle of one session. Holds no engine state, only the stop that this client saw last."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar

from djinn_jupyter.api import edits, runs
from djinn_jupyter.api.arguments import chosen_tokens, shown, typed
from djinn_jupyter.api.arrays import from_any, to_numpy
from djinn_jupyter.api.batches import Batch, OnToken, RunReply, RunRequest, run_until_stop
from djinn_jupyter.api.looks import Effect, Lens, Snapshot
from djinn_jupyter.api.patches import Positions, at_stop, in_one_engine, positions_of_text, spell_positions
from djinn_jupyter.api.rules import SteeringRule, SteeringRules, steering
from djinn_jupyter.api.stops import Finished, Interrupted, Paused, Stop, StopHistory
from djinn_jupyter.api.tables import Listing
from djinn_jupyter.api.watching import Watched
from djinn_jupyter.errors import DjinnError, UsageError
from djinn_jupyter.link.channel import Channel, ask_for
from djinn_jupyter.remote.moving import MovingSession
from djinn_jupyter.settings import OF_A_RUN, GivenDrawing, GivenSampling, refuses, takes
from djinn_jupyter.verbs import SessionVerbs
from djinn_jupyter.wire import looks, replies, running
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.base import Access
from djinn_jupyter.wire.nouns import (
    AttentionName,
    BreakpointDescription,
    PassesMeant,
    SessionDescription,
    StopIdentity,
    Tier,
    Transfer,
    WatchDescription,
)
from djinn_jupyter.wire.request_base import Answer
from djinn_jupyter.wire.texts import label

if TYPE_CHECKING:
    import numpy as np


AtStop = TypeVar("AtStop", bound=Stop)


class RemoteSession(runs.Runs, MovingSession, SessionVerbs):
    """A session of an engine. `moves` and `changes` count this client's moves and edits; a Paused or Finished compares
    them to detect that the session has moved on."""

    def __init__(self, channel: Channel, name: str) -> None:
        self._channel, self.name = channel, name
        self.moves = 0
        self.changes = 0
        self._logits: Literal["last", "all"] = "last"
        self._last: Paused | None = None
        self._finished: weakref.ref[Finished] | None = None
        self._rows: list[RemoteSession] = []

    @property
    def label(self) -> str:
        """The name for display: a notebook's own session has the name of the notebook."""
        return label(self.name)

    @property
    def channel(self) -> Channel:
        """The connection, for other parts of the client."""
        return self._channel

    def sibling(self, name: str, channel: Channel | None = None) -> Self:
        return type(self)(channel or self._channel, name)

    # ------------------------------------------------------------------------------------------------ running

    def step(
        self, count: int = 1, *, by: Literal["layer", "token", "point"] = "layer", stop: StopIdentity | None = None
    ) -> Stop:
        """Run `count` layers from the stop, or to the next points inside them, or to the next tokens at this site.
        IllegalMove where no pass is stopped.

        >>> here = session.breakpoint("resid_post.1")
        >>> session.run("The capital of France is").layer, session.step(2).layer
        (2, 4)
        """
        return self._move(ask.Step(session=self.name, count=count, by=by, stop=stop))

    def back(
        self, count: int = 1, *, by: Literal["stop", "layer", "token"] = "stop", stop: StopIdentity | None = None
    ) -> Paused:
        """Go back `count` stops, layers or tokens, bit for bit; edits at later stops are discarded. IllegalMove where
        there is no such stop.

        >>> here = session.breakpoint("resid_post.4", when="step == 0")
        >>> stop = session.run("The capital of France is")
        >>> session.resume(free=True).text
        ' Paris.'
        >>> session.back().site == stop.site
        True
        """
        return self._moved(ask.Back(session=self.name, count=count, by=by, stop=stop), self._paused)

    def pause(self) -> bool:
        """Ask a run, started by another thread or notebook, to stop; return False when nothing was running."""
        return self._ask(ask.Pause(session=self.name)).was_running

    @property
    def stop(self) -> Paused:
        """The present stop, read from the engine. IllegalMove when the session is not stopped."""
        return self._paused(self._ask(ask.ReadStop(session=self.name)))

    def where(self) -> Paused:
        """Return the present stop with all influences on it, whichever client moved the session there; IllegalMove
        where no pass is stopped."""
        return self.stop

    def history(self) -> StopHistory:
        """Return the stops that `back` can reach, and which of them is the present one."""
        return StopHistory.of(self._ask(ask.ReadHistory(session=self.name)))

    def logits(self) -> np.ndarray[Any, Any]:
        """Return the logits, fp32 [vocabulary], at the last position of the last finished pass."""
        return to_numpy(self._ask(ask.ReadLogits(session=self.name)).logits)

    def metrics(self, *texts: str) -> tuple[float, ...]:
        """Return metrics, as in `dj.sweep`, of the logits of the last finished pass. UsageError where none has;
        IllegalMove where a pass is stopped; InvalidCondition.

        >>> done = session.run("The capital of France is", max_new_tokens=0)
        >>> session.metrics("rank(' Paris')", "rank(' Paris') + 1")
        (1.0, 2.0)
        """
        strange = [text for text in texts if not isinstance(text, str)]
        if strange or not texts:
            given = f"{shown(strange[0])} is none" if strange else "none was given"
            raise UsageError(f"A metric is a text such as \"logit(' Paris')\"; {given}.")
        return self._ask(ask.ReadMetrics(session=self.name, metrics=texts)).values

    def breakpoint(self, site: str | int, when: str | None = None, *, once: bool = False) -> BreakpointDescription:
        """Stop at `site` in every pass that reaches it and, if given, meets the condition `when`. Setting the same
        breakpoint twice gives one. UnknownSite; InvalidCondition."""
        request = ask.SetBreakpoint(session=self.name, site=str(site), when=when, once=once)
        return self._ask(request).breakpoint

    def enable(self, number: int, enabled: bool = True) -> BreakpointDescription:
        """Turn a breakpoint on or off. UnknownBreakpoint."""
        request = ask.EnableBreakpoint(session=self.name, number=number, enabled=enabled)
        return self._ask(request).breakpoint

    def breakpoints(self) -> Listing[BreakpointDescription]:
        """Return the breakpoints, with their hit counts."""
        return Listing(self._ask(ask.Describe(session=self.name)).session.breakpoints)

    def clear(self, *sites: str | int) -> int:
        """Remove the breakpoints at these sites (or with these numbers), or all. Return how many. UnknownBreakpoint."""
        chosen = tuple(str(site) for site in sites) or None
        return self._ask(ask.ClearBreakpoints(session=self.name, sites=chosen)).count

    # ------------------------------------------------------------------------------------------- intervention

    def edit(
        self, edit: object, positions: Positions = None, site: str | None = None, *, stop: StopIdentity | None = None
    ) -> replies.Edited:
        """Change the stopped value by an Edit, or set it to an array or number; by default at all positions. `site`
        must be the stopped one or a later one in this pass. IllegalMove where no pass is stopped; InvalidEdit.

        >>> here = session.breakpoint("resid_post.4", when="step == 0")
        >>> stop = session.run("The capital of France is")
        >>> session.edit(dj.scale(0.0), positions=-1).shape
        (1, 128)
        >>> session.effect().top1_changed
        True
        """
        spelled = self.spelled(positions)
        made, words = at_stop(edits.as_edit(edit), self, site, spelled)
        request = ask.ApplyEdit(session=self.name, edit=made, site=site, positions=spelled, words=words, stop=stop)
        edited = self._ask(request)
        self.changes += 1
        return edited

    def revert(self, *, stop: StopIdentity | None = None) -> Paused:
        """Undo all edits of the present stop."""
        reverted = self._ask(ask.RevertEdits(session=self.name, stop=stop))
        self.changes += 1
        return self._paused(reverted)

    def effect(self, top: int = 5, *, tokens: Iterable[str | int] = ()) -> Effect:
        """Measure the next token without and with the stop's edits: the `top` most probable tokens, and these `tokens`.
        IllegalMove where no pass is stopped."""
        request = ask.MeasureEffect(session=self.name, top=top, tokens=chosen_tokens(tokens))
        return Effect(self._ask(request))

    def enable_edit(self, number: int, enabled: bool = True) -> Paused:
        """Turn an edit of the present stop on or off: the value is then computed with the other edits only. Edits are
        numbered from 1 in `stop.influences.edits`."""
        switched = self._ask(ask.EnableEdit(session=self.name, number=number, enabled=enabled))
        self.changes += 1
        return self._paused(switched)

    @typed
    def steer(
        self,
        site: str | int,
        edit: object,
        positions: Positions = None,
        *,
        when: str | None = None,
        on: PassesMeant | None = None,
    ) -> SteeringRule:
        """Add a rule that applies `edit` at every pass until `unsteer`; `rule.off()` and `rule.on()` switch it.
        `resid_post.*` is the point at every layer, `5:` all positions from 5 on. `when` is a breakpoint's condition,
        tested at each position. `on` is "prompt" or "new", for passes over the prompt only, or over new tokens only.
        UnknownSite; InvalidEdit; InvalidCondition.

        >>> rule = session.steer("mlp_out.*", dj.scale(0.5), "2:", when="norm > 3", on="prompt")
        >>> rule.limits
        ('from position 2 on', 'in the prompt', 'when norm > 3')
        """
        request = steering(self, str(site), edits.as_edit(edit), positions, self._named, when=when, on=on)
        return SteeringRule(self, self._ask(request).rule)

    def rules(self) -> SteeringRules:
        """Return the steering rules in the order in which they apply."""
        return SteeringRules(SteeringRule(self, told) for told in self.describe().rules)

    def enable_rule(self, number: int, enabled: bool = True) -> SteeringRule:
        """Turn a rule on or off. UnknownRule."""
        request = ask.EnableRule(session=self.name, number=number, enabled=enabled)
        return SteeringRule(self, self._ask(request).rule)

    def unsteer(self, number: int | None = None) -> int:
        """End the rule with that number, or all. Return the number ended. UnknownRule."""
        return self._ask(ask.Unsteer(session=self.name, number=number)).count

    # ------------------------------------------------------------------------------------------------ looking

    def inspect(self, site: str | int | None = None, positions: Positions = None, *, ahead: bool = False) -> Snapshot:
        """Return the value at a site of the stopped pass, by default the stopped one; `ahead` also allows a site that
        the pass has not reached. IllegalMove where no pass is stopped, or without `ahead` for such a site; UnknownSite.

        >>> here = session.breakpoint("resid_post.4", when="step == 0")
        >>> stop = session.run("The capital of France is")
        >>> session.inspect("pattern.0", positions=-1).shape  # [positions, heads, keys]
        (1, 4, 5)
        """
        request = ask.Inspect(session=self.name, site=_spelled(site), positions=self.spelled(positions), ahead=ahead)
        return Snapshot(self._ask(request))

    def lens(
        self,
        k: int = 5,
        site: str | int | None = None,
        positions: Positions = None,
        *,
        tokens: Iterable[str | int] = (),
    ) -> Lens:
        """Apply the model's own epilogue to a residual value: return the `k` most probable tokens at each position, and
        `tokens` (each the text of exactly one token, or its number) in `chosen` of each row."""
        chosen, spelled = chosen_tokens(tokens), self.spelled(positions)
        request = ask.Lens(session=self.name, site=_spelled(site), positions=spelled, top=k, tokens=chosen)
        return Lens(self._ask(request))

    def evaluate(self, expression: str, position: int = -1, site: str | int | None = None) -> bool | int | float | str:
        """Return the value of an expression of the condition language at a position of the stopped pass."""
        return self.evaluated(expression, position, site).value

    def evaluated(self, expression: str, position: int = -1, site: str | int | None = None) -> replies.Evaluated:
        """Return the value with its stop."""
        request = ask.Evaluate(session=self.name, expression=expression, site=_spelled(site), position=position)
        return self._ask(request)

    def values(self, *sites: str | int, ahead: bool = False) -> dict[str, np.ndarray[Any, Any]]:
        """Return the values at many sites of the stopped pass at once, by site; with `ahead` also of sites that the
        pass would still reach with the edits so far. A site that the pass does not reach is left out. IllegalMove where
        no pass is stopped; UnknownSite.

        >>> here = session.breakpoint("resid_post.4", when="step == 0")
        >>> stop = session.run("The capital of France is")
        >>> session.values("z.2", "resid_post.4", "mlp_out.6").keys() == {"z.2", "resid_post.4"}
        True
        >>> session.values("pattern.6", ahead=True)["pattern.6"].shape
        (5, 4, 5)
        """
        read = self._read_pass(tuple(str(site) for site in sites), ahead=ahead, logits=False)
        return {site: to_numpy(value) for site, value in zip(read.sites, read.values, strict=True)}

    def logits_ahead(self) -> np.ndarray[Any, Any]:
        """Return the logits, fp32 [positions of the pass, vocabulary], that the stopped pass would end with, given the
        edits so far. The session stays at its stop. IllegalMove where no pass is stopped.

        >>> here = session.breakpoint("resid_post.4", when="step == 0")
        >>> stop = session.run("The capital of France is")
        >>> before = session.logits_ahead()
        >>> edited = session.edit(dj.scale(0.0), positions=-1)
        >>> before.shape, bool((session.logits_ahead()[:-1] == before[:-1]).all())
        ((5, 1393), True)
        """
        read = self._read_pass((), ahead=True, logits=True)
        assert read.logits is not None
        return to_numpy(read.logits)

    def _read_pass(self, sites: tuple[str, ...], *, ahead: bool, logits: bool) -> running.PassRead:
        request = ask.ReadPass(session=self.name, sites=sites, ahead=ahead, logits=logits)
        return self._ask(request)

    def watch(
        self,
        site: str | int,
        byte_cap: int = 256 * 2**20,
        *,
        fresh: bool = False,
        direction: object = None,
        name: str | None = None,
    ) -> WatchDescription:
        """Record the site at every pass of every run from now on. With a `direction` (a vector, called `name`) record
        the component of its value along it. `fresh` discards earlier recordings. Passes that would exceed `byte_cap`
        bytes are omitted and counted. UnknownSite.

        >>> watch = session.watch("resid_post.3")
        >>> done = session.run("The capital of France is", max_new_tokens=2, free=True)
        >>> [value.shape for value in session.watched("resid_post.3").values]
        [(5, 128), (1, 128)]
        """
        if direction is None and name is not None:
            raise UsageError("name is what a direction is called: give that too, or leave name out.")
        along = None if direction is None else looks.Direction(name=name or "direction", vector=from_any(direction))
        request = ask.Watch(session=self.name, site=str(site), byte_cap=byte_cap, fresh=fresh, direction=along)
        return self._ask(request).watch

    def watched(self, site: str | int, name: str | None = None) -> Watched:
        """Return the recordings of the site's watch; `name` is the name of a direction."""
        request = ask.ReadWatch(session=self.name, site=str(site), direction=name)
        return Watched(self._ask(request))

    def unwatch(self, site: str | int | None = None, name: str | None = None) -> int:
        """End the watch of a site, or all, and discard the recordings; `name` names a direction. Return how many."""
        if site is None and name is not None:
            raise UsageError("name is that of a direction which is watched at a site: give the site too.")
        request = ask.Unwatch(session=self.name, site=None if site is None else str(site), direction=name)
        return self._ask(request).count

    # --------------------------------------------------------------------------------------------------- life

    def describe(self) -> SessionDescription:
        """Return the session's state, tokens, breakpoints, rules, watches and bytes."""
        return self._ask(ask.Describe(session=self.name)).session

    @typed
    def attend(self, attention: AttentionName) -> SessionDescription:
        """Choose the attention of this session's passes, as in `engine.session`, before its first prompt."""
        return self._ask(ask.SetAttention(session=self.name, attention=attention)).session

    @typed
    def share(self, person: str, access: Access | None = "read") -> SessionDescription:
        """Let a person who is admitted to the engine `read` this session (inspect, listen, fork), or also `write` it
        (run and edit it, everything but closing and sharing), as `OWNER@NAME`; None revokes it. UsageError where the
        session belongs to the engine's own user, or to another person."""
        return self._ask(ask.Share(session=self.name, person=person, access=access)).session

    @property
    def adapter(self) -> str | None:
        """The name of the session's adapter, None for the model alone. Set it before the first prompt: IllegalMove
        where the session has tokens, UsageError for an unknown adapter.

        >>> added = engine.add_adapter("sql", adapter_folder)
        >>> tuned = engine.session("tuned", fresh=True)
        >>> tuned.adapter = "sql"
        >>> tuned.run("The capital of France is", max_new_tokens=1).reason
        'length'
        """
        return self._ask(ask.Describe(session=self.name)).session.adapter

    @adapter.setter
    def adapter(self, name: str | None) -> None:
        self._ask(ask.SetAdapter(session=self.name, adapter=name))

    def swap_out(self, tier: Tier = "host") -> Transfer | None:
        """Move the session's pages and states from the device to `host` or `disk` until they are next needed; None when
        nothing had to move. TierFull when the tier is full."""
        return self._ask(ask.SwapOut(session=self.name, tier=tier)).transfer

    def swap_in(self) -> Transfer | None:
        """Move the session back now; None when it is on the device already. SlabFull when the device is full."""
        return self._ask(ask.SwapIn(session=self.name)).transfer

    @typed
    def rest(self, expected_seconds: float) -> bool:
        """Announce that the session will be used again in so many seconds, for example by an agent that waits for a
        tool. Return True if it leaves the device meanwhile; a rest of `idle_swap_seconds` or more does so at once. The
        session returns before the time is up, if there is room and prefetching is on. Using it earlier or later is
        allowed. IllegalMove while it runs; UsageError for an invalid time.

        >>> done = session.run("The capital of France is", max_new_tokens=2)
        >>> session.rest(expected_seconds=300.0)
        True
        """
        request = ask.Rest(session=self.name, expected_seconds=expected_seconds)
        return self._ask(request).session.residency != "resident"

    def accept_recomputed(self) -> SessionDescription:
        """Confirm that a recovery recomputed tokens of this session; from now on it counts as exact."""
        return self._ask(ask.AcceptRecomputed(session=self.name)).session

    def detach(self) -> None:
        """Release the session; it stays unchanged for the next client that opens it."""
        self._ask(ask.Detach(session=self.name))

    def close(self, *, force: bool = False) -> int:
        """End the session and return the number of pages freed. SessionsWouldSuffer, unless `force`, where it belongs
        to another notebook or is open in another kernel."""
        self._complete_finished()
        return self._ask(ask.Close(session=self.name, force=force)).pages_freed

    def __repr__(self) -> str:
        return f"Session {self.label} of {self._channel.welcome.model.name}"

    @refuses(GivenSampling, OF_A_RUN)
    @takes(GivenDrawing)
    @typed
    def fork(
        self,
        name: str,
        *,
        edit: object = None,
        site: str | None = None,
        positions: Positions = None,
        stop: StopIdentity | None = None,
        **sampling: Any,
    ) -> Self:
        """Create a session `name` with the same tokens, stop and rules; the two share keys and values until one writes.
        IllegalMove where the session is no longer at `stop`; UsageError where a session has that name.

        With an `edit` (as in `session.edit`) the fork has other keys (`k_rot.N`, after the rotary embedding) or values
        (`v.N`) at committed `positions`, [positions, key heads, head features]; by default at all of them. Later runs
        of the fork attend to these; this session keeps its own. InvalidEdit where a layer has already run in the
        stopped pass.

        >>> done = session.run("The capital of France is", max_new_tokens=1)
        >>> other = session.fork("other", edit=dj.zero(), site="v.3[0]", positions="1:4")
        >>> other.run(extend=True, max_new_tokens=1).reason
        'length'

        The sampling of what is left of a stopped run, as in `resume`:
        """
        if edit is None and (site is not None or positions is not None):
            raise UsageError("site and positions belong to an edit of the fork's keys or values: fork(name, edit=...).")
        request = ask.Fork(
            session=self.name,
            name=name,
            stop=stop,
            edit=None if edit is None else in_one_engine(edits.as_edit(edit)),
            site=site,
            positions=spell_positions(positions, self._committed),
            sampling=runs.changed_sampling(sampling),
        )
        self._ask(request)
        return self.sibling(name)

    def _committed(self) -> tuple[int, int]:
        return 0, self._ask(ask.Describe(session=self.name)).session.committed

    # ----------------------------------------------------------------------------------------------------- files

    def checkpoint(self, name: str, *, replace: bool = False) -> replies.CheckpointSaved:
        """Save the session in a checkpoint file called `name`; an existing one is replaced only with `replace`."""
        request = ask.SaveCheckpoint(session=self.name, name=name, replace=replace)
        return self._ask(request)

    def restore(self, name: str, *, force: bool = False) -> SessionDescription:
        """Return to the state saved in a checkpoint (a name or a file's path); the session's present state is lost, as
        with `back`. CheckpointRefused for a checkpoint of another model, or a damaged one; SessionsWouldSuffer, unless
        `force`, where the session belongs to another notebook or is open in another kernel."""
        self._complete_finished()
        request = ask.RestoreCheckpoint(session=self.name, name=name, replace=True, force=force)
        restored = self._ask(request).session
        self.moves += 1
        self._last = None
        return restored

    # ------------------------------------------------------------------------------------------------ private

    def _ask(self, request: ask.RequestBase[Answer]) -> Answer:
        return ask_for(self._channel, request)

    def _move(self, request: RunRequest, on_token: OnToken | None = None) -> Stop:
        return self._moved(request, self.arrived, on_token)

    def _moved(
        self, request: ask.RequestBase[Answer], seen: Callable[[Answer], AtStop], on_token: OnToken | None = None
    ) -> AtStop:
        self._complete_finished()
        self.moves += 1
        self._last = None
        reply, broken_in = run_until_stop(self._channel, self.name, request, on_token)
        stop = seen(reply)
        if broken_in:
            raise Interrupted(stop)
        return stop

    def send(self, request: RunRequest) -> Future[RunReply]:
        """Send a request that moves the session, without waiting."""
        self._complete_finished()
        self.moves += 1
        self._last = None
        return self._channel.ask(request)

    def _batch(self, **settings: Any) -> Batch:
        """Return a new batch of this session; of earlier rows only the values already read stay readable."""
        for row in self._rows:
            row._complete_finished()
            row.moves += 1
        self._rows = []
        return Batch(self, self._channel, **settings)

    def row(self, name: str) -> RemoteSession:
        """Return the handle of a row of a batch."""
        self._rows.append(RemoteSession(self._channel, name))
        return self._rows[-1]

    def arrived(self, reply: RunReply) -> Stop:
        """Return the stop of a move, also of one that `send` started."""
        if isinstance(reply, replies.Paused):
            return self._paused(reply)
        finished = Finished(self, reply, self.moves, self._logits)
        self._finished = weakref.ref(finished)
        if self._logits == "all":  # now, while the rules are those of the run
            self._complete_finished()
        return finished

    def _complete_finished(self) -> None:
        """Fetch the logits of the last run before the session moves on, if its Finished is still referenced. They are
        one row; a comparison of two runs must not fail because the first one's logits were not read in time."""
        finished = self._finished() if self._finished is not None else None
        self._finished = None
        if finished is not None:
            try:
                finished.fetch_logits()
            except DjinnError:
                pass  # another kernel has moved the session: reading the logits will raise that error

    def _paused(self, reply: replies.Paused) -> Paused:
        self._last = Paused(self, reply, self.moves)
        return self._last

    def _ends(self) -> tuple[int, int]:
        positions = (self._last or self.stop).positions
        return positions[0], positions[-1] + 1

    def spelled(self, positions: Positions) -> tuple[int, ...] | None:
        """Return positions of the stopped pass in the form of requests; None for the whole pass."""
        return spell_positions(positions, self._ends, self._named)

    def _named(self, text: str) -> list[int]:
        stop = self._last or self.stop
        return positions_of_text(text, {position: stop.texts[position] for position in stop.positions})


def _spelled(site: str | int | None) -> str | None:
    return None if site is None else str(site)
