from __future__ import annotations

import math

import msgspec
import pytest
from hypothesis import given, settings

from djinn_jupyter.errors import MalformedMessage
from djinn_jupyter.settings import Identity, Options
from djinn_jupyter.wire.registry import (
    Entry,
    Notice,
    decode_entry,
    decode_notice,
    encode_entry,
    encode_notice,
)
from tests.wire import strategies


@settings(max_examples=50, deadline=None)
@given(entry=strategies.of(Entry))
def test_an_entry_is_read_as_it_was_written(entry: Entry) -> None:
    assert decode_entry(encode_entry(entry)) == entry


@settings(max_examples=50, deadline=None)
@given(notice=strategies.of(Notice))
def test_a_notice_is_one_line(notice: Notice) -> None:
    line = encode_notice(notice)
    assert line.count(b"\n") == 1
    assert decode_notice(line) == notice


def test_an_entry_of_a_later_version_can_still_be_read() -> None:
    text = encode_entry(_entry()).replace(b"{", b'{"news": [1, 2],', 1)
    assert decode_entry(text) == _entry()


def test_an_option_without_an_end_is_not_read_as_one_left_open() -> None:
    entry = msgspec.structs.replace(_entry(), options=Options(sleep_seconds=math.inf, threads=2))
    assert decode_entry(encode_entry(entry)) == entry


def test_what_is_no_entry_is_refused() -> None:
    for text in (b"", b"{}", b"[1", b'{"pid": "x"}', b'{"news": ' + b"[" * 10**6):
        with pytest.raises(MalformedMessage):
            decode_entry(text)


@pytest.mark.parametrize(
    ("wanted", "serves"),
    [
        (Identity(model="demo"), True),
        (Identity(model="demo", dtype="float32"), True),  # named now as it was found then
        (Identity(model="demo", dtype="bfloat16"), False),
        (Identity(model="demo", device="cuda"), False),
        (Identity(model="other"), False),
        (Identity(model="demo", random_weights=True), False),
        (Identity(model="demo", tensor_parallel=2), False),
    ],
)
def test_a_load_means_a_running_engine_when_all_that_it_names_agrees(wanted: Identity, serves: bool) -> None:
    assert _entry().serves(wanted) is serves


def test_a_load_that_leaves_open_what_was_named_then_means_another_engine() -> None:
    assert not _entry(dtype="bfloat16").serves(Identity(model="demo"))


def test_a_split_model_is_another_engine() -> None:
    split = _entry(tensor_parallel=2)
    assert split.serves(Identity(model="demo", tensor_parallel=2))
    assert not split.serves(Identity(model="demo"))


def test_slugs_are_readable_short_and_different() -> None:
    identities = [Identity(model="demo"), Identity(model="demo", dtype="float32"), Identity(model="/a/b c/demo")]
    slugs = [identity.slug() for identity in identities]
    assert len(set(slugs)) == 3
    assert all(slug.startswith("demo-") and len(slug) < 60 and "/" not in slug for slug in slugs)


def _entry(dtype: str | None = None, tensor_parallel: int = 1) -> Entry:
    return Entry(
        version="1",
        pid=1,
        mark="2",
        host="h",
        boot="b",
        started=3.0,
        identity=Identity(model="demo", dtype=dtype, tensor_parallel=tensor_parallel),
        found=Identity(model="demo", dtype=dtype or "float32", device="cpu", attention="sdpa"),
        options=Options(),
        commands="ipc://x/commands",
    )
