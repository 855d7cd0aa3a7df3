"""Quotas and entries of the registry as they are read."""

from __future__ import annotations

import math
import os
from pathlib import Path

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from djinn_jupyter.errors import MalformedMessage, UsageError
from djinn_jupyter.settings import Identity, Options
from djinn_jupyter.wire.keys import KeyFolder
from djinn_jupyter.wire.people import KINDS, NO_QUOTA, PersonQuotas, Quota, QuotaFolder, read_quota, spell_told
from djinn_jupyter.wire.registry import Entry, Notice, decode_entry, decode_notice, encode_entry, encode_notice
from tests.wire import strategies


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("device=8GiB,sessions=20,running=2h", {"device": 8 << 30, "sessions": 20, "running": 7200}),
        ("host=512M disk=none", {"host": 512 << 20, "disk": None}),
        ("sessions=0", {"sessions": 0}),
    ],
)
def test_a_quota_is_read(text: str, told: dict[str, int | None]) -> None:
    assert read_quota(text) == told
    assert NO_QUOTA.but(told) == Quota(**told)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "write for example device=8GiB"),
        ("8GiB", "'8GiB' is no quota: write one of device, host, disk, sessions, running"),
        ("gpu=8GiB", "'gpu=8GiB' is no quota"),
        ("device=", "'device=' is no quota"),
        ("device=much", "'much' is no amount of memory"),
        ("sessions=-1", "'-1' is no number of sessions"),
        ("running=2", "'2' is no duration"),
        ("disk=1,disk=2", "disk is told twice"),
    ],
)
def test_what_is_no_quota_is_refused_in_one_sentence(text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        read_quota(text)


TOLD = st.dictionaries(st.sampled_from(KINDS), st.none() | st.integers(1, 2**62), min_size=1)


@given(told=TOLD)
@example(told={"device": 2**53 + 1})
def test_what_is_told_of_a_person_comes_back_to_the_byte(
    tmp_path_factory: pytest.TempPathFactory, told: dict[str, int | None]
) -> None:
    if told.get("sessions") is not None:
        told["sessions"] = (told["sessions"] or 0) % 10**9
    if told.get("running") is not None:
        told["running"] = (told["running"] or 0) % 10**9 or 1
    folder = QuotaFolder(KeyFolder(tmp_path_factory.mktemp("keys") / "own"))
    folder.write("anna", told)
    assert folder.read() == {"anna": told}
    assert read_quota(spell_told(told)).keys() == told.keys()


def test_a_persons_own_is_over_the_common_quota_from_the_next_look_on(tmp_path: Path) -> None:
    folder = QuotaFolder(KeyFolder(tmp_path / "keys"))
    quotas = PersonQuotas(folder, Quota(device=100, sessions=5))
    assert quotas("anna") == Quota(device=100, sessions=5)
    folder.write("anna", {"device": None, "disk": 7})
    assert quotas("anna") == Quota(sessions=5, disk=7)
    assert quotas("bert") == Quota(device=100, sessions=5)
    folder.write("anna", {"sessions": 9})
    assert quotas("anna") == Quota(device=100, sessions=9)
    folder.forget("anna")
    assert quotas("anna") == Quota(device=100, sessions=5)
    folder.forget("anna")


def test_a_file_that_is_not_to_be_trusted_gives_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = QuotaFolder(KeyFolder(tmp_path / "keys"))
    for name in ("anna", "bert", "carl"):
        folder.write(name, {"device": 1 << 60})
    os.chmod(folder.path / "anna", 0o666)
    (folder.path / "bert").write_text("device=all of it")
    quotas = PersonQuotas(folder, Quota(device=100))
    assert (quotas("anna"), quotas("bert")) == (Quota(device=100), Quota(device=100))
    assert quotas("carl") == Quota(device=1 << 60)
    assert "anna has the common quota" in caplog.text


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


def test_a_rounded_model_is_another_engine_and_a_plain_ones_journal_keeps_its_name() -> None:
    rounded, plain = Identity(model="demo", quantize="int8"), Identity(model="demo")
    assert _entry(quantize="int8").serves(rounded)
    assert not _entry(quantize="int8").serves(plain)
    assert not _entry().serves(rounded)
    assert str(rounded) == "demo (quantize int8)"
    assert rounded.slug() != plain.slug() == "demo-7b92d3b92a"  # as before there was a `quantize`


def test_slugs_are_readable_short_and_different() -> None:
    identities = [Identity(model="demo"), Identity(model="demo", dtype="float32"), Identity(model="/a/b c/demo")]
    slugs = [identity.slug() for identity in identities]
    assert len(set(slugs)) == 3
    assert all(slug.startswith("demo-") and len(slug) < 60 and "/" not in slug for slug in slugs)


def _entry(dtype: str | None = None, tensor_parallel: int = 1, quantize: str | None = None) -> Entry:
    return Entry(
        version="1",
        pid=1,
        mark="2",
        host="h",
        boot="b",
        started=3.0,
        identity=Identity(model="demo", dtype=dtype, tensor_parallel=tensor_parallel, quantize=quantize),
        found=Identity(model="demo", dtype=dtype or "float32", device="cpu", attention="sdpa"),
        options=Options(),
        commands="ipc://x/commands",
    )
