"""The server's connection to one engine of the registry: opened, kept, read, and ended with the reason why.

The server is an observer at the engine: it holds no session, and an engine that only servers look at counts as idle.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from djinn_jupyter._version import __version__
from djinn_jupyter.client.line import expect
from djinn_jupyter.client.naming import holder_name, user_name
from djinn_jupyter.client.registry import is_alive
from djinn_jupyter.client.transport import Connection
from djinn_jupyter.errors import DjinnError, EngineUnavailable, VersionMismatch
from djinn_jupyter.server.messages import EngineFound, EngineState, Sampled
from djinn_jupyter.wire.host import host_name
from djinn_jupyter.wire.nouns import EngineStatistics, SessionDescription
from djinn_jupyter.wire.registry import Entry, Identity
from djinn_jupyter.wire.replies import Event, Reply, SessionRunning, Sessions, Statistics, TokenSampled
from djinn_jupyter.wire.requests import ListSessions, Note, ReadStatistics

log = logging.getLogger(__name__)

OPEN_SECONDS = 10.0
TEXTS_KEPT = 1000
AGAIN_SECONDS = 5.0  # until an engine that lives but did not answer is tried again
Heard = Callable[["EngineLink", Event], None]


def engine_id(entry: Entry) -> str:
    """Names an engine in addresses: readable, and another one for each process."""
    return f"{entry.identity.slug()}-{entry.pid}"


def load_words(identity: Identity) -> str:
    """What `%djinn_load` is given to mean this engine."""
    named = {"--revision": identity.revision, "--dtype": identity.dtype, "--device": identity.device}
    named["--attn"] = identity.attention
    options = [f"{option} {_quoted(value)}" for option, value in named.items() if value]
    random = [f"--random-weights --random-seed {identity.random_seed}"] if identity.random_weights else []
    return " ".join([_quoted(identity.model), *options, *random])


def _quoted(text: str) -> str:
    """As one word of a magic's line, which takes a pair of quotes off and knows no escapes."""
    return text if re.fullmatch(r"[^\s\"'#]+", text) else f"'{text}'" if '"' in text else f'"{text}"'


class EngineLink:
    """`run` keeps the connection until the engine's process has ended. `heard` is called for every event but
    TokenSampled, which is gathered for `take_sampled`."""

    def __init__(self, entry: Entry, *, heard: Heard) -> None:
        self.entry, self.id = entry, engine_id(entry)
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
            load=load_words(entry.identity),
            pid=entry.pid,
            host=entry.host,
            version=entry.version,
            started=entry.started,
            state=self._state,
            reason=self._reason,
            description=self._connection.welcome.model if self._connection and self.ready else None,
        )

    async def run(self) -> str:
        """Returns when the engine has ended, with the sentence that says why."""
        refusal = _refusal(self.entry)
        if refusal is not None:
            self._become("refused", refusal)
            await asyncio.Event().wait()  # another version, another host: nothing will change it
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
        """The open connection; waits while it is being opened. EngineUnavailable says why there is none."""
        await self._settled.wait()
        if self._connection is None or not self.ready:
            raise EngineUnavailable(self._reason or "The connection to the engine is closed.")
        return self._connection

    async def read(self, seconds: float) -> None:
        """Bring `sessions` and `statistics` up to date. An engine that takes longer is read on the next occasion."""
        if self._reading is None and self.ready:
            self._reading = asyncio.ensure_future(self._read())
            self._reading.add_done_callback(self._have_read)
        if self._reading is not None:
            await asyncio.wait((self._reading,), timeout=seconds)

    def take_sampled(self) -> dict[str, Sampled]:
        """What was sampled since this was called last."""
        sampled, self._sampled = self._sampled, {}
        return {session: sampling.read() for session, sampling in sampled.items()}

    def next_start(self, session: str) -> asyncio.Future[None]:
        """Done when the session is next heard to run. To be cancelled by who waits no more."""
        start: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._starting.setdefault(session, set()).add(start)
        start.add_done_callback(lambda done: self._starting.get(session, set()).discard(done))
        return start

    def note(self, note: Note) -> None:
        """Tell the engine, which decides what follows. A refusal is nobody's concern."""
        if self._connection is not None and self.ready:
            self._connection.post(note, self._noted)

    async def _keep(self) -> str:
        connection = await Connection.open(
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
        listed, read = await asyncio.gather(connection.ask(ListSessions()), connection.ask(ReadStatistics()))
        self.sessions, self.read_at = expect(listed, Sessions).sessions, time.time()
        self.statistics = expect(read, Statistics).statistics

    def _have_read(self, reading: asyncio.Task[None]) -> None:
        self._reading = None
        if not reading.cancelled() and isinstance(reading.exception(), EngineUnavailable):
            return  # `run` learns it too, and says it
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

    def _noted(self, outcome: Reply | DjinnError) -> None:
        if isinstance(outcome, DjinnError):
            log.debug("%s refused a note, its session may be closed: %s", self.id, outcome)


@dataclass(slots=True)
class _Sampling:
    """The tokens of one session between two readings. Nobody may be reading, so the texts are bounded."""

    count: int = 0
    step: int = 0
    texts: deque[str] = field(default_factory=lambda: deque(maxlen=TEXTS_KEPT))

    def add(self, event: TokenSampled) -> None:
        self.count, self.step = self.count + 1, event.step
        self.texts.append(event.text)

    def read(self) -> Sampled:
        return Sampled(count=self.count, step=self.step, text="".join(self.texts))


def _refusal(entry: Entry) -> str | None:
    """Why this engine cannot be spoken to, where its entry says so already."""
    if entry.host != host_name():
        return f"The engine of {entry.identity} runs on {entry.host}; open a Jupyter server there to see its sessions."
    if entry.version != __version__:
        return (
            f"The engine of {entry.identity} runs djinn-jupyter {entry.version}, this server {__version__}: "
            "stop it with `djinn stop --force` and load the model again."
        )
    return None
