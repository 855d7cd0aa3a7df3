"""The notices of a starting engine, written to standard output for the program that started this command."""

from __future__ import annotations

import sys
from collections.abc import Callable

from djinn_jupyter.client.engines.starting import StartCallbacks
from djinn_jupyter.errors import DjinnError
from djinn_jupyter.wire.registry import Entry, Notice, Progressed, Ready, StartFailed, StillStarting, encode_notice


def tell_entry(find: Callable[[], Entry]) -> int:
    """Write the entry that is found, or the error; return the exit status."""
    try:
        entry = find()
    except DjinnError as error:
        _write(StartFailed(code=error.code, message=str(error)))
        return 1
    _write(Ready(entry=entry))
    return 0


def told_as_notices() -> StartCallbacks:
    return StartCallbacks(
        line=lambda line: _write(Progressed(line=line)), second=lambda line: _write(StillStarting(line=line))
    )


def _write(notice: Notice) -> None:
    sys.stdout.buffer.write(encode_notice(notice))
    sys.stdout.buffer.flush()
