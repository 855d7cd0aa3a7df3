"""`djinn journals`: the sessions that journals keep on this machine's disk, listed, deleted and moved."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from fnmatch import fnmatchcase
from importlib import import_module
from typing import Any, Final

from djinn_jupyter.api.arguments import given_path
from djinn_jupyter.cli.commands import Commands, duration
from djinn_jupyter.errors import UsageError
from djinn_jupyter.link.spelling import require_engine_parts
from djinn_jupyter.units import spell_bytes, spell_duration
from djinn_jupyter.wire.texts import aligned, in_quotes, label, shown

JOURNALS: Final = "djinn_jupyter.engine.store.journals"  # it loads torch, which no other command needs
LOCKED: Final = ("in use", "another host's")
HEAD: Final = ("ENGINE", "SESSION", "SIZE", "AGE", "")


def add_to(commands: Commands) -> None:
    journals = commands.add_parser("journals", help="the sessions kept on the disk: list, delete, move them")
    journals.add_argument("patterns", nargs="*", help="names of sessions, or patterns such as italy*; default all")
    journals.add_argument("--older", type=duration, metavar="AGE", help="those not written for so long, as 30d")
    what = journals.add_mutually_exclusive_group()
    what.add_argument("--delete", action="store_true", help="delete those; engines' own stay: close sessions there")
    what.add_argument("--move", metavar="FOLDER", help="move all to another disk, and leave a link; no engine may run")
    journals.set_defaults(command=_journals)


def _journals(options: argparse.Namespace) -> int:
    require_engine_parts()
    journals = import_module(JOURNALS)
    root = journals.journals_folder()
    if options.move is not None:
        if options.patterns or options.older is not None:
            raise UsageError("--move moves all journals: leave out the names and --older.")
        moved = journals.move(root, given_path(options.move, "folder"))
        print(f"The journals are in {moved} now; {root} is a link to it.")
        return 0
    found = _chosen(journals.kept_sessions(root), options.patterns, options.older)
    if not options.delete:
        rows = [_row(one, time.time()) for one in found]
        print("\n".join(aligned([HEAD, *rows])) if rows else "No session is kept on the disk.")
        print(f"{_counted(found)} in {root}")
        return 0
    if not options.patterns and options.older is None:
        raise UsageError("Say which: names or patterns of sessions, or --older 30d; '*' is all.")
    free = [one for one in found if one.whose not in LOCKED]
    journals.delete(free)
    print(f"{_counted(free)} deleted{_left(len(found) - len(free))}.")
    return 0


def _chosen(sessions: Sequence[Any], patterns: Sequence[str], older: float | None) -> list[Any]:
    """Return the sessions that a pattern matches. UsageError where one matches none."""
    for pattern in patterns:
        if not any(_is_meant(one, pattern) for one in sessions):
            raise UsageError(f"No kept session matches {in_quotes(pattern)}; djinn journals lists them.")
    now = time.time()
    return [
        one
        for one in sessions
        if (not patterns or any(_is_meant(one, pattern) for pattern in patterns))
        and (older is None or now - one.written > older)
    ]


def _is_meant(session: Any, pattern: str) -> bool:
    name = session.name or ""  # an empty pattern, such as a variable of the shell that is not set, means none of them
    return bool(pattern) and (pattern in (name, label(name)) or fnmatchcase(label(name), pattern))


def _row(one: Any, now: float) -> tuple[str, ...]:
    name = "(not readable)" if one.name is None else label(one.name)
    age = spell_duration(max(1.0, now - one.written))
    return shown(one.engine), name, spell_bytes(one.nbytes), age, "" if one.whose == "at rest" else one.whose


def _counted(sessions: Sequence[Any]) -> str:
    many = "1 session" if len(sessions) == 1 else f"{len(sessions):,} sessions"
    return f"{many}, {spell_bytes(sum(one.nbytes for one in sessions))}"


def _left(count: int) -> str:
    if not count:
        return ""
    are, stay, them = ("is", "stays", "it") if count == 1 else ("are", "stay", "them")
    return f"; {count:,} {are} of running engines or of other hosts and {stay}: close {them} there"
