"""The way in, for any thread: a request is answered by a worker or posted to the engine's thread."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from djinn_jupyter.engine.requests.extents import require_extents
from djinn_jupyter.engine.requests.stateless import StatelessRequest, StatelessRequests
from djinn_jupyter.engine.scheduling.mailbox import Departure, Holder, Mailbox, QueuedRequest, TextRead
from djinn_jupyter.engine.scheduling.tokenizing import PendingTokens
from djinn_jupyter.engine.session.answered import RequestId
from djinn_jupyter.engine.system.faults import Faults
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.codec import as_read
from djinn_jupyter.wire.replies import Reply


class Intake:
    """`extents` are how long lists may be by what bounds them."""

    def __init__(
        self, mailbox: Mailbox, stateless: StatelessRequests, faults: Faults, extents: Mapping[str, int]
    ) -> None:
        self._mailbox, self._stateless, self._faults, self.extents = mailbox, stateless, faults, extents

    def submit(self, request: ask.Request, holder: Holder, reply: Callable[[Reply], None]) -> None:
        """Take a request of this process, checked as if it had come over the wire."""
        try:
            request = as_read(request)
        except Exception as error:  # noqa: BLE001  the request's edge
            return reply(self._faults.reply_to(error))
        self.accept(request, holder, reply)

    def accept(
        self,
        request: ask.Request,
        holder: Holder,
        reply: Callable[[Reply], None],
        known_as: RequestId | None = None,
    ) -> None:
        """Take a request that was read off the wire."""
        try:
            require_extents(request, self.extents["positions"])
            if isinstance(request, StatelessRequest):
                self._stateless.answer_elsewhere(request, holder.person, reply)
                return
            tokens = self._begin_tokens(request) if isinstance(request, ask.Run) else None
        except Exception as error:  # noqa: BLE001  the request's edge
            reply(self._faults.reply_to(error))
        else:
            self._mailbox.post(
                QueuedRequest(request=request, holder=holder, reply=reply, tokens=tokens, known_as=known_as)
            )

    def depart(self, holder: Holder) -> None:
        """Post that the holder has gone; its sessions stay, detached."""
        self._mailbox.post(Departure(holder=holder))

    def _begin_tokens(self, request: ask.Run) -> PendingTokens | None:
        def post() -> None:
            self._mailbox.post(TextRead(session=request.session))

        return self._stateless.begin_tokens(request, post)
