"""The server's connection to one engine, of the registry or of another machine: opened, kept open, read, and ended
with a reason.

The server is an observer at the engine: it holds no session, and an engine with only observers counts as idle.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from djinn_jupyter.errors import DjinnError, EngineUnavailable, VersionMismatch
from djinn_jupyter.link.naming import holder_name, user_name
from djinn_jupyter.link.registry import is_alive, refusal_of
from djinn_jupyter.link.transport import Connection
from djinn_jupyter.remote.connection import open_connection
from djinn_jupyter.server.messages import EngineFound, EngineState, Sampled
from djinn_jupyter.settings import OPTIONAL, Identity, flag_of
from djinn_jupyter.wire.nouns import EngineStatistics, SessionDescription
from djinn_jupyter.wire.own import host_name
from djinn_jupyter.wire.registry import Entry
from djinn_jupyter.wire.replies import Event, Noted, SessionRunning, TokenSampled
from djinn_jupyter.wire.requests import Note, ReadStatistics
from djinn_jupyter.wire.sessions import listed

log = logging.getLogger(__name__)

OPEN_SECONDS = 10.0
TEXTS_KEPT = 1000
AGAIN_SECONDS = 5.0  # until an engine that lives but did not answer is tried again
Heard = Callable[["EngineLink", Event], None]


def load_words(identity: Identity, at: str | None = None, key: str | None = None) -> str:
    """Return the arguments of `%djinn_load` that select this engine."""
    way = [f"--{name} {_quoted(value)}" for name, value in (("at", at), ("key", key)) if value]
    named = {name: getattr(identity, name) for name in OPTIONAL}
    options = [f"{flag_of(name)} {_quoted(value)}" for name, value in named.items() if value]
    ranks = [f"--tensor-parallel {identity.tensor_parallel}"] if identity.tensor_parallel > 1 else []
    random = [f"--random-weights --random-seed {identity.random_seed}"] if identity.random_weights else []
    copy = [f"--copy {identity.copy}"] if identity.copy > 1 else []
    return " ".join([_quoted(identity.model), *options, *ranks, *random, *copy, *way])


def _quoted(text: str) -> str:
    """Quote text as one word of a magic's line; magics strip a pair of quotes and know no escapes."""
    return text if re.fullmatch(r"[^\s\"'#]+", text) else f"'{text}'" if '"' in text else f'"{text}"'


class EngineLink:
    """A connection to one engine. `run` keeps it until the engine's process has ended. `heard` is called for every
    event but TokenSampled, which is collected for `take_sampled`."""

    def __init__(self, entry: Entry, *, heard: Heard) -> None:
        self.entry, self.id = entry, entry.id
        self._heard = heard
        self._connection: Connection | None = None
        self._state: EngineState = "connecting"
        self._reason: str | None = None
        self._settled = asyncio.Event()
        self._sampled: dict[str, _Sampling] = {}
        self._starting: dict[str, set[asyncio.Future[None]]] = {}
        self._reading: asyncio.Task[None] | None = None
        self.sessions: tuple[SessionDescription, ...] = ()
        self.statistics: EngineStatistics | None = None
        self.read_at = 0.0  # when `sessions` were read, in seconds since the epoch

    @property
    def ready(self) -> bool:
        return self._state == "ready"

    def found(self) -> EngineFound:
        entry = self.entry
        return EngineFound(
            id=self.id,
            model=str(entry.identity),
            load=load_words(entry.identity, entry.place if entry.is_afar else None, entry.key),
            pid=None if entry.is_afar else entry.pid,
            host=entry.place if entry.is_afar else entry.host,
            version=entry.version,
            started=entry.started,
            state=self._state,
            reason=self._reason,
            description=self._connection.welcome.model if self._connection and self.ready else None,
            down_since=self._connection.down_since if self._connection and self.ready else None,
        )

    async def run(self) -> str:
        """Keep the connection until the engine has ended; return the reason as a sentence."""
        refusal = _refusal(self.entry)
        if refusal is not None:
            self._become("refused", refusal)
            await asyncio.Event().wait()  # another version or another host: this is permanent
        while True:
            try:
                reason = await self._keep()
            except VersionMismatch as error:
                self._become("refused", str(error))
                await asyncio.Event().wait()
            except DjinnError as error:
                reason = str(error)
            if not is_alive(self.entry):
                return reason
            self._become("refused", reason)
            await asyncio.sleep(AGAIN_SECONDS)

    async def close(self) -> None:
        if self._connection is not None:
            await self._connection.close()

    async def connection(self) -> Connection:
        """Return the open connection, waiting while it is opened. EngineUnavailable, with the reason, if it failed."""
        await self._settled.wait()
        if self._connection is None or not self.ready:
            raise EngineUnavailable(self._reason or "The connection to the engine is closed.")
        return self._connection

    async def read(self, seconds: float) -> None:
        """Update `sessions` and `statistics`, waiting at most `seconds`; a slower reading goes on in the background."""
        if self._reading is None and self.ready:
            self._reading = asyncio.ensure_future(self._read())
            self._reading.add_done_callback(self._have_read)
        if self._reading is not None:
            await asyncio.wait((self._reading,), timeout=seconds)

    def take_sampled(self) -> dict[str, Sampled]:
        """Return the tokens sampled since the last call, by session."""
        sampled, self._sampled = self._sampled, {}
        return {session: sampling.read() for session, sampling in sampled.items()}

    def next_start(self, session: str) -> asyncio.Future[None]:
        """Return a future done at the session's next SessionRunning event. A caller that stops waiting cancels it."""
        start: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._starting.setdefault(session, set()).add(start)
        start.add_done_callback(lambda done: self._starting.get(session, set()).discard(done))
        return start

    def note(self, note: Note) -> None:
        """Send a note to the engine, which decides what follows. A refusal is only logged."""
        if self._connection is not None and self.ready:
            self._connection.post(note, self._noted)

    async def _keep(self) -> str:
        connection = await open_connection(
            self.entry, holder=holder_name(), user=user_name(), observer=True, timeout=OPEN_SECONDS
        )
        try:
            await connection.listen("", self._hear)
            self._connection = connection
            self._become("ready", None)
            return await connection.ended()
        finally:
            self._connection = None
            self.sessions, self.statistics = (), None
            await connection.close()

    def _become(self, state: EngineState, reason: str | None) -> None:
        self._state, self._reason = state, reason
        self._settled.set()

    async def _read(self) -> None:
        connection = await self.connection()
        found, read = await asyncio.gather(_sessions(connection), connection.ask(ReadStatistics()))
        self.sessions, self.read_at = found, time.time()
        self.statistics = read.statistics

    def _have_read(self, reading: asyncio.Task[None]) -> None:
        self._reading = None
        if not reading.cancelled() and isinstance(reading.exception(), EngineUnavailable):
            return  # `run` gets the same error and reports it
        if not reading.cancelled() and reading.exception() is not None:
            log.error("%s could not be read", self.id, exc_info=reading.exception())

    def _hear(self, event: Event) -> None:
        if isinstance(event, TokenSampled):
            self._sampled.setdefault(event.session, _Sampling()).add(event)
            return
        if isinstance(event, SessionRunning):
            for start in self._starting.pop(event.session, ()):
                if not start.done():
                    start.set_result(None)
        self._heard(self, event)

    def _noted(self, outcome: Noted | DjinnError) -> None:
        if isinstance(outcome, DjinnError):
            log.debug("%s refused a note, its session may be closed: %s", self.id, outcome)


async def _sessions(connection: Connection) -> tuple[SessionDescription, ...]:
    """Return all sessions."""
    pages = listed()
    try:
        request = next(pages)
        while True:
            request = pages.send(await connection.ask(request))
    except StopIteration as end:
        sessions: tuple[SessionDescription, ...] = end.value
        return sessions


@dataclass(slots=True)
class _Sampling:
    """The tokens of one session between two readings. The texts are bounded, as no browser may be reading them."""

    count: int = 0
    step: int = 0
    texts: deque[str] = field(default_factory=lambda: deque(maxlen=TEXTS_KEPT))

    def add(self, event: TokenSampled) -> None:
        self.count, self.step = self.count + 1, event.step
        self.texts.append(event.text)

    def read(self) -> Sampled:
        return Sampled(count=self.count, step=self.step, text="".join(self.texts))


def _refusal(entry: Entry) -> str | None:
    """Return the reason to refuse this engine by its entry alone (another host or version), or None."""
    if entry.host != host_name():
        return f"The engine of {entry.identity} runs on {entry.host}; open a Jupyter server there to see its sessions."
    return refusal_of(entry)
