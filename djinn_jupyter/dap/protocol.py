"""Both directions of the protocol: the client's requests as values, and the responses and events sent to it, numbered
in the order in which they are sent."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from djinn_jupyter.dap.arguments import Initialize
from djinn_jupyter.errors import DjinnError

Message = dict[str, Any]
Send = Callable[[Message], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A request of the client: its number, command and arguments."""

    number: int
    command: str
    arguments: object


def read_request(message: Message) -> Request | None:
    """Return the request that a message is, or None where it is none."""
    number, command = message.get("seq"), message.get("command")
    if message.get("type") != "request" or not isinstance(number, int) or not isinstance(command, str):
        return None
    return Request(number=number, command=command, arguments=message.get("arguments"))


class Client:
    """The editor at the other end. Every request is answered once: by `respond` or by `refuse`. `capabilities` are
    those of its initialize request."""

    def __init__(self, send: Send) -> None:
        self.capabilities = Initialize()
        self._send_message = send
        self._number = 0
        self._terminated = False

    def respond(self, request: Request, body: Mapping[str, Any] | None = None) -> None:
        self._answer(request, success=True, **({"body": dict(body)} if body else {}))

    def refuse(self, request: Request, error: DjinnError) -> None:
        """Refuse a request with the error's one sentence, in `message` for programs and in `body.error` for display."""
        sentence = " ".join(str(error).split())
        number = zlib.crc32(error.code.encode()) & 0x7FFFFFFF
        shown = {"id": number, "format": sentence, "showUser": True}
        self._answer(request, success=False, message=sentence, body={"error": shown})

    def tell(self, event: str, body: Mapping[str, Any] | None = None) -> None:
        self._send("event", event=event, **({"body": dict(body)} if body else {}))

    def write(self, text: str, category: str = "console") -> None:
        """Write text to the debug console: `stdout` for generated text, `console` for the adapter's remarks."""
        self.tell("output", {"category": category, "output": text})

    def terminated(self) -> None:
        """Send `terminated`, at most once."""
        if not self._terminated:
            self._terminated = True
            self.tell("terminated")

    # --- lines: the model's count from 1, those of some clients from 0 ----------------------------------------------

    def to_line(self, line: int) -> int:
        """Return a line of the model as the client counts it."""
        return line - self._shift

    def from_line(self, line: int) -> int:
        """Return a line of the client's as the model counts it."""
        return line + self._shift

    @property
    def _shift(self) -> int:
        return 0 if self.capabilities.lines_start_at_1 else 1

    def _answer(self, request: Request, **rest: Any) -> None:
        self._send("response", request_seq=request.number, command=request.command, **rest)

    def _send(self, kind: str, **rest: Any) -> None:
        self._number += 1
        self._send_message({"seq": self._number, "type": kind, **rest})
