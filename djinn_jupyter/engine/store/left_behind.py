"""Find what earlier processes left in a journal folder: the newest whole image of each session. Each unusable file is
set aside on its own, so that no file keeps an engine from starting."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch

from djinn_jupyter.engine.store.identity import ModelIdentity
from djinn_jupyter.engine.store.image import SessionImage
from djinn_jupyter.engine.store.journal_file import (
    SUFFIX,
    JournalFolder,
    Unfinished,
    by_session,
    name_of,
    read_journal_file,
    session_in,
)

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftBehind:
    """A session of an earlier process. The last of `files` holds its image, after those it was to replace. `newest` is
    the session's file with the highest number."""

    image: SessionImage
    files: tuple[Path, ...]
    newest: Path

    @property
    def path(self) -> Path:
        return self.files[-1]


def take_stock(folder: JournalFolder, model: ModelIdentity, device: torch.device) -> list[LeftBehind]:
    """Return the sessions, in the order in which they were last written. What was set aside and fits again, as where a
    model's files are what they were, is among them."""
    _take_back(folder, model, device)
    found = [_newest(folder, files, model, device) for files in by_session(folder.files(SUFFIX))]
    there = [one for one in found if one is not None]
    return sorted(there, key=lambda one: _written(one.path))


def _take_back(folder: JournalFolder, model: ModelIdentity, device: torch.device) -> None:
    there = {name_of(path).stem for path in folder.files(SUFFIX)}
    for path in folder.aside(SUFFIX):
        with suppress(Exception):  # it stays aside
            if name_of(path).stem not in there:
                read_journal_file(path, model, device)
                path.rename(folder.folder / path.name)
                log.info("%s fits this engine again, and comes back", path.name)


def _newest(
    folder: JournalFolder, files: Sequence[Path], model: ModelIdentity, device: torch.device
) -> LeftBehind | None:
    """Return the newest usable image among one session's files (newest first)."""
    failed: list[tuple[Path, Exception]] = []
    for number, path in enumerate(files):
        try:
            read = read_journal_file(path, model, device)
        except Exception as error:  # noqa: BLE001  the start's edge: one file's error must not stop the others
            failed.append((path, error))
            continue
        if read.damaged:
            log.warning("%s was damaged; an image before the damage is used", path.name)
        for newer, why in failed:
            _do_away_with(folder, newer, why)
        return LeftBehind(image=read.image, files=tuple(reversed(files[number:])), newest=files[0])
    for path, why in failed:
        folder.put_aside(path, why, session_in(path))
    return None


def _do_away_with(folder: JournalFolder, path: Path, why: Exception) -> None:
    """Remove a file that was to replace the one used. A file that ends before its first image holds nothing and is
    deleted."""
    if isinstance(why, Unfinished):
        with suppress(OSError):
            folder.medium.remove([path])
    else:
        folder.put_aside(path, why)


def _written(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
