"""Convert the wire's structs to and from the JSON of a browser: arrays in base64, sizes bounded.

Refuses messages outside the protocol. A non-finite float becomes null: JSON cannot represent it.
"""

from __future__ import annotations

import base64
import binascii
from typing import Any, Final, TypeVar

import msgspec

from djinn_jupyter.errors import DjinnError, MalformedMessage, MessageTooLarge
from djinn_jupyter.server.messages import Said
from djinn_jupyter.wire.arrays import Array
from djinn_jupyter.wire.kinds import any_of
from djinn_jupyter.wire.requests import Request

MAX_REQUEST_BYTES: Final = 64 * 2**20
MAX_ARRAY_BYTES: Final = 32 * 2**20
MAX_SAID_BYTES: Final = 64 * 2**10
Decoded = TypeVar("Decoded")


class _ArrayJson(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    dtype: str
    shape: tuple[int, ...]
    base64: str


def read_request(body: bytes) -> Request:
    """Decode a request. MessageTooLarge, or MalformedMessage with the error in one sentence."""
    if len(body) > MAX_REQUEST_BYTES:
        raise MessageTooLarge(f"The request has {len(body)} bytes, the limit is {MAX_REQUEST_BYTES}.")
    request: Request = _read(body, any_of("requests"), "a request")
    return request


def read_said(text: str | bytes) -> Said:
    said: Said = _read(text.encode() if isinstance(text, str) else text, Said, "a message to the live WebSocket")
    return said


def write(value: Any) -> bytes:
    """Encode a value. MessageTooLarge where its arrays have more than MAX_ARRAY_BYTES bytes in total."""
    total = 0

    def spell(part: Any) -> _ArrayJson:
        nonlocal total
        if not isinstance(part, Array):
            raise NotImplementedError(f"{type(part)} does not cross to a browser")
        total += part.nbytes
        if total > MAX_ARRAY_BYTES:
            raise MessageTooLarge(
                f"The answer has arrays of more than {MAX_ARRAY_BYTES} bytes: ask for fewer positions at a time."
            )
        return _ArrayJson(dtype=part.dtype, shape=part.shape, base64=base64.b64encode(part.data).decode())

    return msgspec.json.encode(value, enc_hook=spell)


def _read(body: bytes, kind: Any, named: str) -> Any:
    try:
        return msgspec.json.decode(body, type=kind, dec_hook=_array)
    except DjinnError:
        raise
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        cause = error.__cause__
        said = cause if isinstance(cause, DjinnError) else error
        raise MalformedMessage(f"Not {named} of this protocol: {str(said).rstrip('.')}.") from None


def _array(kind: type, value: Any) -> Array:
    if kind is not Array:
        raise NotImplementedError(f"{kind} does not come from a browser")
    header = msgspec.convert(value, _ArrayJson)
    try:
        content = base64.b64decode(header.base64, validate=True)
    except binascii.Error as error:
        raise MalformedMessage(f"an array's base64 cannot be read ({error})") from None
    return Array(dtype=header.dtype, shape=header.shape, data=content)
