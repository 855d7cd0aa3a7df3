"""A journal that several machines share belongs to one engine at a time: the older stops, the newer waits for that, and
what the older may still write reaches no one."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest

from djinn_jupyter.engine.store.journal_file import Disk, JournalFile
from djinn_jupyter.errors import ClaimLost
from djinn_jupyter.remote.engine import lease as leased_folders
from djinn_jupyter.remote.engine import lease as leases
from djinn_jupyter.remote.engine.lease import (
    LEASE_SECONDS,
    SEALED,
    Claimant,
    ClaimFiles,
    JournalLease,
    LeasedFolder,
    await_earlier,
    claim,
    take_leased_folder,
)

SESSION, PAGES = ".session", ".pages"
Claim = Callable[..., JournalLease]


@pytest.fixture
def claimed() -> Iterator[Claim]:
    """Claim an epoch; its lease is looked after until the test ends."""
    made: list[JournalLease] = []

    def make(root: Path, *, clock: Callable[[], float] = leases.awake_or_asleep) -> JournalLease:
        made.append(claim(ClaimFiles(root), lambda: None, clock))
        return made[-1]

    yield make
    for lease in made:
        lease.stop()


def on_another_machine(lease: JournalLease) -> None:
    """Have the claim look as if a machine had made it whose processes are not seen from here."""
    assert isinstance(lease.claims, ClaimFiles)
    path = lease.claims.root / f"{lease.epoch}.claim"
    afar = msgspec.structs.replace(Claimant.this_process(), host="node-b", boot="another", pid=4711)
    path.write_bytes(msgspec.json.encode(afar))


def folder(root: Path) -> LeasedFolder:
    return take_leased_folder(root, SESSION, PAGES, lambda: None)


def test_each_of_many_that_claim_at_once_has_an_epoch_of_its_own(tmp_path: Path, claimed: Claim) -> None:
    with ThreadPoolExecutor(8) as threads:
        made = list(threads.map(lambda _: claimed(tmp_path), range(16)))
    assert sorted(lease.epoch for lease in made) == list(range(1, 17))
    assert ClaimFiles(tmp_path).highest() == 16


def test_an_engine_stops_when_it_sees_a_later_claim(tmp_path: Path, claimed: Claim) -> None:
    older = claimed(tmp_path)
    older.require()
    newer = claimed(tmp_path)
    on_another_machine(newer)
    older.look()
    with pytest.raises(ClaimLost, match=r"Another engine \(process 4711 on node-b\) has taken over the sessions"):
        older.require()
    newer.require()


def test_an_engine_that_cannot_look_stops_by_its_own_clock(tmp_path: Path, claimed: Claim) -> None:
    now = [100.0]
    lease = claimed(tmp_path, clock=lambda: now[0])
    now[0] += LEASE_SECONDS - 1
    lease.look()  # which renews it
    tmp_path.rename(tmp_path.with_name("unreachable"))
    with pytest.raises(OSError, match="No such file"):
        lease.look()
    now[0] += LEASE_SECONDS
    lease.require()
    now[0] += 0.1
    with pytest.raises(ClaimLost, match="could not be reached for 10 s"):
        lease.require()


def test_the_newer_waits_for_a_lease_of_another_machine(
    tmp_path: Path, claimed: Claim, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert leases.WAIT_SECONDS > LEASE_SECONDS
    older, waited = claimed(tmp_path), list[float]()
    on_another_machine(older)
    newer = claimed(tmp_path)
    monkeypatch.setattr(leases.time, "monotonic", lambda: sum(waited))
    monkeypatch.setattr(leases.time, "sleep", waited.append)
    assert await_earlier(newer) == {1: False}
    assert sum(waited) > LEASE_SECONDS
    on_another_machine(newer)
    newer.end()
    assert await_earlier(claimed(tmp_path))[2], "for one that ended it does not wait"


def test_an_engine_that_lost_its_claim_cannot_say_that_it_ended(tmp_path: Path, claimed: Claim) -> None:
    older = claimed(tmp_path)
    claimed(tmp_path)
    older.look()
    with pytest.raises(ClaimLost):
        older.end()
    assert not (tmp_path / "1.ended").exists()


def test_what_an_engine_writes_after_it_was_taken_over_reaches_no_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    older = folder(tmp_path)
    file = JournalFile(older.folder / "ab.0.session", (), Disk())
    file.append(lambda writer: writer.begin())
    kept = file.path.read_bytes()
    monkeypatch.setattr(leased_folders, "await_earlier", lambda lease: {1: False})  # it lives, and its lease is over
    newer = folder(tmp_path)
    file.append(lambda writer: writer.begin())
    with pytest.raises(FileNotFoundError):
        JournalFile(older.folder / "ab.1.session", (), Disk())
    assert [path.read_bytes() for path in newer.files(SESSION)] == [kept]
    assert {path.name for path in tmp_path.iterdir()} == {"2", "2.claim"}
    older.release()
    newer.release()
    assert (tmp_path / "2.ended").exists()


@pytest.mark.parametrize("ended", [True, False])
def test_the_disk_tier_is_taken_from_an_engine_that_is_known_to_have_ended(
    ended: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    older = folder(tmp_path)
    (older.folder / "x.pages").write_bytes(b"rows")
    monkeypatch.setattr(leased_folders, "await_earlier", lambda lease: {1: ended})
    newer = folder(tmp_path)
    assert [path.name for path in newer.files(PAGES)] == (["x.pages"] if ended else [])
    older.release()
    newer.release()


def test_a_take_over_that_broke_off_is_finished_by_the_next(tmp_path: Path) -> None:
    """An engine died after it had copied one file of two, and had written to the copy."""
    for name, text in (("1.sealed/a.0.session", b"a"), ("1.sealed/b.0.session", b"b"), ("2/a.0.session", b"a, later")):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(text)
    (tmp_path / "2.claim").write_bytes(msgspec.json.encode(Claimant.this_process()))
    (tmp_path / "2.ended").touch()
    own = folder(tmp_path)
    assert {path.name: path.read_bytes() for path in own.files(SESSION)} == {
        "a.0.session": b"a, later",
        "b.0.session": b"b",
    }
    assert not list(tmp_path.glob(f"*{SEALED}"))
    own.release()


def test_a_folder_that_cannot_make_links_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(source: object, target: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    with pytest.raises(OSError, match="its file system makes no hard links"):
        folder(tmp_path)
    assert not list(tmp_path.iterdir())
