"""Messages come back as they went, whole or in parts, and what is none is refused."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import inspect

from djinn_jupyter.engine.store import image
from djinn_jupyter.errors import (
    CheckpointRefused,
    MalformedMessage,
    MessageTooLarge,
    NotEncodable,
    UsageError,
    WireError,
)
from djinn_jupyter.methods.circuits.request import RunCircuits
from djinn_jupyter.methods.datasets.request import Score
from djinn_jupyter.wire import codec, kinds
from djinn_jupyter.wire import replies as told
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.arrays import Array
from djinn_jupyter.wire.base import BOUNDED_BY, FEW, MOST_TOKENS, respelled
from djinn_jupyter.wire.codec import RUN, Envelope, decode_in_parts, encoded, is_large
from djinn_jupyter.wire.edits import Set
from djinn_jupyter.wire.modules import MOST_ADAPTED, AdaptedModule
from djinn_jupyter.wire.nouns import (
    BreakpointDescription,
    LensRow,
    Sampling,
    SessionDescription,
    StopIdentity,
    TopToken,
)
from djinn_jupyter.wire.pieces import WHOLE_BYTES
from djinn_jupyter.wire.replies import Failed
from djinn_jupyter.wire.requests import ApplyEdit, Ping, Request, Run, SessionRequest
from djinn_jupyter.wire.running import MetricsRead
from djinn_jupyter.wire.texts import LONGEST_MESSAGE
from tests.engine.cases import KINDS
from tests.wire import largest, strategies, values

EACH = settings(max_examples=15, deadline=None)


@pytest.mark.parametrize("kind", kinds.known().requests, ids=lambda kind: kind.__name__)
@EACH
@given(data=st.data(), number=strategies.NUMBERS)
def test_every_request_comes_back_as_it_went(kind: type, data: st.DataObject, number: int) -> None:
    body = data.draw(strategies.of(kind))
    assert codec.decode_request(codec.encode(number, body)) == codec.Envelope(id=number, body=body)


@pytest.mark.parametrize("kind", kinds.known().replies, ids=lambda kind: kind.__name__)
@EACH
@given(data=st.data(), number=strategies.NUMBERS, run=st.integers(1, 3))
def test_every_reply_comes_back_as_it_went(kind: type, data: st.DataObject, number: int, run: int) -> None:
    """It is taken for no event, and encoded in parts it has the same bytes, however short these are."""
    message = codec.Envelope(id=number, body=data.draw(strategies.of(kind)))
    frames = codec.encode(number, message.body)
    assert codec.decode_reply(frames) == message
    assert not codec.is_event(frames)
    encoder = msgspec.msgpack.Encoder(enc_hook=repr)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(codec, "RUN", run)
        assert bytes(codec.encoded(message, encoder)) == encoder.encode(message)


def test_a_field_that_is_not_set_is_left_out_in_parts_too(monkeypatch: pytest.MonkeyPatch) -> None:
    class Several(msgspec.Struct):
        each: tuple[int, ...]
        other: int | msgspec.UnsetType = msgspec.UNSET

    monkeypatch.setattr(codec, "RUN", 1)
    encoder = msgspec.msgpack.Encoder(enc_hook=repr)
    assert bytes(codec.encoded(Several(each=(1, 2, 3)), encoder)) == encoder.encode({"each": (1, 2, 3)})


@pytest.mark.parametrize("kind", kinds.known().events, ids=lambda kind: kind.__name__)
@EACH
@given(data=st.data(), number=strategies.NUMBERS)
def test_every_event_comes_back_as_it_went(kind: type, data: st.DataObject, number: int) -> None:
    event = data.draw(strategies.of(kind))
    assert codec.decode_event(codec.encode_event(number, event)) == codec.Envelope(id=number, body=event)


def test_array_bytes_stay_out_of_the_envelope() -> None:
    body = ApplyEdit(session="s", edit=Set(value=Array(dtype="uint8", shape=(4096,), data=bytes(4096))))
    head, array = codec.encode(1, body)
    assert len(head) < 200
    assert memoryview(array).nbytes == 4096


NOISE = st.lists(st.binary(max_size=200), max_size=4)


@settings(max_examples=200, deadline=None)
@given(frames=NOISE)
def test_noise_is_refused_and_nothing_else_comes_out(frames: list[bytes]) -> None:
    for decode in (codec.decode_request, codec.decode_reply, codec.decode_event):
        with pytest.raises(WireError):
            decode(frames)
    codec.read_number(frames)


PLAIN = st.recursive(
    st.none() | st.booleans() | strategies.NUMBERS | st.floats() | st.text(max_size=5) | st.binary(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=12,
)


NAMES = st.sampled_from(sorted(kind.__name__ for kind in kinds.known().requests))
FIELDS = st.sampled_from(["session", "text", "tokens", "edit", "site", "positions", "sampling", "count", "other"])


@settings(max_examples=200, deadline=None)
@given(
    number=PLAIN, name=NAMES, fields=st.dictionaries(FIELDS, PLAIN), frames=st.lists(st.binary(max_size=16), max_size=2)
)
def test_well_formed_msgpack_of_wrong_meaning_is_refused_or_understood(
    number: object, name: str, fields: dict[str, object], frames: list[bytes]
) -> None:
    head = msgspec.msgpack.encode({"id": number, "body": {"request": name, **fields}})
    _refused_or_understood([head, *frames])


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_a_cut_or_changed_message_is_refused_or_understood(data: st.DataObject) -> None:
    frames = [bytearray(f) for f in codec.encode(7, data.draw(strategies.of(Request)))]
    which = data.draw(st.integers(0, len(frames) - 1))
    frame = frames[which]
    cut = data.draw(st.integers(0, len(frame)))
    match data.draw(st.sampled_from(["cut", "change", "insert", "drop", "double"])):
        case "cut":
            del frame[cut:]
        case "change" if cut < len(frame):
            frame[cut] = data.draw(st.integers(0, 255))
        case "insert":
            frame[cut:cut] = data.draw(st.binary(min_size=1, max_size=5))
        case "drop":
            del frames[which]
        case "double":
            frames.append(frame)
    _refused_or_understood([bytes(f) for f in frames])


def _refused_or_understood(frames: list[bytes]) -> None:
    """Fail on any error but WireError or a noun's refusal; a decoded request encodes to the same again."""
    try:
        understood = codec.decode_request(frames)
    except (WireError, UsageError):
        return
    again = codec.decode_request(codec.encode(understood.id, understood.body))
    assert repr(again) == repr(understood)  # by text: a NaN is not equal to itself


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("temperature", -1.0, "A temperature is 0 (greedy) or more; it cannot be -1.0."),
        ("temperature", math.nan, "A temperature is 0 (greedy) or more; it cannot be nan."),
        ("temperature", math.inf, "A temperature is 0 (greedy) or more; it cannot be inf."),
        ("top_k", -4, "top_k counts tokens, 0 for all; it cannot be -4."),
        ("top_p", 7.0, "top_p is above 0 and at most 1; it cannot be 7.0."),
        ("top_p", 0.0, "top_p is above 0 and at most 1; it cannot be 0.0."),
        ("top_p", math.nan, "top_p is above 0 and at most 1; it cannot be nan."),
        ("min_p", -0.1, "min_p is 0 to 1; it cannot be -0.1."),
        ("min_p", math.nan, "min_p is 0 to 1; it cannot be nan."),
        ("repetition_penalty", 0.0, "repetition_penalty is above 0, 1 for none; it cannot be 0.0."),
    ],
)
def test_sampling_that_means_nothing_is_refused_in_the_same_words_here_and_over_the_wire(
    field: str, value: float, said: str
) -> None:
    with pytest.raises(UsageError) as here:
        Sampling(**{field: value})
    body = {"request": "Run", "session": "a", "text": "x", "sampling": {field: value}}
    with pytest.raises(UsageError) as there:
        codec.decode_request([msgspec.msgpack.encode({"id": 1, "body": body})])
    assert str(here.value) == str(there.value) == said


@pytest.mark.parametrize(
    ("field", "value"), [("temperature", 1e-300), ("temperature", 1e-31), ("repetition_penalty", 1e-300)]
)
def test_sampling_that_cannot_be_computed_is_refused_of_a_run_and_read_of_a_kept_session(
    field: str, value: float
) -> None:
    sampling = Sampling(**{field: value})
    with pytest.raises(UsageError, match=f"it cannot be {value}"):
        Run(session="a", sampling=sampling)
    assert image.decode(msgspec.msgpack.encode(sampling), Sampling, {}) == sampling


def test_sampling_that_was_kept_before_there_was_min_p_is_read() -> None:
    kept = {
        "temperature": 0.7,
        "top_k": 5,
        "top_p": None,
        "repetition_penalty": 1.1,
        "seed": 3,
        "model_defaults": False,
    }
    read = image.decode(msgspec.msgpack.encode(kept), Sampling, {})
    assert read == Sampling(temperature=0.7, top_k=5, repetition_penalty=1.1, seed=3)


def test_a_file_that_holds_such_sampling_is_refused_as_a_file() -> None:
    with pytest.raises(CheckpointRefused, match="top_k counts tokens"):
        image.decode(msgspec.msgpack.encode({"top_k": -4}), Sampling, {})


def test_the_ends_of_what_sampling_may_be_are_taken() -> None:
    Sampling(temperature=0, top_k=0, top_p=1.0, repetition_penalty=0.1, seed=-(2**63))
    Sampling(seed=2**64 - 1)


@pytest.mark.parametrize("beyond", [{"seed": 2**64}, {"seed": -(2**63) - 1}, {"top_k": "5"}, {"temperature": "warm"}])
def test_sampling_that_the_wire_could_not_carry_is_refused_before(beyond: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="it cannot be"):
        Sampling(**beyond)


def test_deep_nesting_is_refused() -> None:
    head = b"\x82\xa2id\x01\xa4body" + b"\x91" * 100_000 + b"\x90"
    with pytest.raises(WireError):
        codec.decode_request([head])
    assert codec.read_number([head]) in (1, None)


def test_unknown_fields_and_tags_are_refused_but_their_number_is_read() -> None:
    for body in ({"request": "Ping", "extra": 1}, {"request": "Explode"}, {"reply": "Pong"}):
        frames = [msgspec.msgpack.encode({"id": 5, "body": body})]
        with pytest.raises(MalformedMessage):
            codec.decode_request(frames)
        assert codec.read_number(frames) == 5


@pytest.mark.parametrize("number", [0, 127, 128, 2**16, 2**32 - 1, 2**64 - 1])
def test_the_number_of_a_large_message_is_read_from_its_first_bytes_alone(number: int) -> None:
    head = msgspec.msgpack.encode({"id": number, "body": 0})
    assert codec.read_number([memoryview(head)]) == number
    assert codec.read_number([head[:-1] + bytes([0xC1]) * WHOLE_BYTES]) == number
    assert codec.read_number([msgspec.msgpack.encode({"body": bytes(WHOLE_BYTES), "id": number})]) is None


def test_frames_are_referred_to_exactly_once() -> None:
    body = ApplyEdit(session="s", edit=Set(value=Array.scalar(1.0)))
    head, array = codec.encode(1, body)
    for frames in ([head], [head, array, array], [codec.encode(1, Ping())[0], array]):
        with pytest.raises(MalformedMessage):
            codec.decode_request(frames)


def test_an_array_says_its_length_truly() -> None:
    body = ApplyEdit(session="s", edit=Set(value=Array(dtype="float32", shape=(4,), data=bytes(16))))
    head, _ = codec.encode(1, body)
    with pytest.raises(MalformedMessage, match="needs 16 bytes"):
        codec.decode_request([head, bytes(15)])


def test_what_is_too_large_is_refused_before_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codec, "MAX_ENVELOPE_BYTES", 1000)
    monkeypatch.setattr(codec, "MAX_ARRAY_BYTES", 1000)
    with pytest.raises(MessageTooLarge):
        codec.decode_request([bytes(1001)])
    with pytest.raises(MessageTooLarge):
        codec.decode_request([b"", bytes(600), bytes(600)])
    with pytest.raises(MessageTooLarge):
        codec.decode_request([b""] * (codec.MAX_FRAMES + 1))
    with pytest.raises(MessageTooLarge):
        codec.encode(1, Run(session="s", text="x" * 1001))


def test_a_limit_that_is_broken_is_said_with_the_fields_name():
    with pytest.raises(UsageError, match=r"^max_new_tokens: expected int >= 0\.$"):
        codec.encode_checked(1, Run(session="a", tokens=(1,), max_new_tokens=-1))


def test_a_request_of_no_installed_method_is_refused_with_what_it_needs() -> None:
    class Unheard(SessionRequest): ...

    with pytest.raises(UsageError, match=r"^Unheard is no request that is known here: its class line has to say its"):
        codec.encode_checked(1, Unheard(session="a"))


UNSENDABLE = [10**30, -(10**30), "\ud800", ("fine", "\udfff"), object(), {"deep": ({1: 2**64},)}]


@pytest.mark.parametrize("kind", kinds.known().replies, ids=lambda kind: kind.__name__)
@settings(max_examples=3, deadline=None)
@given(data=st.data(), number=strategies.NUMBERS)
def test_a_reply_that_no_message_can_carry_is_answered_by_a_failure(
    kind: type, data: st.DataObject, number: int
) -> None:
    """One field after the other holds a value that cannot be sent."""
    body = data.draw(strategies.of(kind))
    values = ["\ud800"] if kind is Failed else UNSENDABLE
    for field, value in itertools.product(kind.__struct_fields__, values):
        told = codec.decode_reply(codec.encode_reply(number, msgspec.structs.replace(body, **{field: value})))
        assert told.id == number
        assert isinstance(told.body, Failed)
        assert kind is Failed or (told.body.code == "NotEncodable" and kind.__name__ in told.body.message)


@pytest.mark.parametrize("kind", kinds.known().events, ids=lambda kind: kind.__name__)
def test_an_event_that_no_message_can_carry_says_so(kind: type) -> None:
    fields = dict.fromkeys(kind.__struct_fields__, "x")
    for field, value in itertools.product(fields, ("\ud800", "\udfff")):
        with pytest.raises(NotEncodable, match=kind.__name__):
            codec.encode_event(1, kind(**{**fields, field: value}))


def test_a_failure_is_cut_to_what_can_be_read() -> None:
    told = codec.decode_reply(codec.encode_reply(1, Failed(code="UsageError", message="x" * 10**6))).body
    assert len(told.message) <= LONGEST_MESSAGE


def test_a_request_that_no_message_can_carry_is_refused_by_whoever_makes_it() -> None:
    for number, text in ((10**30, "x"), (1, "\ud800")):
        with pytest.raises(UsageError, match="cannot be sent"):
            codec.encode_checked(1, Run(session="a", text=text, max_new_tokens=number))


def test_a_text_of_a_class_of_its_own_is_a_text() -> None:
    class Named(str):
        pass

    for text in (Named("ada"), np.str_("ada")):
        request = Run(session=text, text=text, stop=(text,))
        read = codec.decode_request(codec.encode_checked(1, request)).body
        assert read == Run(session="ada", text="ada", stop=("ada",))


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
    for request in largest.requests(kind, path, most=3 * RUN, session="a"):
        frames = codec.encode(7, request)
        assert in_parts(frames)[0] == codec.decode_request(frames)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_a_request_with_any_values_is_the_same_in_parts_or_none_in_both(kind: type) -> None:
    whose = {"session": "a"} if issubclass(kind, ask.SessionRequest) else {}
    for quality in ("ordinary", "extreme", "wrong"):
        for fields in values.requests(kind, quality):
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


NOUNS = {"positions", "tokens", "edges", "cells", "matrix"}
PLAIN_KINDS = (inspect.IntType, inspect.FloatType, inspect.BoolType, inspect.NoneType, inspect.LiteralType)


@pytest.mark.parametrize("kind", kinds.known().requests, ids=lambda kind: kind.__name__)
def test_every_list_and_text_of_a_request_has_a_bound(kind: type) -> None:
    assert list(_unbounded(inspect.type_info(kind), kind.__name__)) == []


def _unbounded(shape: Any, path: str, noun: str | None = None) -> Iterator[str]:
    match shape:
        case inspect.Metadata(type=marked, extra=extra):
            noun = (extra or {}).get(BOUNDED_BY)
            if noun not in NOUNS:
                yield f"{path}: {noun}"
            yield from _unbounded(marked, path, noun)
        case inspect.VarTupleType(item_type=item, max_length=most):
            if most is None or (most > FEW and noun is None):
                yield f"{path}: {most}"
            yield from _unbounded(item, f"{path}[]")
        case inspect.StrType(max_length=most, pattern=pattern):
            if most is None and pattern is None:
                yield f"{path}: a text"
        case inspect.StructType(fields=fields):
            for field in fields:
                yield from _unbounded(field.type, f"{path}.{field.name}")
        case inspect.UnionType(types=parts) | inspect.TupleType(item_types=parts):
            for part in parts:
                yield from _unbounded(part, path)
        case inspect.CustomType(cls=cls) if cls is Array:
            return
        case _ if not isinstance(shape, PLAIN_KINDS):
            yield f"{path}: {shape}"


def test_a_line_of_tokens_is_not_walked_for_names() -> None:
    line = tuple(range(1000))
    spelled = respelled(Score(session="s", prompts=(line, "b")), lambda name: f"ada@{name}")
    assert (spelled.session, spelled.prompts) == ("ada@s", (line, "ada@b"))
    assert spelled.prompts[0] is line
    lines = (line, (1, 2), ())
    assert respelled(Score(session="s", prompts=lines), lambda name: f"ada@{name}").prompts is lines


# --- encoding in parts ------------------------------------------------------------------------------------------------


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
SHORTER = tuple((number % 300, number % 70_000) for number in range(50_000))
ROW = LensRow(position=0, token=1, text=" a", top=(TOP,) * 1000)
LONG: dict[str, Any] = {
    "pairs": RunCircuits(
        session="a", corrupted=(1, 2), clean=(1, 3), metric="logit(1)", circuits=(SHORTER, ((0, 1),), SHORTER[:9000])
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
