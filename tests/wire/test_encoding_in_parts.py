"""A message that is encoded in parts has the bytes that msgspec makes of the whole, and no part is long."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from djinn_jupyter.methods.circuits.request import RunCircuits
from djinn_jupyter.wire import codec, kinds
from djinn_jupyter.wire import replies as told
from djinn_jupyter.wire.codec import RUN, Envelope, encoded
from djinn_jupyter.wire.nouns import BreakpointDescription, LensRow, SessionDescription, StopIdentity, TopToken
from djinn_jupyter.wire.running import MetricsRead
from tests.wire import strategies

EACH = settings(max_examples=15, deadline=None)
STOP = StopIdentity(session="a", number=1, edition=1)
TOP = TopToken(token=1, text=" a", probability=0.5, logit=2.0)
POINT = BreakpointDescription(number=1, site="resid_post.1", when="norm > 2", once=False, enabled=True, hits=0)
SESSION = SessionDescription(
    name="a",
    owner="ada",
    holder=None,
    state="idle",
    tokens=0,
    committed=0,
    stopped_at=None,
    step=None,
    breakpoints=(POINT,) * 700,
    rules=(),
    watches=(),
    stops_kept=0,
    stop=STOP,
    pages=0,
    device_bytes=0,
    idle_seconds=0.0,
)
PAIRS = tuple((number % 300, number % 70_000) for number in range(50_000))
ROW = LensRow(position=0, token=1, text=" a", top=(TOP,) * 1000)
LONG: dict[str, Any] = {
    "pairs": RunCircuits(
        session="a", corrupted=(1, 2), clean=(1, 3), metric="logit(1)", circuits=(PAIRS, ((0, 1),), PAIRS[:9000])
    ),
    "rows of tokens": told.LensRead(stop=STOP, site="resid_post.1", rows=(ROW,) * 40),
    "sessions": told.Sessions(sessions=(SESSION,) * 20),
    "numbers": MetricsRead(values=tuple(map(float, range(70_000)))),
    "texts": told.Tokenized(tokens=(1,) * 9000, texts=("a", "b") * 4500, text="ab"),
    "few of many": told.Sessions(sessions=tuple(msgspec.structs.replace(SESSION, breakpoints=()) for _ in range(9000))),
}


class Watched:
    """An encoder that keeps what it has encoded at once."""

    def __init__(self) -> None:
        self._encoder, self.at_once = msgspec.msgpack.Encoder(enc_hook=str), list[Any]()

    def encode(self, value: Any) -> bytes:
        self.at_once.append(value)
        return self._encoder.encode(value)

    def encode_into(self, value: Any, buffer: bytearray, offset: int) -> None:
        self.at_once.append(value)
        self._encoder.encode_into(value, buffer, offset)


def _leaves(value: Any) -> int:
    """Return the numbers, texts and pairs in a value."""
    if isinstance(value, msgspec.Struct):
        return max(1, sum(_leaves(getattr(value, name)) for name in value.__struct_fields__ if _is_list(value, name)))
    if isinstance(value, tuple) and not (len(value) == 2 and isinstance(value[0], int)):
        return sum(map(_leaves, value))
    return 1


def _is_list(value: msgspec.Struct, name: str) -> bool:
    return isinstance(getattr(value, name), tuple | msgspec.Struct)


@pytest.mark.parametrize("what", LONG)
def test_a_long_message_has_the_bytes_of_the_whole_and_no_part_is_long(what: str) -> None:
    message, watched = Envelope(id=7, body=LONG[what], asked_by="k"), Watched()
    in_parts: Any = encoded(message, watched)
    assert bytes(in_parts) == msgspec.msgpack.encode(message)
    assert max(map(_leaves, watched.at_once)) <= 2 * RUN
    assert len(watched.at_once) > 2


@pytest.mark.parametrize("kind", kinds.known().replies, ids=lambda kind: kind.__name__)
@EACH
@given(data=st.data())
def test_any_reply_has_the_bytes_of_the_whole_however_short_the_parts_are(kind: type, data: st.DataObject) -> None:
    message = Envelope(id=7, body=data.draw(strategies.of(kind)))
    encoder = msgspec.msgpack.Encoder(enc_hook=repr)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(codec, "RUN", data.draw(st.integers(1, 3)))
        assert bytes(encoded(message, encoder)) == encoder.encode(message)
