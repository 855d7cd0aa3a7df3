"""The keys that a cluster or a hub has told: trusted while it has the engine, and the user's own word before them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from djinn_jupyter.errors import UsageError
from djinn_jupyter.wire.keys import FoundKeys, KeyFolder

HERE, GONE = "10.0.0.3:5556", "10.0.0.3:5557"


@pytest.fixture
def keys(tmp_path: Path) -> KeyFolder:
    return KeyFolder(tmp_path / "keys")


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
