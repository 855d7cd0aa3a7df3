"""The client's handle of one session. Holds no engine state: only the stop that this client saw last."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from djinn_jupyter.client.arrays import from_any, to_numpy
from djinn_jupyter.client.attribution import Attribution
from djinn_jupyter.client.batches import Batch, OnRow
from djinn_jupyter.client.connection.channel import Channel, ask_for, expect
from djinn_jupyter.client.edits import as_edit
from djinn_jupyter.client.patches import at_stop
from djinn_jupyter.client.positions import Positions, positions_of, spell_positions
from djinn_jupyter.client.rules import SteeringRule, steering
from djinn_jupyter.client.running import OnToken, run_until_stop
from djinn_jupyter.client.runs import Runs
from djinn_jupyter.client.scoring import ScoredSession
from djinn_jupyter.client.stops import Finished, Interrupted, Paused, Stop
from djinn_jupyter.client.views import Effect, Lens, Snapshot, Watched
from djinn_jupyter.errors import DjinnError, UsageError, WireError
from djinn_jupyter.wire import replies
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.names import label
from djinn_jupyter.wire.nouns import (
    BreakpointDescription,
    PassesMeant,
    SessionDescription,
    StopIdentity,
    Tier,
    Transfer,
    WatchDescription,
)
from djinn_jupyter.wire.watches import Direction

if TYPE_CHECKING:
    import numpy as np

Kind = TypeVar("Kind")


class RemoteSession(Runs, ScoredSession):
    """A session of an engine. `moves` and `changes` count this client's moves and edits: a Paused or Finished compares
    them to find out that the session has moved on."""

    def __init__(self, channel: Channel, name: str) -> None:
        super().__init__(channel, name)
        self.moves = 0
        self.changes = 0
        self._logits: Literal["last", "all"] = "last"
        self._last: Paused | None = None
        self._finished: weakref.ref[Finished] | None = None
        self._rows: list[RemoteSession] = []

    @property
    def label(self) -> str:
        return label(self.name)

    @property
    def channel(self) -> Channel:
        return self._channel

    def sibling(self, name: str) -> RemoteSession:
        """Return the session of that name in the same engine, which is not asked for it."""
        return RemoteSession(self._channel, name)

    # ------------------------------------------------------------------------------------------------ running

    def step(
        self, count: int = 1, *, by: Literal["layer", "token", "point"] = "layer", stop: StopIdentity | None = None
    ) -> Stop:
        return self._move(ask.Step(session=self.name, count=count, by=by, stop=stop))

    def back(
        self, count: int = 1, *, by: Literal["stop", "layer", "token"] = "stop", stop: StopIdentity | None = None
    ) -> Paused:
        return expect(self._move(ask.Back(session=self.name, count=count, by=by, stop=stop)), Paused)

    def pause(self) -> bool:
        """Ask a run, started by another thread or notebook, to stop; return False when nothing was running."""
        return self._ask(ask.Pause(session=self.name), replies.Pausing).was_running

    @property
    def stop(self) -> Paused:
        """The present stop, read from the engine. IllegalMove when the session is not stopped."""
        return self._paused(self._ask(ask.ReadStop(session=self.name), replies.Paused))

    def where(self) -> Paused:
        """Return the present stop with all that influences it, whichever client moved the session there; IllegalMove
        where no pass is stopped."""
        return self.stop

    def history(self) -> replies.History:
        return self._ask(ask.ReadHistory(session=self.name), replies.History)

    def logits(self) -> np.ndarray[Any, Any]:
        """Return the logits, fp32 [vocabulary], at the last position of the last finished pass."""
        return to_numpy(self._ask(ask.ReadLogits(session=self.name), replies.Logits).logits)

    # -------------------------------------------------------------------------------------------- breakpoints

    def breakpoint(self, site: str | int, when: str | None = None, *, once: bool = False) -> BreakpointDescription:
        """Stop at `site` in every pass that reaches it and, if given, meets the condition `when`. Setting the same
        breakpoint twice gives one."""
        request = ask.SetBreakpoint(session=self.name, site=str(site), when=when, once=once)
        return self._ask(request, replies.BreakpointSet).breakpoint

    def enable(self, number: int, enabled: bool = True) -> BreakpointDescription:
        request = ask.EnableBreakpoint(session=self.name, number=number, enabled=enabled)
        return self._ask(request, replies.BreakpointSet).breakpoint

    def breakpoints(self) -> tuple[BreakpointDescription, ...]:
        return self.describe().breakpoints

    def clear(self, *sites: str | int) -> int:
        """Remove the breakpoints at these sites (or of these numbers), or all. Return how many were removed."""
        chosen = tuple(str(site) for site in sites) or None
        return self._ask(ask.ClearBreakpoints(session=self.name, sites=chosen), replies.Cleared).count

    # ------------------------------------------------------------------------------------------- intervention

    def edit(
        self,
        edit: object,
        positions: Positions = None,
        site: str | None = None,
        *,
        stop: StopIdentity | None = None,
    ) -> replies.Edited:
        """Change the stopped value by an Edit, or set it to an array or number; by default at all positions."""
        spelled = self._spelled(positions)
        made, words = at_stop(as_edit(edit), self, site, spelled)
        request = ask.ApplyEdit(session=self.name, edit=made, site=site, positions=spelled, words=words, stop=stop)
        edited = self._ask(request, replies.Edited)
        self.changes += 1
        return edited

    def revert(self, *, stop: StopIdentity | None = None) -> Paused:
        """Undo all edits of the present stop."""
        reverted = self._ask(ask.RevertEdits(session=self.name, stop=stop), replies.Paused)
        self.changes += 1
        return self._paused(reverted)

    def effect(self, top: int = 5, *, tokens: Iterable[str | int] = ()) -> Effect:
        """Measure the next token without and with the stop's edits: the `top` most probable, and these `tokens`."""
        request = ask.MeasureEffect(session=self.name, top=top, tokens=tuple(tokens))
        return Effect(self._ask(request, replies.Effect))

    def enable_edit(self, number: int, enabled: bool = True) -> Paused:
        """Turn an edit of the present stop on, or off: the value is then computed with the other edits alone. Edits are
        numbered from 1 in `stop.influences.edits`."""
        switched = self._ask(ask.EnableEdit(session=self.name, number=number, enabled=enabled), replies.Paused)
        self.changes += 1
        return self._paused(switched)

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
        `resid_post.*` is the point at every layer, `5:` all positions from 5 on; `when` is a breakpoint's condition,
        asked at each position; `on` is "prompt" or "new", for passes over the prompt or over new tokens alone."""
        request = steering(self, str(site), as_edit(edit), positions, self._named, when=when, on=on)
        return SteeringRule(self, self._ask(request, replies.Steered).rule)

    def rules(self) -> tuple[SteeringRule, ...]:
        return tuple(SteeringRule(self, told) for told in self.describe().rules)

    def enable_rule(self, number: int, enabled: bool = True) -> SteeringRule:
        request = ask.EnableRule(session=self.name, number=number, enabled=enabled)
        return SteeringRule(self, self._ask(request, replies.Steered).rule)

    def unsteer(self, number: int | None = None) -> int:
        return self._ask(ask.Unsteer(session=self.name, number=number), replies.Cleared).count

    # ------------------------------------------------------------------------------------------------ looking

    def inspect(self, site: str | int | None = None, positions: Positions = None, *, ahead: bool = False) -> Snapshot:
        """Return the value at a site of the stopped pass, by default the stopped one; `ahead` also allows a site that
        the pass has not reached."""
        request = ask.Inspect(
            session=self.name,
            site=_spelled(site),
            positions=self._spelled(positions),
            ahead=ahead,
        )
        return Snapshot(self._ask(request, replies.Inspected))

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
        spelled = self._spelled(positions)
        request = ask.Lens(session=self.name, site=_spelled(site), positions=spelled, top=k, tokens=tuple(tokens))
        return Lens(self._ask(request, replies.LensRead))

    def attribute(
        self, *tokens: str | int, heads: bool = False, position: Positions = -1, ahead: bool = False
    ) -> Attribution:
        """Direct logit attribution: the contribution of each module that has run to the logit of one token, or to the
        difference of two; `heads` splits attention into its heads, `ahead` adds the layers after the stop. A part is
        exact to 1e-6 of the largest one; in bfloat16 a head's to 2**-8, and `rest` has up to 2**-6 of rounding."""
        at = self._spelled(position)
        if at is None or len(at) != 1 or not 1 <= len(tokens) <= 2:
            raise UsageError("An attribution is of one token or of two, at one position; by default at the last.")
        request = ask.Attribute(session=self.name, tokens=tokens, heads=heads, position=at[0], ahead=ahead)
        return Attribution(self._ask(request, replies.Attributed))

    def evaluate(self, expression: str, position: int = -1, site: str | int | None = None) -> bool | int | float | str:
        """Return the value of an expression of the condition language at a position of the stopped pass."""
        return self.evaluated(expression, position, site).value

    def evaluated(self, expression: str, position: int = -1, site: str | int | None = None) -> replies.Evaluated:
        """Return the value with the stop that it was read from."""
        request = ask.Evaluate(session=self.name, expression=expression, site=_spelled(site), position=position)
        return self._ask(request, replies.Evaluated)

    def watch(
        self,
        site: str | int,
        byte_cap: int = 256 * 2**20,
        *,
        fresh: bool = False,
        direction: object = None,
        name: str = "direction",
    ) -> WatchDescription:
        """Record the site at every pass of every run from now on, or with a `direction` (a vector, called `name`) the
        component of its value along it; `fresh` discards earlier recordings. Passes that would exceed `byte_cap` are
        left out and counted."""
        along = None if direction is None else Direction(name=name, vector=from_any(direction))
        request = ask.Watch(session=self.name, site=str(site), byte_cap=byte_cap, fresh=fresh, direction=along)
        return self._ask(request, replies.Watching).watch

    def watched(self, site: str | int, name: str | None = None) -> Watched:
        """Return what the watch of the site recorded; `name` is that of a direction."""
        request = ask.ReadWatch(session=self.name, site=str(site), direction=name)
        return Watched(self._ask(request, replies.WatchRead))

    def unwatch(self, site: str | int | None = None, name: str | None = None) -> int:
        request = ask.Unwatch(session=self.name, site=_spelled(site), direction=name)
        return self._ask(request, replies.Cleared).count

    # --------------------------------------------------------------------------------------------------- life

    def describe(self) -> SessionDescription:
        return self._ask(ask.Describe(session=self.name), replies.Described).session

    def fork(self, name: str, *, stop: StopIdentity | None = None) -> RemoteSession:
        """Create a session `name` with the same tokens, stop and rules. Refused where it no longer stands at `stop`."""
        self._ask(ask.Fork(session=self.name, name=name, stop=stop), replies.Opened)
        return RemoteSession(self._channel, name)

    def accept_recomputed(self) -> SessionDescription:
        """Confirm that the user knows a recovery recomputed tokens of this session; from now on it counts as exact."""
        return self._ask(ask.AcceptRecomputed(session=self.name), replies.Described).session

    def detach(self) -> None:
        """Release the session; it stays as it is for the next client that opens it."""
        self._ask(ask.Detach(session=self.name), replies.Detached)

    def close(self, *, force: bool = False) -> int:
        """End the session and return the number of pages freed. SessionsWouldSuffer, unless `force`, where it belongs
        to another notebook or is open in another kernel."""
        self._complete_finished()
        return self._ask(ask.Close(session=self.name, force=force), replies.Closed).pages_freed

    def __repr__(self) -> str:
        return f"Session {self.label} of {self._channel.welcome.model.name}"

    # ---------------------------------------------------------------------------------------- memory and files

    def swap_out(self, tier: Tier = "host") -> Transfer | None:
        """Move the session's pages and states from the device to `host` or `disk` until they are next needed; None when
        nothing had to move. TierFull when the tier has no room."""
        return self._ask(ask.SwapOut(session=self.name, tier=tier), replies.Swapped).transfer

    def swap_in(self) -> Transfer | None:
        """Bring the session back now; None when it is on the device already. SlabFull when there is no room."""
        return self._ask(ask.SwapIn(session=self.name), replies.Swapped).transfer

    def checkpoint(self, name: str, *, replace: bool = False) -> replies.CheckpointSaved:
        """Save the session in a checkpoint file called `name`; an existing one is replaced only with `replace`."""
        request = ask.SaveCheckpoint(session=self.name, name=name, replace=replace)
        return self._ask(request, replies.CheckpointSaved)

    def restore(self, name: str, *, force: bool = False) -> SessionDescription:
        """Return to the state saved in a checkpoint (by name, or a file's path); the session's present state is lost,
        as by `back`. CheckpointRefused for a checkpoint of another model, or a damaged one; SessionsWouldSuffer, unless
        `force`, where the session belongs to another notebook or is open in another kernel."""
        self._complete_finished()
        request = ask.RestoreCheckpoint(session=self.name, name=name, replace=True, force=force)
        restored = self._ask(request, replies.Opened).session
        self.moves += 1
        self._last = None
        return restored

    # ------------------------------------------------------------------------------------------------ private

    def _ask(self, request: ask.Request, kind: type[Kind]) -> Kind:
        return ask_for(self._channel, request, kind)

    def _move(self, request: ask.Request, on_token: OnToken | None = None) -> Stop:
        self._complete_finished()
        self.moves += 1
        self._last = None
        reply, broken_in = run_until_stop(self._channel, self.name, request, on_token)
        stop = self._seen(reply)
        if broken_in:
            raise Interrupted(stop)
        return stop

    def arrived(self, reply: replies.Reply) -> Stop:
        """Return the stop of a move that was begun by `depart`."""
        return self._seen(reply)

    def depart(self, request: ask.Request) -> Future[replies.Reply]:
        """Send a request that moves the session, and wait for nothing."""
        self._complete_finished()
        self.moves += 1
        self._last = None
        return self._channel.ask(request)

    def _batch(self, on_token: OnToken | None, on_row: OnRow | None) -> Batch:
        """Return a new batch of this session; values read from earlier rows stay, and no more can be read from them."""
        for row in self._rows:
            row._complete_finished()
            row.moves += 1
        self._rows = []
        return Batch(self, self._channel, on_token, on_row)

    def row(self, number: int) -> RemoteSession:
        """Return the handle of a row that a batch makes."""
        self._rows.append(RemoteSession(self._channel, f"{self.label}/{number}"))
        return self._rows[-1]

    def _seen(self, reply: replies.Reply) -> Stop:
        match reply:
            case replies.Paused():
                return self._paused(reply)
            case replies.Finished():
                finished = Finished(self, reply, self.moves, self._logits)
                self._finished = weakref.ref(finished)
                if self._logits == "all":  # now, while the rules are those of the run
                    self._complete_finished()
                return finished
            case _:
                raise WireError(f"The engine answered a run with {type(reply).__name__}.")

    def _complete_finished(self) -> None:
        """Fetch the logits of the last run before the session moves on, if its Finished is still referenced. They are
        one row; comparing two runs must not fail because the first one's logits were not read in time."""
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

    def _spelled(self, positions: Positions) -> tuple[int, ...] | None:
        return spell_positions(positions, self._ends, self._named)

    def _named(self, text: str) -> list[int]:
        stop = self._last or self.stop
        return positions_of(text, {position: stop.texts[position] for position in stop.positions})


def _spelled(site: str | int | None) -> str | None:
    return None if site is None else str(site)
