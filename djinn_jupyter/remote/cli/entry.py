"""`djinn entry`: find or start an engine for a user on another machine, who runs this command through ssh and reads its
notices from standard output (wire/registry.py)."""

from __future__ import annotations

import argparse
from typing import cast

from djinn_jupyter._version import __version__
from djinn_jupyter.cli.commands import Commands, tell_entry, told_as_notices
from djinn_jupyter.errors import UsageError, VersionMismatch
from djinn_jupyter.link.registry import running_engines
from djinn_jupyter.settings import GivenOptions, add_flags, chosen
from djinn_jupyter.wire import protocol
from djinn_jupyter.wire.own import host_name
from djinn_jupyter.wire.registry import Entry


def add_to(commands: Commands) -> None:
    entry = commands.add_parser("entry", help="what another machine asks through ssh: start an engine, and tell of it")
    entry.add_argument("model", nargs="?", help="demo, a folder or a hub name; by default the only engine that runs")
    entry.add_argument("--speaks", metavar="VERSION:PROTOCOL", help="what the other machine speaks")
    add_flags(entry.add_argument, GivenOptions)
    entry.set_defaults(command=_entry)


def _entry(options: argparse.Namespace) -> int:
    return tell_entry(lambda: _found(options))


def _found(options: argparse.Namespace) -> Entry:
    if options.speaks is not None:
        _require_same(*options.speaks.split(":", 1))
    return _only() if options.model is None else _loaded(options)


def _require_same(version: str, spoken: str = "") -> None:
    if protocol.difference(version, spoken) is None:
        return
    here = f"{__version__} there, {version} here" if version != __version__ else "their messages differ"
    raise VersionMismatch(
        f"Djinn on {host_name()} is of another version ({here}): install the same version on both sides."
    )


def _only() -> Entry:
    """Return the only running engine. UsageError where there is none, or several."""
    from djinn_jupyter.api.loading import attach

    running = running_engines()
    if not running:
        raise UsageError(f"No engine of yours runs on {host_name()}: name a model, and it is started there.")
    if len(running) > 1:
        names = ", ".join(str(entry.identity) for entry in running)
        raise UsageError(f"Several engines run on {host_name()} ({names}): name the model that you mean.")
    entry = attach(running[0]).entry
    assert entry is not None  # it was reached by one
    return entry


def _loaded(options: argparse.Namespace) -> Entry:
    from djinn_jupyter.api.loading import load

    told = told_as_notices()
    engine = load(
        options.model, progress=told.line, each_second=told.second, **cast(GivenOptions, chosen(GivenOptions, options))
    )
    assert engine.entry is not None  # of a process of this machine
    return engine.entry
