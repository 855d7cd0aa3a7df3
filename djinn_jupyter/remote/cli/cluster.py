"""`djinn cluster`: engines on the machines of a Ray cluster."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Final

from djinn_jupyter.cli.commands import Commands, tell_entry, told_as_notices
from djinn_jupyter.errors import MissingDependency
from djinn_jupyter.link.starting import StartCallbacks
from djinn_jupyter.link.waiting import TerminalProgress
from djinn_jupyter.settings import GivenOptions, Identity, add_flags, chosen, words_of
from djinn_jupyter.units import parse_bytes
from djinn_jupyter.wire.registry import Entry

_TRUST: Final = (
    "All who reach that address can run programs as this account: keep it, and all of Ray's ports, in a closed network."
)


def add_to(commands: Commands) -> None:
    cluster = commands.add_parser("cluster", help="engines on the machines of a Ray cluster")
    verbs = cluster.add_subparsers(required=True, metavar="VERB")
    start = verbs.add_parser("start", help="begin a cluster whose head is this machine")
    start.add_argument("--host", required=True, metavar="ADDRESS", help="of this machine, in a closed network")
    start.add_argument("--port", type=int, default=6379, metavar="N", help="of Ray; default 6379")
    start.set_defaults(command=_start)
    load = verbs.add_parser("load", help="have Ray place the engine of a model, or find it")
    load.add_argument("model", help="demo, a folder that all machines have, or a hub name")
    load.add_argument("--cpus", type=int, metavar="N", help="CPUs that Ray sets aside; default --threads, else 1")
    load.add_argument("--gpus", type=int, metavar="N", help="GPUs likewise; default those that --device names")
    load.add_argument("--memory", type=parse_bytes, metavar="AMOUNT", help="main memory likewise, such as 20GiB")
    add_flags(load.add_argument, GivenOptions)
    load.set_defaults(command=_load)
    verbs.add_parser("list", help="the engines of the cluster").set_defaults(command=_list)
    stop = verbs.add_parser("stop", help="end an engine of the cluster")
    stop.add_argument("model", nargs="?", help="which, when several run")
    stop.set_defaults(command=_stop)
    drain = verbs.add_parser("drain", help="move the engines of a machine that is to go down, with their sessions")
    drain.add_argument("machine", help="its host name or address, as Ray knows it")
    drain.set_defaults(command=_drain)
    entry = verbs.add_parser("entry", help="the question of a notebook: place the engine of a model, and tell of it")
    entry.add_argument("model", nargs="?", help="by default the only engine of the cluster")
    entry.add_argument("--key", metavar="NAME", help="which of your keys, or its file; by default the only one")
    entry.add_argument("--there", action="store_true", help="only where the cluster has it already")
    entry.add_argument("--on", metavar="MACHINE", help="an engine like it on that machine, another copy of it perhaps")
    add_flags(entry.add_argument, GivenOptions)
    entry.set_defaults(command=_entry)


def _start(options: argparse.Namespace) -> int:
    at = f"{options.host}:{options.port}"
    _verbs().begin(options.host, options.port)
    print(f"A Ray cluster has begun at {at}. {_TRUST}")
    print(f"On each other machine of it:\n  ray start --address={at} --disable-usage-stats")
    print("Here:\n  djinn cluster load demo")
    return 0


def _load(options: argparse.Namespace) -> int:
    given, reserved = chosen(GivenOptions, options), (options.cpus, options.gpus, options.memory)
    with TerminalProgress() as shown:
        told = StartCallbacks(line=shown.line, second=shown.second)
        entry = _verbs().load(options.model, given, reserved, told)
    print(f"The engine of {entry.identity} is at {entry.listens}. In a notebook on a machine of the cluster:")
    print(f"  %djinn_load {' '.join([entry.identity.model, *_flags(entry.identity)])} --at cluster")
    return 0


def _flags(identity: Identity) -> list[str]:
    """Return the flags with which a load means the engine of this identity."""
    told = ("--model=", "--random-seed=0", "--copy=1", "--tensor-parallel=1")  # by the model's name, and by default
    return [word for word in words_of(identity) if not word.startswith(told)]


def _list(options: argparse.Namespace) -> int:
    found = _verbs().listed()
    for identity, state in found:
        print(f"{identity}  {state}")
    if not found:
        print("No engine is in the cluster.")
    return 0


def _drain(options: argparse.Namespace) -> int:
    with TerminalProgress() as shown:
        found = _verbs().drain(options.machine, StartCallbacks(line=shown.line, second=shown.second))
    print(f"Ray places nothing more on {options.machine}.")
    for identity, state in found:
        print(f"{identity} {state}.")
    return int(not all(state.startswith("is on ") for _, state in found))


def _stop(options: argparse.Namespace) -> int:
    print(f"The engine of {_verbs().stop(options.model)} has ended.")
    return 0


def _entry(options: argparse.Namespace) -> int:
    given, told = chosen(GivenOptions, options), told_as_notices()
    return tell_entry(lambda: _asked(options)(options.model, options.key, given, told))


def _asked(options: argparse.Namespace) -> Callable[..., Entry]:
    if options.on is not None:
        return partial(_verbs().entry_on, options.on)
    found: Callable[..., Entry] = _verbs().entry_there if options.there else _verbs().entry_for_person
    return found


def _verbs() -> ModuleType:
    """Return the verbs of a cluster. MissingDependency without Ray."""
    try:
        from djinn_jupyter.remote.cluster import verbs
    except ModuleNotFoundError as error:
        if error.name != "ray":
            raise
        raise MissingDependency("A cluster needs Ray: pip install 'djinn-jupyter[cluster]'.") from None
    return verbs
