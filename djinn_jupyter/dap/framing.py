"""Messages of the Debug Adapter Protocol as bytes: a Content-Length header, then JSON. Knows no commands."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from djinn_jupyter.errors import MalformedMessage, MessageTooLarge

MESSAGE_BYTES = 64 * 2**20
HEADER_BYTES = 4096
_END = b"\r\n\r\n"
_FIELDS = (b"content-length:", b"content-type:")


def encode(message: Mapping[str, Any]) -> bytes:
    text = json.dumps(message, ensure_ascii=False, allow_nan=False)
    body = text.encode(errors="backslashreplace")  # a lone surrogate, which a client can send, as JSON's own escape
    return b"Content-Length: %d%s%s" % (len(body), _END, body)


class Unframer:
    """Split bytes into messages of at most `most` bytes. `lost` is set by an invalid header: the start of the next
    message is then unknown."""

    def __init__(self) -> None:
        self._bytes = bytearray()
        self._length: int | None = None
        self.most = MESSAGE_BYTES
        self.lost = False

    def feed(self, more: bytes) -> None:
        self._bytes += more

    def take(self) -> dict[str, Any] | None:
        """Return the next whole message; None when more bytes are needed. MalformedMessage for a message that is not a
        JSON object, after which the next may be taken. MalformedMessage or MessageTooLarge for an invalid header, after
        which `lost` is set and no more may be taken."""
        if self._length is None and not self._take_header():
            return None
        assert self._length is not None
        if len(self._bytes) < self._length:
            return None
        body = bytes(self._bytes[: self._length])
        del self._bytes[: self._length]
        self._length = None
        try:
            message = json.loads(body)
        except (ValueError, RecursionError):
            raise MalformedMessage(f"A message of {len(body)} bytes is no JSON.") from None
        if not isinstance(message, dict):
            raise MalformedMessage("A message is a JSON object.")
        return message

    def _take_header(self) -> bool:
        end = self._bytes.find(_END)
        size = len(self._bytes) if end < 0 else end
        if size > HEADER_BYTES or not _begins_header(bytes(self._bytes[:size])):
            raise self._lose(MalformedMessage("What came is no header of the Debug Adapter Protocol."))
        if end < 0:
            return False
        header = bytes(self._bytes[:end]).decode("ascii", errors="replace")
        del self._bytes[: end + len(_END)]
        self._length = self._length_in(header)
        return True

    def _length_in(self, header: str) -> int:
        fields = {
            name.strip().lower(): value.strip() for name, _, value in (f.partition(":") for f in header.split("\r\n"))
        }
        given = fields.get("content-length", "")
        if not given.isdecimal():
            raise self._lose(MalformedMessage("A header has no Content-Length."))
        length = int(given)
        if length > self.most:
            raise self._lose(MessageTooLarge(f"A message of {length} bytes is more than {self.most}."))
        return length

    def _lose(self, error: MalformedMessage | MessageTooLarge) -> MalformedMessage | MessageTooLarge:
        self.lost = True
        return error


def _begins_header(data: bytes) -> bool:
    """Return True for fields of the protocol's header, of which the last may be cut off."""
    *whole, last = data.lower().split(b"\r\n")
    cut = last.rstrip(b"\r")
    return all(line.startswith(_FIELDS) for line in whole) and (
        cut.startswith(_FIELDS) or any(field.startswith(cut) for field in _FIELDS)
    )
