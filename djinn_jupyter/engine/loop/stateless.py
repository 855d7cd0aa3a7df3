"""Move sessions off the device and back, because a client asks or because of what a notebook does."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec

from djinn_jupyter.engine.loop.dispatch import handles
from djinn_jupyter.engine.loop.mailbox import Holder
from djinn_jupyter.engine.passes.forward import device_memory_for
from djinn_jupyter.engine.passes.weight_reader import WeightReader
from djinn_jupyter.engine.residency.residency import Residency
from djinn_jupyter.engine.session import reports
from djinn_jupyter.engine.session.residence import Steps
from djinn_jupyter.engine.session.runtime import Runtime
from djinn_jupyter.engine.session.session import Session
from djinn_jupyter.engine.session.table import SessionTable
from djinn_jupyter.engine.system.arrays import to_array
from djinn_jupyter.errors import IllegalMove
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.nouns import StopDescription, Transfer
from djinn_jupyter.wire.readings import Branch
from djinn_jupyter.wire.replies import Copies, Described, Noted, Swapped, Tree, WeightRead, WeightsMoved
from djinn_jupyter.wire.texts import in_quotes
from djinn_jupyter.wire.weights import parse_weight


class SwapRequests:
    def __init__(self, sessions: SessionTable, residency: Residency) -> None:
        self._sessions, self._residency = sessions, residency

    @handles(ask.SwapOut)
    def swap_out(self, request: ask.SwapOut, session: Session, holder: Holder) -> Steps[Swapped]:
        self._residency.require_tier(request.tier)
        self._residency.owner_budgets.require_place(session, request.tier)
        if session.state == "running":
            raise IllegalMove(f"Session {in_quotes(session.name)} is running; pause it before it leaves the device.")
        yield from self._residency.settled(session)
        before = session.residence.last_transfer
        self._residency.swap_out(session, request.tier)
        yield from self._residency.settled(session)
        return _swapped(session, before)

    @handles(ask.SwapIn)
    def swap_in(self, request: ask.SwapIn, session: Session, holder: Holder) -> Steps[Swapped]:
        before = session.residence.last_transfer
        if session.residence.present:
            return Swapped(session=reports.describe(session), transfer=None)
        self._residency.swap_in(session)
        yield from self._residency.settled(session)
        return _swapped(session, before)

    @handles(ask.Rest)
    def rest(self, request: ask.Rest, session: Session, holder: Holder) -> Described:
        self._residency.announce_rest(session, request.expected_seconds)
        return Described(session=reports.describe(session))

    @handles(ask.Note)
    def note(self, request: ask.Note, session: Session, holder: Holder) -> Noted:
        """Note what a notebook does. Any client may say so: its kernel, or the server that its window belongs to."""
        if request.activity == "in_use":
            self._use(session, holder)
        self._residency.note(session, request.activity)
        return Noted()

    def _use(self, session: Session, holder: Holder) -> None:
        """Make this session, of all sessions, the one that the holder's magics act on."""
        for other in self._sessions.values():
            if other.used_by == holder.name:
                other.use(None)
                self._sessions.touch(other.name)
        session.use(holder.name)


def _swapped(session: Session, before: Transfer | None) -> Swapped:
    if session.residence.error is not None:
        raise session.residence.error
    transfer = session.residence.last_transfer
    return Swapped(session=reports.describe(session), transfer=None if transfer is before else transfer)


# The tree of stops and forks. Reads only.

TOKENS_TOLD: Final = 12
STOPS_TOLD: Final = 2**16  # of all sessions together, the last ones of each


class TreeRequests:
    def __init__(self, sessions: SessionTable, runtime: Runtime) -> None:
        self._sessions, self._tokenizer = sessions, runtime.tokenizer

    @handles(ask.ReadTree)
    def read_tree(self, request: ask.ReadTree, holder: Holder) -> Tree:
        most = max(1, STOPS_TOLD // max(1, len(self._sessions)))
        return Tree(branches=tuple(self._branch(session, most) for session in self._sessions.values()))

    def _branch(self, session: Session, most: int) -> Branch:
        """Return a session's branch with `most` of its stops: the last ones, or those from where it stands on."""
        here = session.history.present
        first = max(0, len(session.history.stops) - most)
        first = first if here is None else min(first, here)
        return Branch(
            session=session.name,
            state=session.state,
            stops=tuple(_stops(session, first, most)),
            present=None if here is None else here - first,
            tokens=len(session.tokens),
            text=self._tokenizer.decode(session.tokens[-TOKENS_TOLD:]),
            forked_from=session.forked_from,
            stop=session.standing,
            dropped=session.history.dropped + first,
        )


def _stops(session: Session, first: int, most: int) -> Iterator[StopDescription]:
    """Yield stops of the history from the `first` one on; the present one is marked edited where an edit is in force
    now."""
    for number, stop in enumerate(session.history.describe()[first : first + most]):
        edited = bool(session.edits_in_force) if stop.index == session.history.present else stop.edited
        yield msgspec.structs.replace(stop, index=number, edited=edited)


# Read weights, put them to sleep, wake them, and report how layers came through the ring.


class WeightRequests:
    def __init__(self, sessions: SessionTable, runtime: Runtime) -> None:
        self._sessions, self._weights = sessions, runtime.forward.weights
        self._reader = WeightReader(runtime.forward)

    @handles(ask.ReadWeight)
    def read_weight(self, request: ask.ReadWeight, holder: Holder) -> WeightRead:
        name = parse_weight(request.name)
        with device_memory_for(f"a copy of {name}", "Close sessions, or choose heads or columns of it."):
            part = self._reader.read(name, request.rows, request.columns, fold_norm=request.fold_norm)
            return WeightRead(name=str(name), values=to_array(part))

    @handles(ask.Sleep)
    def sleep(self, request: ask.Sleep, holder: Holder) -> WeightsMoved:
        """Put the weights to sleep. Raises IllegalMove while a forward pass is under way, UsageError where the weights
        could not come back."""
        busy = [session.name for session in self._sessions.values() if session.work is not None]
        if busy:
            raise IllegalMove(f"Session {in_quotes(busy[0])} is running and needs the weights; pause it first.")
        seconds = self._weights.sleep()
        return WeightsMoved(weights=self._weights.statistics(), seconds=seconds)

    @handles(ask.Wake)
    def wake(self, request: ask.Wake, holder: Holder) -> WeightsMoved:
        seconds = self._weights.wake()
        return WeightsMoved(weights=self._weights.statistics(), seconds=seconds)

    @handles(ask.ReadCopies)
    def read_copies(self, request: ask.ReadCopies, holder: Holder) -> Copies:
        return Copies(copies=self._weights.copies(request.since))
