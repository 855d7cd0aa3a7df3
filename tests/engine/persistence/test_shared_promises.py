"""On a shared journal a reply goes out when the disk has what it reports, and while the journal is this engine's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from djinn_jupyter.engine.store import journal as journals
from djinn_jupyter.engine.store.journal_file import JournalFiles
from djinn_jupyter.errors import ClaimLost
from djinn_jupyter.remote.engine.lease import ClaimFiles, LeasedFolder, claim
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.replies import Failed
from tests.engine.desk import ME, Desk, build_desk
from tests.engine.persistence.crashes import journal
from tests.engine.persistence.test_promises import DAY
from tests.families import build


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    """An engine with a shared journal."""
    desk = build_desk(build("llama"))
    desk.engine.persistence._shared = True
    journal(desk, tmp_path)
    yield desk
    desk.engine.abandon()


def own_folder(desk: Desk) -> LeasedFolder:
    return desk.engine.persistence.journal.store


def test_the_disk_has_what_a_reply_reports_when_it_goes_out(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    lengths: dict[Path, int] = {}
    force = JournalFiles.force

    def noted(files: JournalFiles) -> None:
        length = files._file.length if files._file else 0
        force(files)
        if files._file:
            lengths[files._file.path] = length

    monkeypatch.setattr(JournalFiles, "force", noted)
    unforced: list[list[str]] = []

    def reply(reply: Any) -> None:
        there = {path: path.stat().st_size for path in own_folder(desk).files(".session")}
        assert not isinstance(reply, Failed)
        unforced.append([path.name for path, size in there.items() if lengths.get(path) != size])

    for number, request in enumerate(DAY):
        desk.engine.submit(request(), ME, reply)
        while len(unforced) == number:
            desk.engine.tick()
    assert unforced == [[] for _ in DAY]


def test_an_engine_whose_claim_is_lost_ends_also_where_nobody_asks(desk: Desk) -> None:
    folder = own_folder(desk)
    later = claim(ClaimFiles(folder.folder.parent), lambda: None)
    folder._lease.look()
    with pytest.raises(ClaimLost, match="has taken over the sessions of this one"):
        desk.engine.tick()
    later.stop()


def test_a_claim_that_is_lost_while_the_reply_is_written_holds_it_back(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, replies, later = own_folder(desk), list[Any](), list[Any]()
    write = journals.Journal.write

    def taken_over_meanwhile(kept: journals.Journal, *what: Any) -> None:
        write(kept, *what)
        if not later:
            later.append(claim(ClaimFiles(folder.folder.parent), lambda: None))
            folder._lease.look()

    monkeypatch.setattr(journals.Journal, "write", taken_over_meanwhile)
    desk.post(ask.Open(session="b"), replies)
    with pytest.raises(ClaimLost):
        desk.engine.tick()
    assert replies == []
    later[0].stop()
