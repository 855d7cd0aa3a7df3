"""`djinn people` and `djinn quota`: the persons at the engines of this machine, their use, and their limits."""

from __future__ import annotations

import argparse

from djinn_jupyter.cli.commands import Commands
from djinn_jupyter.cli.engines import named_or_all
from djinn_jupyter.errors import UsageError
from djinn_jupyter.remote.addresses import key_folder
from djinn_jupyter.units import spell_bytes, spell_duration
from djinn_jupyter.wire.keys import require_person_name
from djinn_jupyter.wire.people import EXAMPLE, KINDS, PersonDescription, QuotaFolder, read_quota, spell_told
from djinn_jupyter.wire.texts import aligned

HEAD = ("PERSON", "SESSIONS", "DEVICE", "HOST", "DISK", "CHECKPOINTS", "RUN TODAY", "NOTEBOOKS", "SEEN", "QUOTA")


def add_to(commands: Commands) -> None:
    people = commands.add_parser("people", help="who is at the engines that run: sessions, memory, running time")
    people.add_argument("model", nargs="?", help="the engine of this model alone")
    people.set_defaults(command=_people)
    quota = commands.add_parser("quota", help="what a person may have of your engines that listen")
    quota.add_argument("person", nargs="?", metavar="NAME", help="by default all who have a quota of their own")
    quota.add_argument("most", nargs="*", metavar="KIND=MOST", help=f"of {', '.join(KINDS)}, as {EXAMPLE}; or none")
    quota.add_argument("--common", action="store_true", help="the common quota of each engine (--quota) again")
    quota.set_defaults(command=_quota)


def _people(options: argparse.Namespace) -> int:
    from djinn_jupyter.api.loading import attach

    entries = named_or_all(options.model)
    for entry in entries:
        lines = aligned([HEAD, *map(_row, attach(entry).people())])
        print(f"{entry.identity}:", *lines, sep="\n  ")
    if not entries:
        print("No engine runs.")
    return 0


def _quota(options: argparse.Namespace) -> int:
    keys = key_folder()
    folder = QuotaFolder(keys)
    if options.most and options.common:
        raise UsageError("Give what the person may have, or --common, not both.")
    if options.person is not None:
        person = require_person_name(options.person)
        if options.most:
            folder.write(person, read_quota(" ".join(options.most)))
        elif options.common:
            folder.forget(person)
    told = {name: own for name, own in folder.read().items() if options.person in (None, name)}
    for name, own in told.items():
        print(f"{name}  {spell_told(own)}")
    if not told:
        print(f"{options.person or 'Each person'} has the common quota of each engine (--quota).")
    return 0


def _row(one: PersonDescription) -> tuple[str, ...]:
    memory = one.memory
    sizes = (memory.device_bytes, memory.host_bytes, memory.disk_bytes, one.checkpoint_bytes or 0)
    return (
        one.person or "engine's user",
        _sessions(one),
        *(spell_bytes(size) for size in sizes),
        spell_duration(one.running_seconds or 0.0),
        str(one.notebooks),
        "never" if one.seen_seconds is None else f"{spell_duration(one.seen_seconds)} ago",
        str(one.quota or "") or "none",
    )


def _sessions(one: PersonDescription) -> str:
    return f"{one.sessions}, {one.running} running" if one.running else str(one.sessions)
