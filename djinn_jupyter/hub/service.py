"""The service: one address of the hub, at which a user's server exchanges its token for an admission, and the look
after the tokens. It answers every request with a message of wire/hub.py."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

import msgspec
from tornado.httpserver import HTTPServer
from tornado.iostream import IOStream
from tornado.web import Application, RequestHandler

from djinn_jupyter.errors import DjinnError, EngineUnavailable, KeyRefused
from djinn_jupyter.hub.authority import Hub
from djinn_jupyter.hub.loans import Lent, Loans
from djinn_jupyter.wire.hub import MOST_BYTES, Exchange, Loan, OfferedEngine, Refusal, decode
from djinn_jupyter.wire.keys import PublicKey, read_public, spell_public
from djinn_jupyter.wire.registry import Entry

log = logging.getLogger(__name__)

SILENT_SECONDS: Final = 30.0  # that a header, a body and the next request may take
MOST_VISITORS: Final = 256  # at once; the oldest makes room for the next

_STATUSES: Final[dict[type[DjinnError], int]] = {KeyRefused: 403, EngineUnavailable: 503}


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenExchange:
    """The parts of the exchange. `host` is the name under which users' servers reach this machine."""

    hub: Hub
    loans: Loans
    engines_key: PublicKey
    host: str
    running: Callable[[], Iterable[Entry]]

    async def exchange(self, token: str, asked: Exchange) -> Loan:
        """Admit the key of a user's server. UsageError, KeyRefused and EngineUnavailable as the parts raise them."""
        public = read_public(asked.public)
        person = self.loans.lend(token, await self.hub.user_of(token), public)
        engines = tuple(_offers(self.running(), self.host))
        return Loan(
            person=person, seconds=self.loans.seconds, engines_key=spell_public(self.engines_key), engines=engines
        )

    async def look(self) -> None:
        """Ask the hub for each token, and take back what was lent for those that it refuses."""
        await asyncio.gather(*(self._look_at(token, lent) for token, lent in self.loans.lent().items()))

    async def look_every(self, seconds: float) -> None:
        """Look again and again. A look that fails is told in the log; the next one comes."""
        while True:
            await asyncio.sleep(seconds)
            try:
                await self.look()
            except Exception:
                log.exception("The tokens could not be looked at")

    def application(self, prefix: str) -> Application:
        """Return the application that answers at the service's prefix."""
        return Application([(prefix.rstrip("/") + "/?", _ExchangeHandler, {"service": self})], log_function=_not_logged)

    async def _look_at(self, token: str, lent: Lent) -> None:
        try:
            if await self.hub.user_of(token) == lent.user:
                return
        except EngineUnavailable as error:  # the hub may start anew; the admission ends by itself
            log.warning("A token of %s could not be looked at: %s", lent.user, error)
            return
        except KeyRefused:
            pass
        self.loans.take_back(token)


class BoundedServer(HTTPServer):
    """Has at most MOST_VISITORS connections, so that silent ones do not take all descriptors."""

    def initialize(self, *given: Any, **named: Any) -> None:
        super().initialize(*given, **named)
        self._visitors: dict[IOStream, None] = {}  # the oldest first

    def handle_stream(self, stream: IOStream, address: tuple[Any, ...]) -> None:
        for oldest in list(self._visitors)[: 1 - MOST_VISITORS]:
            del self._visitors[oldest]
            oldest.close()
        self._visitors[stream] = None
        super().handle_stream(stream, address)

    def on_close(self, server_conn: Any) -> None:
        super().on_close(server_conn)
        self._visitors.pop(server_conn.stream, None)


def listen(application: Application, host: str, port: int) -> HTTPServer:
    """Serve at an address of this machine."""
    server = BoundedServer(
        application,
        max_body_size=MOST_BYTES,
        max_buffer_size=2 * MOST_BYTES,
        idle_connection_timeout=SILENT_SECONDS,
        body_timeout=SILENT_SECONDS,
    )
    server.listen(port, host)
    return server


class _ExchangeHandler(RequestHandler):
    def initialize(self, service: TokenExchange) -> None:
        self._service = service

    def get(self) -> None:
        self.write("Djinn's service of this hub. Kernels of your server use it: %djinn_load MODEL --at hub")

    async def post(self) -> None:
        kind, _, token = self.request.headers.get("Authorization", "").partition(" ")
        try:
            if kind.lower() not in ("token", "bearer"):
                raise KeyRefused("The request has no token of a JupyterHub.")
            self._answer(200, await self._service.exchange(token, decode(self.request.body, Exchange)))
        except DjinnError as error:
            self._answer(_STATUSES.get(type(error), 400), Refusal(code=error.code, message=str(error)))

    def _answer(self, status: int, answer: Loan | Refusal) -> None:
        self.set_status(status)
        self.set_header("Content-Type", "application/json")
        self.set_header("Cache-Control", "no-store")
        self.finish(msgspec.json.encode(answer))


def _offers(entries: Iterable[Entry], host: str) -> Iterable[OfferedEngine]:
    """Return the engines that listen. One that listens on all addresses is reached under the name of its machine."""
    for entry in entries:
        if entry.listens is not None:
            listens, _, port = entry.listens.removeprefix("tcp://").rpartition(":")
            everywhere = listens in ("0.0.0.0", "[::]", "*")
            yield OfferedEngine(model=entry.found.model, address=f"{host if everywhere else listens}:{port}")


def _not_logged(handler: RequestHandler) -> None:
    """Log nothing of a request; errors are logged where they are met."""
