"""Journals on the disk: listed, deleted and moved, never those of an engine that runs; what stays comes back whole."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from djinn_jupyter.cli import main as cli
from djinn_jupyter.engine.store import journals
from djinn_jupyter.errors import StorageFailed, UsageError
from djinn_jupyter.link import spelling
from tests.engine.desk import Desk
from tests.engine.persistence.crashes import crashed, forget, journal, pair_with_journal, written
from tests.engine.persistence.roundtrip import future, reading, same
from tests.engine.persistence.works import PROMPT

MONTH = 30 * 86_400
Pair = tuple[Desk, Desk]


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    """Two engines; the first has sessions `a`, `italy` and `italy 2` in its journal."""
    with pair_with_journal(tmp_path, lambda desk: None) as found:
        for name in ("a", "italy", "italy 2"):
            found[0].open(name)
            found[0].run(PROMPT, new=2, name=name)
        written(found[0])
        yield found


def left(place: Path) -> Path:
    """The journals that a killed engine leaves."""
    return crashed(place / "alive", place / "dead") / "journals"


def names(root: Path) -> set[str | None]:
    return {one.name for one in journals.kept_sessions(root)}


def test_each_session_is_listed_with_its_bytes_and_whose_it_is(pair: Pair, tmp_path: Path) -> None:
    root = left(tmp_path)
    for folder, whose in ((tmp_path / "alive" / "journals", "in use"), (root, "at rest")):
        found = journals.kept_sessions(folder)
        assert {(one.name, one.whose) for one in found} == {(name, whose) for name in ("a", "italy", "italy 2")}
        there = sum(path.stat().st_size for path in folder.rglob("*.session"))
        assert sum(one.nbytes for one in found) == there > 0
        assert all(abs(time.time() - one.written) < 3600 for one in found)


def test_what_is_deleted_does_not_come_back_and_the_rest_does_with_its_bits(pair: Pair, tmp_path: Path) -> None:
    one, other = pair
    root = left(tmp_path)
    journals.delete([kept for kept in journals.kept_sessions(root) if kept.name != "a"])
    assert journal(other, tmp_path / "dead") == ("a",)
    assert same(reading(one), reading(other))
    assert same(future(one), future(other))


def test_nothing_of_a_running_engine_is_deleted_or_moved(pair: Pair, tmp_path: Path) -> None:
    root = tmp_path / "alive" / "journals"
    with pytest.raises(UsageError, match=r"^An engine runs with the journal of "):
        journals.delete(journals.kept_sessions(root))
    with pytest.raises(UsageError, match=r"^An engine runs with the journal of "):
        journals.move(root, tmp_path / "big")
    assert names(root) == {"a", "italy", "italy 2"}
    assert not root.is_symlink()


@pytest.mark.parametrize("times", [1, 2])
def test_moved_journals_are_found_through_the_link_with_their_bits(pair: Pair, tmp_path: Path, times: int) -> None:
    one, other = pair
    root = left(tmp_path)
    for number in range(times):
        there = journals.move(root, tmp_path / f"disk {number}")
        assert root.resolve() == there
        assert [
            path for path in tmp_path.rglob("*.session") if "alive" not in path.parts and there not in path.parents
        ] == []
    assert set(journal(other, tmp_path / "dead")) == {"a", "italy", "italy 2"}
    assert same(reading(one), reading(other))
    assert same(future(one), future(other))
    forget(other)


def test_a_move_that_cannot_be_made_leaves_all_as_before(
    pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = left(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises((StorageFailed, UsageError)):
        journals.move(root, tmp_path / "file")
    with pytest.raises(UsageError, match=r"is within the journals themselves"):
        journals.move(root, root / "deeper")

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("shutil.copytree", full)
    with pytest.raises(StorageFailed, match=r"^The journals stay in .*No space left on device"):
        journals.move(root, tmp_path / "big")
    assert names(root) == {"a", "italy", "italy 2"}
    assert not (tmp_path / "big" / "djinn" / "journals").exists()


@pytest.mark.parametrize("fault", [OSError(5, "Input/output error"), KeyboardInterrupt()], ids=["disk", "interrupt"])
@pytest.mark.parametrize("step", ["copytree", "replace", "force_names"])
def test_a_move_that_ends_at_any_step_loses_nothing(
    pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, fault: BaseException
) -> None:
    root = left(tmp_path)

    def fail(*_: object, **__: object) -> None:
        raise fault

    where = {"copytree": shutil, "replace": Path, "force_names": journals}[step]
    with monkeypatch.context() as patched:
        patched.setattr(where, step, fail)
        with pytest.raises((StorageFailed, KeyboardInterrupt)):
            journals.move(root, tmp_path / "big")
    assert names(root) == {"a", "italy", "italy 2"}
    assert root.is_symlink() == (step == "force_names")
    assert not (root.parent / "journals-link").is_symlink()
    if step != "force_names":
        assert journals.move(root, tmp_path / "big") == root.resolve()
        assert names(root) == {"a", "italy", "italy 2"}


def test_what_a_link_leads_to_is_neither_listed_nor_locked(pair: Pair, tmp_path: Path) -> None:
    root = left(tmp_path)
    [engine] = root.iterdir()
    [folder] = {path.parent for one in journals.kept_sessions(root) for path in one.files}
    others = shutil.copytree(folder, tmp_path / "others")
    (others / "lock").unlink(missing_ok=True)
    (engine / f"{folder.name}7").symlink_to(others, target_is_directory=True)
    assert len(journals.kept_sessions(root)) == 3
    journals.delete(journals.kept_sessions(root))
    assert len(list(others.glob("*.session"))) == 3
    assert not (others / "lock").exists()


def test_the_reason_of_a_move_that_fails_is_that_of_one_file(pair: Pair, tmp_path: Path) -> None:
    root = left(tmp_path)
    [engine] = root.iterdir()
    for number in range(3):
        os.mkfifo(engine / f"pipe {number}")
    with pytest.raises(StorageFailed, match=r"\(`[^`]*` is a named pipe\)\.$"):
        journals.move(root, tmp_path / "big")
    assert names(root) == {"a", "italy", "italy 2"}


def test_the_command_lists_and_deletes_by_pattern_and_age(
    pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    root = left(tmp_path)
    monkeypatch.setattr(journals, "journals_folder", lambda: root)
    old = next(one for one in journals.kept_sessions(root) if one.name == "italy 2")
    for path in old.files:
        os.utime(path, (time.time() - 2 * MONTH,) * 2)

    def said(*words: str) -> list[str]:
        status = cli.main(["journals", *words])
        told = capsys.readouterr()
        return (told.out if status == 0 else told.err).splitlines()

    head, *rows, total = said()
    assert head.split() == ["ENGINE", "SESSION", "SIZE", "AGE"]
    assert sorted(row.split("  ")[1].strip() for row in rows) == ["a", "italy", "italy 2"]
    assert total.startswith("3 sessions, ")
    assert total.endswith(str(root))
    assert "60 d" in said("--older", "30d")[1]
    assert said("--delete") == ["djinn: Say which: names or patterns of sessions, or --older 30d; '*' is all."]
    assert said("nowhere*") == ["djinn: No kept session matches 'nowhere*'; djinn journals lists them."]
    for path in old.files:
        path.write_bytes(b"not readable")
    assert said("--delete", "") == ["djinn: No kept session matches ''; djinn journals lists them."]
    assert said("--move", "") == ["djinn: '' names no folder."]
    assert said("--move", "~nobody-here/x") == ["djinn: '~nobody-here/x' names no folder."]
    assert said("--move", str(tmp_path), "a") == ["djinn: --move moves all journals: leave out the names and --older."]
    for path in old.files:
        os.utime(path, (time.time() - 2 * MONTH,) * 2)
    assert said("--delete", "--older", "30d")[0].startswith("1 session, ")
    assert names(root) == {"a", "italy"}
    assert said("--delete", "ital*")[0].endswith(" deleted.")
    assert names(root) == {"a"}
    monkeypatch.setattr(journals, "journals_folder", lambda: tmp_path / "alive" / "journals")
    (told,) = said("--delete", "*")
    assert told == "0 sessions, 0 B deleted; 3 are of running engines or of other hosts and stay: close them there."
    assert names(tmp_path / "alive" / "journals") == {"a", "italy", "italy 2"}
    monkeypatch.setattr(spelling, "find_spec", lambda name: None)
    assert said()[0].endswith(" are not installed here: pip install djinn-jupyter.")
