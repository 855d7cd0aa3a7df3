"""Djinn's service of a JupyterHub. The hub's documented interface (`GET /hub/api/user`) returns the user of a token.

jupyterhub's HubAuth is not used: it needs twenty packages for one request, and caches an answer for five minutes,
during which a revoked token would still work.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
from tornado.httpclient import AsyncHTTPClient, HTTPClientError, HTTPRequest
from tornado.httpserver import HTTPServer
from tornado.iostream import IOStream
from tornado.web import Application, RequestHandler

from djinn_jupyter.errors import DjinnError, EngineUnavailable, KeyRefused, UsageError
from djinn_jupyter.wire.base import MOST_CHARACTERS
from djinn_jupyter.wire.keys import KeyFolder, PublicKey, read_public, spell_public
from djinn_jupyter.wire.people import MOST_BYTES, Exchange, Loan, OfferedEngine, Refusal, decode
from djinn_jupyter.wire.registry import Entry

ASK_SECONDS: Final = 10.0
_TOKEN: Final = re.compile(r"[!-~]{1,500}")
_REFUSALS: Final = frozenset({401, 403, 404})


class _Owner(msgspec.Struct, frozen=True):
    """The used part of the hub's answer."""

    kind: str
    name: str
    scopes: frozenset[str]


class Hub:
    """A hub at the address of its interface. A token needs one of the scopes to be exchanged."""

    def __init__(self, address: str, scopes: frozenset[str]) -> None:
        self._address, self._scopes = address.rstrip("/"), scopes

    async def user_of(self, token: str) -> str:
        """Return the name of a token's user. KeyRefused where the hub does not know it, or not for this service;
        EngineUnavailable where the hub does not answer."""
        if not _TOKEN.fullmatch(token):
            raise KeyRefused("This is no token of a JupyterHub.")
        owner = await self._owner(token)
        if owner.kind != "user":
            raise KeyRefused(f"The token is that of a {owner.kind} of the hub, not of a user.")
        if not owner.scopes & self._scopes:
            raise KeyRefused(
                f"The hub lets {owner.name} not use Djinn by this token: its roles `user` and `server` need the scope "
                f"{max(self._scopes, key=len)} (docs/jupyterhub.md)."
            )
        return owner.name

    async def _owner(self, token: str) -> _Owner:
        request = HTTPRequest(
            f"{self._address}/user",
            headers={"Authorization": f"token {token}"},
            follow_redirects=False,
            request_timeout=ASK_SECONDS,
        )
        try:
            answer = await AsyncHTTPClient().fetch(request, raise_error=False)
        except (OSError, HTTPClientError) as error:
            raise EngineUnavailable(f"The hub at {self._address} does not answer ({error}).") from None
        if answer.code in _REFUSALS:
            raise KeyRefused("The hub does not know this server's token any more: stop your server and start it again.")
        try:
            if answer.code == 200:
                return msgspec.json.decode(answer.body, type=_Owner)
        except msgspec.MsgspecError:
            pass
        raise EngineUnavailable(f"The hub at {self._address} does not say whose token it is (status {answer.code}).")


def person_of(user: str) -> str:
    """Return the person's name, unique for each user: characters not allowed in names, and `_`, are spelled `_40` by
    their UTF-8 bytes, with the prefix `u_` where the first character is one. UsageError for a name too long."""
    spelled = "".join(_spelled(character, first=not at) for at, character in enumerate(user))
    if not 0 < len(spelled) <= MOST_CHARACTERS:
        raise UsageError(
            f"The name of the hub's user {user[:40]!r} has {len(spelled)} characters as a person's; {MOST_CHARACTERS} "
            "are the most."
        )
    return spelled


def _spelled(character: str, *, first: bool) -> str:
    if character.isascii() and (character.isalnum() or (character in ".-" and not first)):
        return character
    escaped = "".join(f"_{byte:02X}" for byte in character.encode())
    return f"u_{escaped}" if first else escaped


@dataclass(frozen=True, slots=True, kw_only=True)
class Lent:
    """A key that is admitted for a token."""

    user: str
    public: PublicKey = field(repr=False)
    until: float  # seconds since the epoch


class Loans:
    """The keys of tokens. A key is admitted while one token has it; each ends `seconds` after its last renewal, also
    when this process has ended."""

    def __init__(self, keys: KeyFolder, seconds: float) -> None:
        self._keys, self.seconds = keys, seconds
        self._lent: dict[str, Lent] = {}  # by token

    def lend(self, token: str, user: str, public: PublicKey) -> str:
        """Admit a key for a token, in place of the token's earlier one, and return the person's name. UsageError where
        the person or the key is admitted otherwise."""
        person, until = person_of(user), self._keys.now() + self.seconds
        self._keys.lend(public, person, until)
        before = self._lent.get(token)
        self._lent[token] = Lent(user=user, public=public, until=until)
        if before is not None:
            self._end(before)
        return person

    def take_back(self, token: str) -> None:
        """End the admission of a token, at once."""
        lent = self._lent.pop(token, None)
        if lent is not None:
            self._end(lent)

    def lent(self) -> dict[str, Lent]:
        """Return the present admissions, by token. Ended ones are dropped, and their files removed."""
        self._keys.clear_ended()
        self._lent = {token: one for token, one in self._lent.items() if one.until > self._keys.now()}
        return dict(self._lent)

    def _end(self, lent: Lent) -> None:
        if all((one.user, one.public) != (lent.user, lent.public) for one in self._lent.values()):
            self._keys.take_back(lent.public, person_of(lent.user))


# The service: one address of the hub, at which a user's server exchanges its token for an admission, and the checks of
# the tokens. It answers every request with a message of wire/people.py.

log = logging.getLogger(__name__)

SILENT_SECONDS: Final = 30.0  # for a header, a body and the next request
MOST_VISITORS: Final = 256  # at once; the oldest makes room for the next

_STATUSES: Final[dict[type[DjinnError], int]] = {KeyRefused: 403, EngineUnavailable: 503}


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenExchange:
    """The parts of the exchange. `host` is the name by which users' servers reach this machine."""

    hub: Hub
    loans: Loans
    engines_key: PublicKey
    host: str
    running: Callable[[], Iterable[Entry]]

    async def exchange(self, token: str, asked: Exchange) -> Loan:
        """Admit the key of a user's server. Raises UsageError, KeyRefused and EngineUnavailable."""
        public = read_public(asked.public)
        person = self.loans.lend(token, await self.hub.user_of(token), public)
        engines = tuple(_offers(self.running(), self.host))
        return Loan(
            person=person, seconds=self.loans.seconds, engines_key=spell_public(self.engines_key), engines=engines
        )

    async def look(self) -> None:
        """Ask the hub for each token, and end the admissions of those that it refuses."""
        await asyncio.gather(*(self._look_at(token, lent) for token, lent in self.loans.lent().items()))

    async def look_every(self, seconds: float) -> None:
        """Check again and again. A failed check is logged; the next one follows."""
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
        except EngineUnavailable as error:  # the hub may restart; the admission ends by itself
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
    """Return the engines that listen. One that listens on all addresses is reached by the name of its machine."""
    for entry in entries:
        if entry.listens is not None:
            listens, _, port = entry.listens.removeprefix("tcp://").rpartition(":")
            everywhere = listens in ("0.0.0.0", "[::]", "*")
            yield OfferedEngine(model=entry.found.model, address=f"{host if everywhere else listens}:{port}")


def _not_logged(handler: RequestHandler) -> None:
    """Log nothing of a request; errors are logged where they occur."""
