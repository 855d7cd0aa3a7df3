"""The engine double's moves: a session waits where the other double looks for it (`moves`, which a test shares)."""

from __future__ import annotations

from functools import cached_property
from typing import Any

from djinn_jupyter.errors import UsageError
from djinn_jupyter.wire import nouns, replies, requests
from tests.magics.swept import PROVENANCE


class Moved:
    sessions: dict[str, nouns.SessionDescription]
    stops: dict[str, replies.Paused | None]

    @cached_property
    def moves(self) -> dict[str, tuple[nouns.SessionDescription, replies.Paused | None]]:
        return {}

    def _readprovenance(self, _: Any) -> replies.Reply:
        return replies.ProvenanceRead(provenance=PROVENANCE)

    def _sendaway(self, request: requests.SendAway) -> replies.Reply:
        self.moves[request.move] = self.sessions[request.session], self.stops.get(request.session)
        return replies.SentAway(bytes_written=1)

    def _takein(self, request: requests.TakeIn) -> replies.Reply:
        if request.session in self.sessions:
            raise UsageError(f"There is a session {request.session!r} already.")
        self.sessions[request.session], self.stops[request.session] = self.moves.pop(request.move)
        return replies.Opened(session=self.sessions[request.session], created=True)

    def _settlemove(self, request: requests.SettleMove) -> replies.Reply:
        if request.move in self.moves:
            return replies.MoveSettled(stayed=True)
        del self.sessions[request.session]
        return replies.MoveSettled(stayed=False)
