"""An engine as its service needs it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from djinn_jupyter.engine.scheduling.mailbox import Holder
from djinn_jupyter.engine.session.answered import RequestId
from djinn_jupyter.wire.access import Access
from djinn_jupyter.wire.nouns import EngineStatistics, ModelDescription, SessionDescription
from djinn_jupyter.wire.replies import Reply, Sessions
from djinn_jupyter.wire.requests import Request

Answer = Callable[[Reply], None]


class PublishedState(Protocol):
    @property
    def statistics(self) -> EngineStatistics: ...
    @property
    def sessions(self) -> tuple[SessionDescription, ...]: ...
    def page(self, first: int) -> Sessions: ...


class Served(Protocol):
    """An engine as the client table needs it; every part may be used from any thread."""

    @property
    def description(self) -> ModelDescription: ...
    @property
    def reading(self) -> PublishedState: ...
    @property
    def keeps_sessions(self) -> bool: ...
    def access(self, session: str, person: str) -> Access | None: ...
    def forget_sessions(self) -> None: ...
    def accept(self, request: Request, holder: Holder, reply: Answer, known_as: RequestId | None = None) -> None: ...
    def left_by(self, holder: Holder) -> tuple[str, ...]: ...
    def depart(self, holder: Holder) -> None: ...
