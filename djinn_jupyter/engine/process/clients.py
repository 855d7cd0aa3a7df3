"""The client table: which client speaks for which holder, and which holders have gone. Answers the requests that must
be answered at once even while the engine computes (Hello, Goodbye, Ping, Listen, statistics, sessions, Shutdown) and
hands the rest on. Knows no sockets; called from one thread."""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from djinn_jupyter import errors, extensions
from djinn_jupyter._version import __version__
from djinn_jupyter.engine.loop.mailbox import Holder
from djinn_jupyter.engine.process.seam import Admission, Alone, Answer, Owner
from djinn_jupyter.engine.session.session import RequestId
from djinn_jupyter.remote.engine.connections import EventRing
from djinn_jupyter.remote.engine.persons import with_presence
from djinn_jupyter.wire import protocol, replies
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.base import is_anothers, person_of
from djinn_jupyter.wire.logs import told_of_end
from djinn_jupyter.wire.nouns import EngineStatistics, ModelDescription, SessionDescription
from djinn_jupyter.wire.texts import distinct_labels, require_showable

MOST_NAMES: Final = 1000
"""That one client may listen to. A name has at most 512 characters."""


class Listeners:
    """None in place of a session stands for all sessions. A client that listens to both hears each event once."""

    def __init__(self) -> None:
        self.events = EventRing()
        self._names: dict[bytes, set[str | None]] = {}

    def add(self, peer: bytes, session: str | None) -> None:
        """Raises UsageError where the client listens to too many sessions."""
        names = self._names.setdefault(peer, set())
        if len(names) >= MOST_NAMES and session not in names:
            raise errors.UsageError(
                f"A client listens to at most {MOST_NAMES:,} sessions by name; listen to all of them."
            )
        names.add(session)

    def remove(self, peer: bytes, session: str | None) -> None:
        self._names.get(peer, set()).discard(session)

    def forget(self, peer: bytes) -> None:
        """Remove a client that has gone."""
        self._names.pop(peer, None)

    def hears(self, peer: bytes, session: str) -> bool:
        return not {session, None}.isdisjoint(self._names.get(peer, ()))

    def of(self, session: str) -> list[bytes]:
        """Return the clients that hear an event of this session."""
        return [peer for peer in self._names if self.hears(peer, session)]


class PublishedState(Protocol):
    @property
    def statistics(self) -> EngineStatistics: ...
    @property
    def sessions(self) -> tuple[SessionDescription, ...]: ...
    def page(self, first: int) -> replies.Sessions: ...


class Served(Protocol):
    """An engine as the client table needs it; every part may be used from any thread."""

    @property
    def description(self) -> ModelDescription: ...
    @property
    def reading(self) -> PublishedState: ...
    @property
    def keeps_sessions(self) -> bool: ...
    def forget_sessions(self) -> None: ...
    def accept(
        self, request: ask.Request, holder: Holder, reply: Answer, known_as: RequestId | None = None
    ) -> None: ...
    def left_by(self, holder: Holder) -> tuple[str, ...]: ...
    def lose_holder(self, holder: Holder) -> None: ...


log = logging.getLogger(__name__)

AFAR_SILENCE_SECONDS = 120.0  # of a disconnected client that may return
FORGOTTEN_SECONDS = 24 * 3600.0
MOST_CLIENTS = 100  # of one owner with a key
STARTED_ANEW: Final = (
    "The engine was started anew after this was asked for, and it is not known whether it was done: look, and ask "
    "again."
)


@dataclass(slots=True, kw_only=True)
class ConnectedClient:
    """One connection. Several may speak for one holder: a kernel before and after its restart, two loads in one."""

    holder: Holder
    observer: bool
    last_heard: float
    may_return: bool
    methods: dict[str, str]


class ClientTable:
    """The client table. A holder is present while a message of any of its clients came within `silence_seconds`.
    Otherwise its sessions are detached, and reopened with the next message (a laptop was closed, a kernel was long in C
    code). `admitted` are the owners who may come, beside the engine's own user. `end_before` is the reason why a signal
    ended the previous engine."""

    def __init__(
        self,
        engine: Served,
        *,
        shut_down: Callable[[], None],
        silence_seconds: float = 20.0,
        admission: Admission | None = None,
        admitted: Callable[[], Iterable[str]] = tuple,
        end_before: str | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._engine, self._shut_down, self._clock = engine, shut_down, clock
        self._admission, self._admitted = admission or Alone(), admitted
        self._silence_seconds, self._end_before = silence_seconds, end_before
        self._heard: dict[Owner, float] = {}
        self._clients: dict[bytes, ConnectedClient] = {}
        self.listeners = Listeners()
        self.engine = secrets.token_hex(8)  # the name of this process
        self._left_behind: dict[Holder, tuple[str, ...]] = {}

    @property
    def attached(self) -> int:
        """The number of present clients that keep the engine alive (no observers). May be read from any thread."""
        return sum(self._present(client) and not client.observer for client in tuple(self._clients.values()))

    def knows(self, peer: bytes) -> bool:
        return peer in self._clients

    def receive(
        self, peer: bytes, request: ask.Request, answer: Answer, owner: Owner, known_as: RequestId | None = None
    ) -> None:
        """Handle a request of a client. `owner` is the sender of this request. `answer` is called once, from any
        thread. `known_as` identifies a repetition."""
        told = answer if owner is None else self._told(owner, answer)
        try:
            asked, answered = self._admission.asks(owner, request, told)
            self._receive(peer, asked, answered, owner, known_as)
        except errors.DjinnError as error:
            told(replies.Failed.of(error))
        except Exception as error:  # the process's edge: one client's request may not end the service
            log.exception("A %s could not be handled", type(request).__name__)
            told(
                replies.Failed(code="DjinnError", message=f"The engine failed inside: {type(error).__name__}: {error}.")
            )

    def _told(self, owner: Owner, answer: Answer) -> Answer:
        def told(reply: replies.Reply) -> None:
            heard = self._admission.hears(owner, reply)
            assert heard is not None  # each request has its reply
            answer(heard)

        return told

    def sweep(self) -> None:
        """Detach the sessions of holders that have been silent for too long, and forget clients after a day."""
        now = self._clock()
        for holder in self._absent_holders():
            self._left_behind[holder] = tuple(s.name for s in self._sessions_of(holder))
            log.info("%s has gone; its sessions are detached", holder.name)
            self._engine.lose_holder(holder)
        for peer in [p for p, c in self._clients.items() if now - c.last_heard > FORGOTTEN_SECONDS]:
            self._left_behind.pop(self._clients.pop(peer).holder, None)
            self.listeners.forget(peer)

    def hearing(self, event: replies.Event) -> list[tuple[replies.Event, list[bytes]]]:
        """Return the clients that hear an event, with the event in their owner's form."""
        listening: dict[Owner, list[bytes]] = {}
        for peer in self.listeners.of(event.session):
            client = self._clients.get(peer)
            if client is not None and protocol.is_shared(type(event), client.methods):
                listening.setdefault(client.holder.person, []).append(peer)
        heard = ((self._admission.hears(owner, event), peers) for owner, peers in listening.items())
        return [(one, peers) for one, peers in heard if one is not None]

    def seen(self, peer: bytes, event: replies.Event) -> replies.Event | None:
        """Return an event in this client's form; None where it does not hear it."""
        client = self._clients.get(peer)
        if client is None or not self.listeners.hears(peer, event.session):
            return None
        shared = protocol.is_shared(type(event), client.methods)
        return self._admission.hears(client.holder.person, event) if shared else None

    def explained(self, peer: bytes, error: errors.DjinnError) -> errors.DjinnError:
        """Return why a message of this client was unreadable."""
        client = self._clients.get(peer)
        return error if client is None else protocol.explained(error, client.methods)

    def dismiss(self, peer: bytes) -> None:
        """Treat a client as gone, if known: its sessions are detached unless another speaks for its holder."""
        if peer in self._clients:
            self._dismiss(peer)

    def _receive(
        self, peer: bytes, request: ask.Request, answer: Answer, owner: Owner, known_as: RequestId | None
    ) -> None:
        if isinstance(request, ask.Hello):
            return answer(self._welcome(peer, request, owner))
        client = self._clients.get(peer)
        if client is None or client.holder.person != owner:
            raise errors.IllegalMove("The engine does not know this client: say Hello first.")
        client.last_heard = self._heard[owner] = self._clock()
        self._return(client.holder)
        if known_as is not None and known_as.again and type(request).terms.resent == "refused":
            raise errors.EngineUnavailable(STARTED_ANEW)
        protocol.require_method(type(request), client.methods, "The client")
        match request:
            case ask.Ping():
                answer(replies.Pong())
            case ask.Listen(session=session):
                self.listeners.add(peer, session)
                answer(replies.Listening(events=self.listeners.events.last))
            case ask.Unlisten(session=session):
                self.listeners.remove(peer, session)
                answer(replies.Listening())
            case ask.ReadStatistics():
                answer(replies.Statistics(statistics=self._engine.reading.statistics))
            case ask.ListSessions(first=first):
                answer(self._engine.reading.page(first))
            case ask.ReadPeople():
                self._engine.accept(request, client.holder, self._with_presence(answer))
            case ask.Note(session=session) if owner is not None and person_of(session) != owner:
                answer(replies.Noted())  # the work of a guest's notebook says nothing of its owner's
            case ask.Goodbye():
                self._dismiss(peer)
                answer(replies.Departed())
            case ask.Shutdown():
                answer(self._close(client.holder, request))
                self._shut_down()
            case _:
                self._engine.accept(request, client.holder, answer, known_as)

    def _welcome(self, peer: bytes, hello: ask.Hello, owner: Owner) -> replies.Welcome:
        self._require_this_protocol(hello)
        require_showable(hello.holder, "The name of a holder")
        require_showable(hello.user, "The name of a user")
        holder = Holder(name=hello.holder, user=owner or hello.user, notebook=hello.notebook, person=owner)
        if peer in self._clients and self._clients[peer].holder != holder:
            self._dismiss(peer)  # it spoke for another: its key has another name now
        if owner is not None and peer not in self._clients:
            self._make_room(owner)
        self._clients[peer] = ConnectedClient(
            holder=holder,
            observer=hello.observer,
            last_heard=self._clock(),
            may_return=bool(hello.token),
            methods=dict(hello.methods),
        )
        comes_from_another = hello.engine not in ("", self.engine)
        if comes_from_another:
            self._left_behind.setdefault(holder, self._engine.left_by(holder))
        self._return(holder)
        attached = tuple(session.name for session in self._sessions_of(holder))
        return replies.Welcome(
            version=__version__,
            model=self._engine.description,
            attached=attached,
            engine=self.engine,
            anew=told_of_end(self._end_before, owner is None) if comes_from_another else None,
            events=self.listeners.events.last,
            methods=tuple(protocol.method_digests().items()),
            left_out=tuple(extensions.troubles().values()) if owner is None else (),
        )

    def _make_room(self, owner: str) -> None:
        """Forget the owner's longest silent client, where there are MOST_CLIENTS. UsageError if all are present."""
        theirs = [peer for peer, client in self._clients.items() if client.holder.person == owner]
        if len(theirs) < MOST_CLIENTS:
            return
        silent = min(theirs, key=lambda peer: self._clients[peer].last_heard)
        if self._present(self._clients[silent]):
            raise errors.UsageError(
                f"{owner} has {MOST_CLIENTS} notebooks and panels at this engine, which is the limit: close some."
            )
        self._dismiss(silent)

    def _with_presence(self, answer: Answer) -> Answer:
        """Return the callback of a list of owners, which adds their presence."""

        def told(reply: replies.Reply) -> None:
            if isinstance(reply, replies.People):
                clients = [one for one in tuple(self._clients.values()) if self._present(one) and not one.observer]
                present = (one.holder.person for one in clients)
                reply = with_presence(reply, self._admitted(), self._heard, self._clock(), present)
            answer(reply)

        return told

    def _require_this_protocol(self, hello: ask.Hello) -> None:
        different = protocol.difference(hello.version, hello.protocol)
        if different is not None:
            raise errors.VersionMismatch(
                f"The client is of another version of Djinn ({different}) than the engine of "
                f"{self._engine.description.name}: end the engine with `djinn stop --force` and load again (it writes "
                "its sessions to its journal first, and they come back), or use the Djinn that started it."
            )

    def _close(self, asker: Holder, request: ask.Shutdown) -> replies.ShuttingDown:
        sessions = self._engine.reading.sessions
        names = tuple(session.name for session in sessions)
        shown = distinct_labels(names)
        others = [shown[s.name] for s in sessions if _would_suffer(s, asker, request)]
        back = self._engine.keeps_sessions and not request.forget
        if others and not request.force:
            raise errors.SessionsWouldSuffer(
                f"Sessions of others would {'be interrupted' if back else 'end for good'}: {', '.join(others)}"
                f"{' (the next load brings them back)' if back else ''}; to stop the engine all the same, add --force "
                f"(in Python force=True){', or leave out --forget' if request.forget else ''}."
            )
        unkept = tuple(session.name for session in sessions if not session.kept)
        if back and unkept and not request.force:
            raise errors.SessionsWouldSuffer(self._what_is_lost([shown[name] for name in unkept]))
        if request.forget:
            self._engine.forget_sessions()
        if back:
            kept = tuple(name for name in names if name not in unkept)
            return replies.ShuttingDown(sessions_lost=unkept, sessions_kept=kept)
        return replies.ShuttingDown(sessions_lost=names)

    def _what_is_lost(self, unkept: Sequence[str]) -> str:
        why = self._engine.reading.statistics.journal_trouble
        return (
            f"The latest of {', '.join(unkept)} is in memory alone and would be lost{f' ({why})' if why else ''}. Mend "
            "that and stop again in a moment, or lose it with --force (in Python force=True)."
        )

    def _dismiss(self, peer: bytes) -> None:
        holder = self._clients.pop(peer).holder
        self.listeners.forget(peer)
        if all(client.holder != holder for client in self._clients.values()):
            self._left_behind.pop(holder, None)
            self._engine.lose_holder(holder)

    def _return(self, holder: Holder) -> None:
        for name in self._left_behind.pop(holder, ()):
            self._engine.accept(ask.Open(session=name), holder, _log_failure)

    def _present(self, client: ConnectedClient) -> bool:
        seconds = AFAR_SILENCE_SECONDS if client.may_return else self._silence_seconds
        return self._clock() - client.last_heard <= seconds

    def _absent_holders(self) -> set[Holder]:
        known = {client.holder for client in self._clients.values()}
        present = {client.holder for client in self._clients.values() if self._present(client)}
        return known - present - self._left_behind.keys()

    def _sessions_of(self, holder: Holder) -> list[SessionDescription]:
        return [s for s in self._engine.reading.sessions if s.holder == holder.name and s.owner == holder.user]


def _would_suffer(session: SessionDescription, asker: Holder, request: ask.Shutdown) -> bool:
    """Return whether the work that stops is another's, or is to be discarded while its notebook is away."""
    return is_anothers(session, asker.name, asker.notebook) and (session.holder is not None or request.forget)


def _log_failure(reply: replies.Reply) -> None:
    if isinstance(reply, replies.Failed):
        log.info("A session could not be opened again for its returned holder: %s", reply.message)
