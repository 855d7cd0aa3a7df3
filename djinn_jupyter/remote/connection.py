"""A connection over a network. A lost one is replaced: the client says Hello again by its token, hears the events that
it missed, and sends what was not answered again, which the engine does once, also one that was started anew. Large
messages cross in pieces, so that others need not wait for them, an interrupt cancels them, and a replaced connection
continues them."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Final, Self

import msgspec
import zmq

from djinn_jupyter.errors import DjinnError, EngineError, EngineUnavailable
from djinn_jupyter.link.io_thread import SoFar, Way
from djinn_jupyter.link.registry import is_alive
from djinn_jupyter.link.transport import AnsweredBy, Connection, Heard, LossHeard, Sent, checked, ended_sentence
from djinn_jupyter.remote.addresses import as_told
from djinn_jupyter.remote.handshake import ATTEMPTS, RemoteSocket, Unmet
from djinn_jupyter.remote.large_messages import Arrival, LargeTransfer, TransferRate, Upload
from djinn_jupyter.remote.route import Route, route_to
from djinn_jupyter.wire import codec
from djinn_jupyter.wire.pieces import Assemble, DropPieces, InPieces, PutPiece, is_large
from djinn_jupyter.wire.registry import Entry
from djinn_jupyter.wire.replies import Event, EventsMissed, Listening, Reply, Welcome
from djinn_jupyter.wire.requests import Hello, Listen, Ping, RequestBase

log = logging.getLogger(__name__)

AWAY_SECONDS = 600.0  # as long as the engine keeps the replies to a client that it does not hear (`KeptReplies`)
GREETING_SECONDS = 5.0  # until Hello is sent on another connection
DOWN_SECONDS: Final = 2.0  # a shorter loss is not reported
GIVEN_UP = "The reply was given up on its way; ask for it again."
TAKEN_BACK: Final = "The request was taken back on its way, and nothing of it was done; ask again."


async def open_connection(entry: Entry, **given: Any) -> Connection:
    """Connect to an engine and send Hello (`Connection.open`)."""
    return await (RemoteConnection if entry.is_afar else Connection).open(entry, **given)


class ConnectionWatch:
    """Listeners that show a loss of the connection. Called in the event loop."""

    def __init__(self) -> None:
        self._watchers: list[LossHeard] = []
        self._waiting: asyncio.TimerHandle | None = None
        self._told: float | None = None

    def add(self, heard: LossHeard) -> None:
        self._watchers.append(heard)
        if self._told is not None:
            heard(self._told)

    def remove(self, heard: LossHeard) -> None:
        if heard in self._watchers:
            self._watchers.remove(heard)

    def lost(self, since: float) -> None:
        """Report that the connection is down if it is not back in DOWN_SECONDS."""
        self._waiting = asyncio.get_running_loop().call_later(DOWN_SECONDS, self._tell, since)

    def back(self) -> None:
        """Report that the connection is back, if its loss was reported."""
        self.close()
        if self._told is not None:
            self._tell(None)

    def close(self) -> None:
        """Report no loss any more."""
        if self._waiting is not None:
            self._waiting.cancel()

    def _tell(self, since: float | None) -> None:
        self._told = since
        for heard in tuple(self._watchers):
            heard(since)


class RemoteConnection(Connection):
    """`_large` are the requests with a large message, by number: the transfer of the request or of its reply, None
    between the two. Replies to those `_given_up` are not read."""

    _socket: RemoteSocket

    def __init__(self, entry: Entry, hello: Hello, route: Route) -> None:
        self._route, self._watch_of_loss = route, ConnectionWatch()
        self._large: dict[int, LargeTransfer | None] = {}
        self._given_up: set[int] = set()
        self._rates: dict[Way, TransferRate] = {"received": TransferRate(), "sent": TransferRate()}
        self._latest_event = 0
        super().__init__(entry, hello)

    @classmethod
    async def _opened(cls, entry: Entry, hello: Hello, timeout: float) -> Self:
        route = route_to(entry)
        await route.open()
        hello = msgspec.structs.replace(hello, token=secrets.token_urlsafe(24))
        for left in reversed(range(ATTEMPTS)):
            try:
                return await cls(entry, hello, route)._say_hello(timeout)
            except Unmet as unmet:
                if not left or unmet.breach is None:
                    raise unmet.breach or unmet.why from None
        raise AssertionError  # the last attempt has returned or raised

    async def _greeted(self) -> Welcome:
        """Send Hello. Raises Unmet where another attempt may succeed."""
        try:
            welcome = await super()._greeted()
        except EngineUnavailable as error:
            refused = EngineUnavailable(self._route.refusal) if self._route.refusal else self._socket.refusal()
            if refused is not None:
                raise refused from None
            raise Unmet(await self._socket.breach(), error) from None
        self.entry, self._latest_event = as_told(self.entry, welcome.model), welcome.events
        return welcome

    def watch_connection(self, heard: LossHeard) -> Callable[[], None]:
        self._watch_of_loss.add(heard)
        return lambda: self._watch_of_loss.remove(heard)

    @property
    def progress(self) -> SoFar | None:
        return next((one.progress for one in tuple(self._large.values()) if one is not None), None)

    def give_up(self, number: int) -> None:
        if isinstance(self._large.get(number), Arrival):
            self._end_large(number, EngineError(GIVEN_UP))
        elif not self.take_back(number) and number in self._pending:
            self._given_up.add(number)

    def take_back(self, number: int) -> bool:
        is_being_sent = isinstance(self._large.get(number), Upload)
        if is_being_sent:
            self._end_large(number, EngineError(TAKEN_BACK))
        return is_being_sent

    def hear(self, session: str, heard: Heard, answered: AnsweredBy[Listening]) -> Callable[[], None]:
        def listening(outcome: Listening | DjinnError) -> None:
            if isinstance(outcome, Listening):
                self._latest_event = max(self._latest_event, outcome.events)
            answered(outcome)

        return super().hear(session, heard, listening)

    async def close(self) -> None:
        await super().close()
        self._route.close()

    def _connected(self, *, patient: bool = False) -> RemoteSocket:
        return RemoteSocket(self._context, self._route.entry, self._take, patient=patient)

    def _begin(self, number: int, request: RequestBase[Any], frames: list[codec.WireFrame]) -> None:
        if is_large(frames) and not isinstance(request, PutPiece):
            self._large[number] = self._upload(number, frames)
        if self.down_since is None:
            self._send_pending(number, frames)

    def _send_pending(self, number: int, frames: list[codec.WireFrame]) -> None:
        """Send a request, perhaps again on another connection. The pieces of large messages are sent again by
        themselves."""
        transfer = self._large.get(number)
        if number not in self._large:
            self._send(frames)
        elif transfer is None:
            self._assemble(number)
        elif not transfer.begun:
            transfer.begin()

    def _send(self, frames: list[codec.WireFrame]) -> bool:
        super()._send(frames)  # an engine that refused the key has closed its end, which the socket shows
        return True

    def _upload(self, number: int, frames: list[codec.WireFrame]) -> Upload:
        return Upload(number, frames, post=self.post, rate=self._rates["sent"], ended=partial(self._end_large, number))

    def _assemble(self, number: int) -> None:
        self._send(codec.encode_checked(number, Assemble()))

    def _receive(self, number: int, told: InPieces) -> None:
        """Read the reply to a request in pieces."""
        self._large[number] = arrival = Arrival(
            number, told.sizes, post=self.post, rate=self._rates["received"], ended=partial(self._end_large, number)
        )
        if number in self._given_up:
            self._end_large(number, EngineError(GIVEN_UP))
        else:
            arrival.begin()

    def _end_large(self, number: int, outcome: list[codec.WireFrame] | DjinnError) -> None:
        """End a transfer, and have the engine let go of its pieces, unless they are a request to be executed."""
        transfer = self._large[number]
        assert transfer is not None
        transfer.give_up()
        self.latest, self._large[number] = transfer.progress, None
        if isinstance(transfer, Upload) and not isinstance(outcome, DjinnError):
            return self._assemble(number)
        self.post(DropPieces(of=number), lambda dropped: None)
        if isinstance(outcome, DjinnError):
            self._settle(number, outcome)
        else:
            self._answer(outcome)

    def _settle(self, number: int | None, outcome: Reply | DjinnError) -> None:
        if number is not None and (transfer := self._large.pop(number, None)) is not None:
            transfer.give_up()
        if isinstance(outcome, InPieces) and number is not None and number in self._pending:
            return self._receive(number, outcome)
        self._given_up -= {number}
        super()._settle(number, outcome)

    def _hear(self, event: codec.Envelope[Event]) -> None:
        self._latest_event = max(self._latest_event, event.id)
        super()._hear(event)

    def _lose(self, sentence: str) -> None:
        self._watch_of_loss.close()
        self._give_up_transfers()
        self._large.clear()
        super()._lose(sentence)

    def _give_up_transfers(self) -> None:
        for transfer in self._large.values():
            if transfer is not None:
                transfer.give_up()

    async def _watch(self) -> None:
        """Wait until the connection is lost, and replace it where that is possible."""
        await self._socket.over.wait()
        while hasattr(self, "welcome") and self._lost is None:
            await self._come_back()
            await self._socket.over.wait()
        if self._lost is None:
            self._lose(f"{self._named} closed the connection; load it again.")

    async def _come_back(self) -> None:
        """Send Hello on new connections until one is answered, then send all unanswered requests; without one it is
        lost."""
        self.down_since = time.time()
        self._watch_of_loss.lost(self.down_since)
        log.info("The line to %s is down", self.entry.commands)
        try:
            async with asyncio.timeout(AWAY_SECONDS):
                while not await self._greeted_again():
                    await asyncio.sleep(self._route.again_seconds)
        except TimeoutError:
            self._lose(f"{self._named} could not be reached for {AWAY_SECONDS / 60:.0f} minutes; load it again.")
        except DjinnError as error:
            self._lose(str(error))
        else:
            self._go_on()

    async def _greeted_again(self) -> bool:
        """Send Hello on a new connection; False without an answer. EngineUnavailable if none can come."""
        if not is_alive(self.entry):
            raise EngineUnavailable(ended_sentence(self.entry))
        self._socket.close()
        try:
            await self._route.mend()
            self._socket = self._connected(patient=True)
        except (OSError, zmq.ZMQError, EngineUnavailable) as error:  # perhaps for want of descriptors, or of a login
            log.info("No line to %s can be opened: %s", self.entry.commands, error)
            return False
        answer, number = self._greet()
        lost = asyncio.ensure_future(self._socket.over.wait())
        try:
            await asyncio.wait((answer, lost), timeout=GREETING_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        finally:
            lost.cancel()
        self._pending.pop(number, None)
        if self._socket.refused:
            raise self._socket.refusal() or EngineUnavailable(f"{self._named} closed the connection.")
        if not answer.done() and self._route.refusal:
            raise EngineUnavailable(self._route.refusal)
        if not answer.done():
            return False
        self._meet(answer.result())
        return True

    def _greet(self) -> tuple[asyncio.Future[Welcome | DjinnError], int]:
        self._number += 1
        answer: asyncio.Future[Welcome | DjinnError] = asyncio.get_running_loop().create_future()
        hello = msgspec.structs.replace(self._hello, heard=self._latest_event, engine=self.welcome.engine)
        self._pending[self._number] = Sent([], checked(hello, answer.set_result))
        self._send(codec.encode_checked(self._number, hello))
        return answer, self._number

    def _meet(self, welcome: Welcome | DjinnError) -> None:
        """Continue with the engine that answered Hello, or with its successor, which has its sessions."""
        if isinstance(welcome, DjinnError):
            raise welcome
        earlier, self.welcome = self.welcome, welcome
        if welcome.engine == earlier.engine:
            return
        if (welcome.model.name, welcome.model.revision) != (earlier.model.name, earlier.model.revision):
            raise EngineUnavailable(f"{self._named} serves {welcome.model.name} now; load the model again.")
        if welcome.anew is not None:
            log.warning("%s was started anew, and its sessions came back: %s", self._named, welcome.anew)
        self._latest_event = welcome.events
        unanswered, self._pending = self._pending, {}
        for session in self._subscriptions.sessions:
            self.post(Listen(session=session), lambda outcome: None)
        self._pending |= unanswered  # sent after these
        self._give_up_transfers()  # the new engine has nothing of large messages
        large = {number: unanswered[number].frames for number in self._large}
        self._large = {number: self._upload(number, frames) for number, frames in large.items() if is_large(frames)}
        self._subscriptions.hand_out(EventsMissed(session=""))

    def _go_on(self) -> None:
        self.entry = self._route.reached(self.entry)
        log.info("The line to %s is back", self.entry.commands)
        self.down_since, self._heard = None, asyncio.get_running_loop().time()
        for rate in self._rates.values():
            rate.begin(time.monotonic())  # the time without a connection says nothing about its rate
        self._watch_of_loss.back()
        for number, sent in tuple(self._pending.items()):
            self._send_pending(number, sent.frames)

    def _ping(self) -> None:
        asked = time.monotonic()
        unanswered = (number for number in self._pending if not isinstance(self._large.get(number), Arrival))
        ping = Ping(answered=min(unanswered, default=self._number + 1) - 1)
        self.post(ping, lambda outcome: self._note_round_trip(time.monotonic() - asked))

    def _note_round_trip(self, seconds: float) -> None:
        for rate in self._rates.values():
            rate.note_round_trip(seconds)
