"""Keys on the disk: they are their user's alone, none is written over, and who is admitted is known at once."""

from __future__ import annotations

import math
import os
import stat
from pathlib import Path

import pytest

from djinn_jupyter.errors import UsageError
from djinn_jupyter.wire.keys import FoundKeys, KeyFolder, Permit, read_public, spell_public


def drawn() -> tuple[bytes, bytes]:
    return os.urandom(32), os.urandom(32)


@pytest.fixture
def keys(tmp_path: Path) -> KeyFolder:
    return KeyFolder(tmp_path / "djinn" / "keys")


def files(keys: KeyFolder) -> list[Path]:
    return [path for path in keys._path.rglob("*") if path.is_file()]


def test_a_folder_in_place_of_a_key_is_said_to_be_one(keys: KeyFolder, tmp_path: Path) -> None:
    for folder in (str(tmp_path), f"{tmp_path}/", "~/"):
        with pytest.raises(UsageError, match=rf"^'{folder}' is a folder, and a key is a file in one: name that, or "):
            keys.own(folder)


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
    with pytest.raises(UsageError, match="'~nobody-here/key' names no file: there is no such user"):
        keys.own("~nobody-here/key")
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


def test_an_admission_ends_by_itself_with_no_change_of_the_folder(keys: KeyFolder) -> None:
    public, now = os.urandom(32), 1_000_000.0
    keys.now = lambda: now
    admitted = keys.admitted()
    keys.allow(public, "anna", 1_000_060.0)
    assert admitted.name_of(public) == "anna"
    assert keys.allowed() == {public: "anna"}
    now = 1_000_059.9
    assert admitted.name_of(public) == "anna"
    now = 1_000_060.0
    assert admitted.name_of(public) is None
    assert keys.allowed() == {}
    assert admitted.permit(public) == Permit(person="anna", until=1_000_060.0)
    keys.allow(public, "anna", 1_000_090.0)
    assert admitted.name_of(public) == "anna"
    keys.allow(public, "anna")
    now = math.inf
    assert admitted.name_of(public) == "anna"


def test_a_name_whose_key_has_ended_is_free_and_so_is_the_key(keys: KeyFolder) -> None:
    one, other = os.urandom(32), os.urandom(32)
    keys.allow(one, "anna", keys.now() - 1)
    keys.allow(one, "aaron")
    keys.allow(one, "aaron", keys.now() - 1)
    keys.allow(one, "zoe")
    assert keys.allowed() == {one: "zoe"}
    keys.allow(other, "anna")
    assert keys.allowed() == {one: "zoe", other: "anna"}


def test_a_service_lends_a_person_several_keys_and_takes_each_back(keys: KeyFolder) -> None:
    one, other, of_bert = (os.urandom(32) for _ in range(3))
    for public, person in ((one, "anna"), (other, "anna"), (of_bert, "bert")):
        keys.lend(public, person, keys.now() + 60)
    assert keys.allowed() == {one: "anna", other: "anna", of_bert: "bert"}
    assert all(permit.lent for permit in keys.permits().values())
    with pytest.raises(UsageError, match="admitted already, as anna"):
        keys.lend(one, "bert", keys.now() + 60)
    with pytest.raises(UsageError, match="anna has another key"):
        keys.allow(os.urandom(32), "anna")
    keys.take_back(one, "anna")
    assert keys.allowed() == {other: "anna", of_bert: "bert"}
    keys.revoke("anna")
    assert keys.allowed() == {of_bert: "bert"}
    keys.allow(one, "anna")
    with pytest.raises(UsageError, match="anna is admitted here by a key of their own"):
        keys.lend(other, "anna", keys.now() + 60)


def test_of_what_was_lent_no_file_stays_after_its_end(keys: KeyFolder) -> None:
    ended, goes_on, allowed = (os.urandom(32) for _ in range(3))
    keys.lend(ended, "anna", keys.now() - 1)
    keys.lend(goes_on, "anna", keys.now() + 60)
    keys.allow(allowed, "bert", keys.now() - 1)
    keys.clear_ended()
    assert set(keys.permits()) == {goes_on, allowed}


@pytest.mark.parametrize("until", ["", "soon", "2026", "2026-13-01T00:00Z", "99999-01-01"])
def test_an_end_that_cannot_be_read_admits_no_one(keys: KeyFolder, until: str) -> None:
    public = os.urandom(32)
    keys.allow(public, "anna")
    (keys._path / "allowed" / "anna").write_text(f"{spell_public(public)} until {until or 'x'}")
    assert keys.read_permits() == ({}, False)


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
    assert keys.read_permits() == ({keys.own("anna").public: Permit(person="anna")}, True)


def test_a_name_is_known_until_it_is_revoked_also_when_its_time_has_passed(tmp_path: Path) -> None:
    keys = KeyFolder(tmp_path, lambda: 1_000_000.0)
    admitted, public = keys.admitted(), os.urandom(32)
    assert not admitted.knows("anna")
    keys.allow(public, "anna", 999_999.0)
    assert (admitted.name_of(public), admitted.knows("anna"), admitted.knows("ann")) == (None, True, False)
    keys.revoke("anna")
    assert not admitted.knows("anna")


# --- keys that a service has found ------------------------------------------------------------------------------------


HERE, GONE = "10.0.0.3:5556", "10.0.0.3:5557"


@pytest.fixture
def found(keys: KeyFolder) -> FoundKeys:
    return FoundKeys(keys, "the cluster at 10.0.0.1:6379")


def age(keys: KeyFolder) -> None:
    """Have all files be of long ago."""
    for file in keys.folder("trusted").iterdir():
        os.utime(file, (0, 0))


def test_the_key_of_an_engine_is_forgotten_when_the_service_has_it_no_more(keys: KeyFolder, found: FoundKeys) -> None:
    public = os.urandom(32)
    for place in (HERE, GONE):
        found.note(place, public)
    assert keys.trusted(HERE) == keys.trusted(GONE) == public
    found.clear({HERE})
    assert keys.trusted(GONE) == public, "found a moment ago, perhaps after the list was made"
    age(keys)
    found.clear({HERE})
    assert (keys.trusted(HERE), keys.trusted(GONE)) == (public, None)


def test_what_the_user_or_another_service_trusts_stays(keys: KeyFolder, found: FoundKeys) -> None:
    own, of_another, shared = "gpu-box", "10.0.0.4:5556", "10.0.0.5:5556"
    public = os.urandom(32)
    keys.trust(own, public)
    FoundKeys(keys, "the hub's service").note(of_another, public)
    found.note(shared, public)
    keys.trust(shared, public)  # the user's word from now on
    found.note(shared, public)
    age(keys)
    found.clear(())
    assert keys.names("trusted") == tuple(sorted((own, of_another, shared)))
    assert keys.found_by(shared) is None


def test_a_later_engine_at_the_same_address_has_another_key_but_not_against_the_user(
    keys: KeyFolder, found: FoundKeys
) -> None:
    first, second = os.urandom(32), os.urandom(32)
    found.note(HERE, first)
    found.note(HERE, second)
    assert keys.trusted(HERE) == second
    keys.trust(HERE, first)
    with pytest.raises(UsageError, match="Another key is trusted for"):
        found.note(HERE, second)
    assert keys.trusted(HERE) == first
