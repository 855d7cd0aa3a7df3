"""A request that is decoded in parts is the request, and what is none is refused; a list that is longer than the model
has room for is refused unread."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from djinn_jupyter.errors import MalformedMessage, MessageTooLarge, UsageError
from djinn_jupyter.methods.circuits.request import RunCircuits
from djinn_jupyter.wire import codec
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.arrays import Array
from djinn_jupyter.wire.base import MOST_TOKENS
from djinn_jupyter.wire.codec import RUN, decode_in_parts, is_large
from djinn_jupyter.wire.modules import MOST_ADAPTED, AdaptedModule
from tests.engine.cases import KINDS
from tests.wire import largest, values

LARGE = [(kind, path) for kind in KINDS for path in largest.lists_of(kind)]
PAIRS = tuple((number % 300, number % 70_000) for number in range(200_000))


def in_parts(frames: list[Any], **bounds: int) -> tuple[Any, int]:
    """Return the envelope, and the number of parts in which it was read."""
    parts, count = decode_in_parts(frames, bounds), 1
    while True:
        try:
            next(parts)
        except StopIteration as end:
            return end.value, count
        count += 1


@pytest.mark.parametrize(("kind", "path"), LARGE, ids=lambda one: one if isinstance(one, str) else one.__name__)
def test_a_large_request_is_the_same_in_parts(kind: type, path: str) -> None:
    for request in largest.requests(kind, path, session="a"):
        frames = codec.encode(7, request)
        assert in_parts(frames)[0] == codec.decode_request(frames)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_a_request_with_any_values_is_the_same_in_parts_or_none_in_both(kind: type) -> None:
    whose = {"session": "a"} if issubclass(kind, ask.SessionRequest) else {}
    for quality in ("ordinary", "extreme", "wrong"):
        for fields in values.requests(kind, quality):  # type: ignore[arg-type]
            try:
                body = {"request": kind.__name__, **fields, **whose}
                frames: list[Any] = [msgspec.msgpack.encode({"id": 7, "body": body})]
            except (TypeError, ValueError, OverflowError):
                continue
            try:
                whole = codec.decode_request(frames)
            except (MalformedMessage, UsageError) as error:
                with pytest.raises(type(error)):
                    in_parts(frames)
            else:
                assert repr(in_parts(frames)[0]) == repr(whole)  # a NaN is not equal to itself


def test_a_large_request_with_arrays_in_a_list_is_the_same_in_parts() -> None:
    half = Array(dtype="float32", shape=(1, 2), data=bytes(8))
    modules = tuple(
        AdaptedModule(path=f"model.layers.{number}.self_attn.q_proj", factor=1.0, down=half, up=half)
        for number in range(MOST_ADAPTED)
    )
    request = ask.AddAdapter(session="a", name="b", modules=modules, folder="c", digest="0" * 32)
    frames = codec.encode(7, request)
    assert is_large(frames)
    assert in_parts(frames)[0] == codec.decode_request(frames)


def test_a_list_of_pairs_is_read_in_many_parts() -> None:
    circuits = (PAIRS, PAIRS[:3], PAIRS)
    request = RunCircuits(session="a", corrupted=(1,), clean="b", metric="logit(1)", circuits=circuits)
    frames = codec.encode(7, request)
    envelope, parts = in_parts(frames)
    assert is_large(frames)
    assert envelope.body == request
    assert parts >= 2 * len(PAIRS) // RUN


@pytest.mark.parametrize("bad", [b"\xc1", b"\xa1x", b"\xcb" + bytes(8), b"\xff"])
def test_an_entry_that_is_none_is_refused_wherever_it_stands(bad: bytes) -> None:
    entries = [*[b"\x01"] * 300_000, bad, *[b"\x02"] * 5]
    tokens = b"\xdd" + len(entries).to_bytes(4, "big") + b"".join(entries)
    body = {"request": "Detokenize", "tokens": msgspec.Raw(tokens)}
    with pytest.raises(MalformedMessage):
        in_parts([msgspec.msgpack.encode({"id": 7, "body": body})])


def test_a_list_is_refused_by_its_length_alone() -> None:
    frames = codec.encode(7, ask.Inspect(session="a", positions=(0,) * MOST_TOKENS))
    with pytest.raises(UsageError, match="positions has 1,048,576 entries and the model 64 positions"):
        in_parts(frames, positions=64)
    longer = {"request": "Detokenize", "tokens": (0,) * (MOST_TOKENS + 1)}
    with pytest.raises(MalformedMessage):
        in_parts([msgspec.msgpack.encode({"id": 7, "body": longer})])
    with pytest.raises(MessageTooLarge):
        in_parts([bytes(codec.MAX_ENVELOPE_BYTES + 1)])
