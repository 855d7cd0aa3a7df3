from __future__ import annotations

from djinn_jupyter.wire import kinds
from djinn_jupyter.wire import requests as ask
from tests.engine.desk import Desk

ANSWERED_BEFORE = {  # by the client table, a worker or the service
    *(ask.Hello, ask.Goodbye, ask.Ping, ask.Listen, ask.Unlisten, ask.ReadStatistics, ask.ListSessions, ask.Shutdown),
    *(ask.ListModules, ask.Tokenize, ask.Detokenize, ask.ListCheckpoints, ask.DropCheckpoint),
    *(ask.ReadPiece, ask.DropPieces, ask.PutPiece, ask.Assemble),
}


def test_every_request_has_a_handler_or_is_answered_before_any(llama: Desk) -> None:
    assert llama.engine.handlers.requests == {*kinds.known().requests} - ANSWERED_BEFORE
