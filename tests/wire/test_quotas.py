"""Quotas as text, and the files that have a person's own."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from djinn_jupyter.errors import UsageError
from djinn_jupyter.wire.keys import KeyFolder
from djinn_jupyter.wire.people import KINDS, NO_QUOTA, PersonQuotas, Quota, QuotaFolder, read_quota, spell_told


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
    folder.tell("anna", told)
    assert folder.read() == {"anna": told}
    assert read_quota(spell_told(told)).keys() == told.keys()


def test_a_persons_own_is_over_the_common_quota_from_the_next_look_on(tmp_path: Path) -> None:
    folder = QuotaFolder(KeyFolder(tmp_path / "keys"))
    quotas = PersonQuotas(folder, Quota(device=100, sessions=5))
    assert quotas("anna") == Quota(device=100, sessions=5)
    folder.tell("anna", {"device": None, "disk": 7})
    assert quotas("anna") == Quota(sessions=5, disk=7)
    assert quotas("bert") == Quota(device=100, sessions=5)
    folder.tell("anna", {"sessions": 9})
    assert quotas("anna") == Quota(device=100, sessions=9)
    folder.forget("anna")
    assert quotas("anna") == Quota(device=100, sessions=5)
    folder.forget("anna")


def test_a_file_that_is_not_to_be_trusted_gives_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = QuotaFolder(KeyFolder(tmp_path / "keys"))
    for name in ("anna", "bert", "carl"):
        folder.tell(name, {"device": 1 << 60})
    os.chmod(folder.path / "anna", 0o666)
    (folder.path / "bert").write_text("device=all of it")
    quotas = PersonQuotas(folder, Quota(device=100))
    assert (quotas("anna"), quotas("bert")) == (Quota(device=100), Quota(device=100))
    assert quotas("carl") == Quota(device=1 << 60)
    assert "anna has the common quota" in caplog.text
