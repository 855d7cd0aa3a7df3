"""The sentence for a connection on this machine that was lost: whether the engine's process has ended."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final

from djinn_jupyter.client.engines.registry import is_alive
from djinn_jupyter.file_stamps import first_change
from djinn_jupyter.wire.log_files import reason_of_end
from djinn_jupyter.wire.registry import Entry

SEE_LOG: Final = "see its log with `%djinn_log` or `djinn log`"
DEATH_SECONDS = 2.0  # a killed process closes its sockets a little before it is gone


async def sentence_of_end(entry: Entry) -> str:
    """Return whether the engine's process has ended or closed the connection, once that is known."""
    deadline = asyncio.get_running_loop().time() + DEATH_SECONDS
    while is_alive(entry):
        if asyncio.get_running_loop().time() > deadline:
            return f"{entry.named} closed the connection; {SEE_LOG}, and load it again."
        await asyncio.sleep(0.01)
    return ended_sentence(entry)


def ended_sentence(entry: Entry) -> str:
    """Return what a client is told of an engine that has ended, with the reason where its files or its log have one."""
    changed = None if entry.is_afar else first_change(entry.files)
    why = f" ({changed})" if changed is not None and "cut short" in changed else ""
    reason = reason_of_end(Path(entry.log), entry.pid) if entry.log and not entry.is_afar else None
    return (
        f"{entry.named} has ended{why}; the next load starts a new one, and the sessions it has kept come back with "
        f"it; {SEE_LOG}.{f' The reason: {reason}' if reason else ''}"
    )
