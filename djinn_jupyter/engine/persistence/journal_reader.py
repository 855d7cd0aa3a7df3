"""Read the last whole image in a session's journal file. A process that was killed leaves a torn end; that is no
damage."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec
import torch

from djinn_jupyter import former_files
from djinn_jupyter.engine.persistence.identity import ModelIdentity, check_identity
from djinn_jupyter.engine.persistence.image import SessionImage
from djinn_jupyter.engine.persistence.image_arrays import Arrays
from djinn_jupyter.engine.persistence.journal_file import JournalLabel
from djinn_jupyter.engine.persistence.records import (
    FORMAT,
    LABEL,
    PREFIX_BYTES,
    SESSION,
    Damaged,
    FoundRecord,
    NotOurs,
    OtherFormat,
    RecordReader,
    Torn,
)
from djinn_jupyter.engine.persistence.tensor_table import decode
from djinn_jupyter.errors import CheckpointRefused
from djinn_jupyter.plain_files import open_plain


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadJournal:
    """The content of a journal file. `damaged`: bytes within it are not those that were written."""

    image: SessionImage
    damaged: bool


class Unfinished(CheckpointRefused):
    """The file ends before its first whole image does."""


def read_journal_file(path: Path, model: ModelIdentity, device: torch.device) -> ReadJournal:
    """Return the last image of a file. Raises CheckpointRefused where there is none (Unfinished: not yet), or one of
    another model or format; OSError."""
    with open_plain(path, linked=False) as file:
        try:
            reader = RecordReader(file)
        except NotOurs:
            refused = Unfinished if path.stat().st_size < PREFIX_BYTES else CheckpointRefused
            raise refused(f"{path.name} is no journal of Djinn.") from None
        except OtherFormat as other:
            raise CheckpointRefused(former_files.refusal(other.args[0], FORMAT)) from None
        last, arrays, damaged = _last(reader, model)
        if last is None:
            refused = CheckpointRefused if damaged else Unfinished
            raise refused(f"{path.name} holds no whole image of a session.")
        image = decode(reader.body(last), SessionImage, Arrays(reader, arrays, device))
    return ReadJournal(image=image, damaged=damaged)


class _Named(msgspec.Struct):
    """The entry of any image that says whose it is; it has more."""

    name: str


def session_in(path: Path) -> str | None:
    """Return the name of the session in a file, of whatever model; None where no image of it can be read."""
    last: FoundRecord | None = None
    try:
        with open_plain(path, linked=False) as file:
            reader = RecordReader(file)
            with suppress(Torn, Damaged):
                while (found := reader.next()) is not None:
                    last = found if found.kind == SESSION else last
            return None if last is None else msgspec.msgpack.decode(reader.body(last), type=_Named).name
    except (NotOurs, OtherFormat, CheckpointRefused, OSError, msgspec.MsgspecError, ValueError):
        return None


def _last(reader: RecordReader, model: ModelIdentity) -> tuple[FoundRecord | None, dict[int, FoundRecord], bool]:
    """Return the last image before a torn or damaged end, the arrays before it, and True where there was damage."""
    last: FoundRecord | None = None
    arrays: dict[int, FoundRecord] = {}
    labelled = False
    try:
        while (found := reader.next()) is not None:
            if found.head is not None:
                arrays[found.head.number] = found
            elif found.kind == LABEL:
                check_identity(decode(reader.body(found), JournalLabel, {}).model, model)
                labelled = True
            elif found.kind == SESSION and labelled:
                last = found
    except Torn:
        return last, arrays, False
    except Damaged:
        return last, arrays, True
    return last, arrays, False
