"""The verb that moves a session to another engine of the same model. The engines write and read the file; this process
drives."""

from __future__ import annotations

from typing import Protocol, Self, runtime_checkable
from uuid import uuid4

from djinn_jupyter.api.arguments import typed
from djinn_jupyter.errors import DjinnError, EngineUnavailable, UsageError
from djinn_jupyter.link.channel import Channel, ask_for
from djinn_jupyter.wire import replies
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.base import person_of
from djinn_jupyter.wire.texts import in_quotes


@runtime_checkable
class AttachedEngine(Protocol):
    """An engine that this process is attached to."""

    @property
    def channel(self) -> Channel: ...


class MovingSession:
    """The parts of a session's handle that a move needs."""

    name: str
    moves: int
    _channel: Channel

    @typed
    def move(self, to: AttachedEngine, name: str | None = None, *, force: bool = False) -> Self:
        """Move the session to another engine of the same model, and return its handle there. Its stop, keys and values,
        rules, watches and history move too, bit for bit. `name` is its name there, where it belongs to the person of
        your key, or to the engine's own user. The engines share a place for sessions (the same user's on one machine,
        the same `shared_journal`, or a store given by `moves`) and have equal fingerprints: FingerprintsDiffer has the
        differences. If anything fails, or an engine dies meanwhile, the session is in one of the two. IllegalMove while
        it runs; UsageError where a session there has that name; SessionsWouldSuffer, unless `force`, where this one
        belongs to another notebook.

        >>> there = session.move(dj.load("demo", copy=2))  # doctest: +SKIP
        >>> there.resume().text  # doctest: +SKIP
        ' Paris.'
        """
        there = to.channel
        if there is self._channel:
            raise UsageError(f"Session {in_quotes(self.name)} is in that engine already.")
        self._complete_finished()
        chosen = self.name if name is None else name
        _move(self._channel, self.name, there, chosen, force=force)
        self.moves += 1
        return self.sibling(chosen, there)

    def sibling(self, name: str, channel: Channel | None = None) -> Self:
        """Return the session of that name in the engine of a channel, without a request."""
        raise NotImplementedError

    def _complete_finished(self) -> None:
        """Fetch the values that an earlier result may still read from the session."""
        raise NotImplementedError


def _move(here: Channel, session: str, there: Channel, name: str, *, force: bool) -> None:
    """Return when the session is there. On an error or an interrupt it stays, unless only the reply was lost."""
    to, move = ask_for(there, ask.ReadProvenance()), uuid4().hex
    store = _store_between(ask_for(here, ask.ReadProvenance()), to)
    try:
        person = person_of(name) if to.person is None else to.person  # an own user may name a person's session
        sent = ask.SendAway(session=session, to=to.provenance, move=move, store=store, person=person, force=force)
        ask_for(here, sent)
        ask_for(there, ask.TakeIn(session=name, move=move, store=store))
    except BaseException as error:
        stayed = ask_for(here, ask.SettleMove(session=session, move=move)).stayed
        if stayed or not isinstance(error, DjinnError):
            raise
    else:
        try:
            ask_for(here, ask.SettleMove(session=session, move=move))
        except EngineUnavailable:
            pass  # it checks when it starts again


def _store_between(here: replies.ProvenanceRead, there: replies.ProvenanceRead) -> str | None:
    """Return the store where the session waits: one that both engines use. None: their folder. Without a common one it
    is the store of one engine, which the other refuses with the remedy."""
    common = [store for store in here.stores if store in there.stores]
    if common or (here.folder and there.folder):
        return next(iter(common), None)
    return next(iter((*here.stores, *there.stores)), None)
