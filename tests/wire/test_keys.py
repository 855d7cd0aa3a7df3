"""Keys on the disk: they are their user's alone, none is written over, and who is admitted is known at once."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from djinn_jupyter.errors import UsageError
from djinn_jupyter.wire.keys import KeyFolder, read_public, spell_public


def drawn() -> tuple[bytes, bytes]:
    return os.urandom(32), os.urandom(32)


@pytest.fixture
def keys(tmp_path: Path) -> KeyFolder:
    return KeyFolder(tmp_path / "djinn" / "keys")


def files(keys: KeyFolder) -> list[Path]:
    return [path for path in keys._path.rglob("*") if path.is_file()]


def test_a_public_key_is_spelled_in_characters_that_no_shell_obeys() -> None:
    for public in (bytes(32), b"\xff" * 32, *(os.urandom(32) for _ in range(100))):
        spelled = spell_public(public)
        assert read_public(spelled) == public
        assert not set(spelled) - set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_")
        assert not spelled.startswith("-")


@pytest.mark.parametrize("wrong", ["", "djinn-", spell_public(bytes(32))[:-1], spell_public(bytes(32)) + "A", "é" * 49])
def test_what_is_no_public_key_is_refused(wrong: str) -> None:
    with pytest.raises(UsageError, match="A public key is djinn-"):
        read_public(wrong)


def test_a_pair_is_read_as_it_was_drawn_and_never_written_over(keys: KeyFolder) -> None:
    made = keys.draw_own("anna", drawn)
    assert keys.own() == keys.own("anna") == keys.own(str(keys._path / "own" / "anna")) == made
    with pytest.raises(UsageError, match="There is a key anna already"):
        keys.draw_own("anna", drawn)
    assert keys.own() == made
    keys.draw_own("other", drawn)
    with pytest.raises(UsageError, match="name one of anna, other"):
        keys.own()


def test_nothing_of_a_secret_is_in_a_repr_and_files_are_their_users_alone(keys: KeyFolder) -> None:
    pairs = [keys.draw_own("anna", drawn), keys.server("gpu-box", drawn)]
    keys.allow(os.urandom(32), "bert")
    for pair in pairs:
        assert "secret" not in repr(pair)
        assert repr(pair.secret)[2:-1] not in repr(pair)
    for path in files(keys):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_the_pair_of_a_machine_stays_the_same(keys: KeyFolder) -> None:
    assert keys.server("gpu-box", drawn) == keys.server("gpu-box", drawn) != keys.server("other", drawn)


def test_who_is_admitted_is_known_at_once(keys: KeyFolder) -> None:
    admitted, public = keys.admitted(), os.urandom(32)
    for _ in range(50):  # many within the same tick of the file system's clock
        assert admitted.name_of(public) is None
        keys.allow(public, "anna")
        assert admitted.name_of(public) == "anna"
        keys.revoke("anna")
    assert admitted.name_of(public) is None


def test_a_person_has_one_key_and_a_key_one_person(keys: KeyFolder) -> None:
    one, other = os.urandom(32), os.urandom(32)
    keys.allow(one, "anna")
    keys.allow(one, "anna")
    with pytest.raises(UsageError, match="admitted already, as anna"):
        keys.allow(one, "bert")
    with pytest.raises(UsageError, match="anna has another key"):
        keys.allow(other, "anna")
    assert keys.allowed() == {one: "anna"}
    with pytest.raises(UsageError, match="No bert is admitted"):
        keys.revoke("bert")


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "-x", "anna@home", "a\n"])
def test_what_names_no_person_makes_no_file(keys: KeyFolder, name: str) -> None:
    with pytest.raises(UsageError, match="names no person"):
        keys.allow(os.urandom(32), name)
    assert files(keys) == []


def test_a_key_that_others_may_have_written_admits_no_one(keys: KeyFolder) -> None:
    keys.allow(os.urandom(32), "anna")
    keys.allow(public := os.urandom(32), "bert")
    (keys._path / "allowed" / "anna").chmod(0o666)
    assert keys.allowed() == {public: "bert"}


def test_another_key_for_a_trusted_host_is_refused(keys: KeyFolder) -> None:
    first = os.urandom(32)
    keys.trust("gpu-box", first)
    keys.trust("gpu-box", first)
    with pytest.raises(UsageError, match="Another key is trusted for gpu-box"):
        keys.trust("gpu-box", os.urandom(32))
    keys.trust("gpu-box:5557", second := os.urandom(32))
    assert keys.trusted("gpu-box:5556", "gpu-box") == first
    assert keys.trusted("gpu-box:5557", "gpu-box") == second
    assert keys.trusted("nowhere") is None
    with pytest.raises(UsageError, match="is no host"):
        keys.trust("../x", first)


def test_what_another_program_leaves_in_a_folder_of_keys_is_no_key(keys: KeyFolder) -> None:
    keys.draw_own("anna", drawn)
    keys.allow(keys.own("anna").public, "anna")
    for kind in ("own", "allowed"):
        (keys._path / kind / ".DS_Store").write_bytes(b"\0")
        assert keys.names(kind) == ("anna",)
    assert keys.own().public == keys.own("anna").public
    assert keys.read_allowed() == ({keys.own("anna").public: "anna"}, True)
