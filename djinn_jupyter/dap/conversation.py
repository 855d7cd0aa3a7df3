"""The adapter's outgoing messages: responses, refusals and events, numbered in the order in which they are sent."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from djinn_jupyter.errors import DjinnError

Say = Callable[[dict[str, Any]], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A request of the client: its number, command and arguments."""

    number: int
    command: str
    arguments: object


class Conversation:
    """Sends numbered messages. Every request is answered once: by `respond` or by `refuse`."""

    def __init__(self, say: Say) -> None:
        self._say = say
        self._number = 0

    def respond(self, asked: Asked, body: Mapping[str, Any] | None = None) -> None:
        self._answer(asked, success=True, **({"body": dict(body)} if body else {}))

    def refuse(self, asked: Asked, error: DjinnError) -> None:
        """Refuse a request with the error's one sentence, in `message` for programs and in `body.error` for display."""
        sentence = " ".join(str(error).split())
        number = zlib.crc32(error.code.encode()) & 0x7FFFFFFF
        shown = {"id": number, "format": sentence, "showUser": True}
        self._answer(asked, success=False, message=sentence, body={"error": shown})

    def tell(self, event: str, body: Mapping[str, Any] | None = None) -> None:
        self._send("event", event=event, **({"body": dict(body)} if body else {}))

    def write(self, text: str, category: str = "console") -> None:
        """Write text to the debug console: `stdout` for generated text, `console` for the adapter's remarks."""
        self.tell("output", {"category": category, "output": text})

    def _answer(self, asked: Asked, **rest: Any) -> None:
        self._send("response", request_seq=asked.number, command=asked.command, **rest)

    def _send(self, kind: str, **rest: Any) -> None:
        self._number += 1
        self._say({"seq": self._number, "type": kind, **rest})
