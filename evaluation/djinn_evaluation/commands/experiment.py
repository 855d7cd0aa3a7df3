"""`djinn experiment NAME`: read the configuration, run, write, and end with 0 only if the verdict is pass, with 3 if
it is undecided."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from djinn_evaluation.commands import every
from djinn_evaluation.commands.offers import OFFERS, TWO_MODELS, Offer
from djinn_jupyter.cli.commands import Commands, Parser
from djinn_jupyter.errors import UsageError

PROFILES = ("small", "gpu")


def add_to(commands: Commands) -> None:
    experiment = commands.add_parser("experiment", help="the evaluation: measure, compare, report")
    names = experiment.add_subparsers(required=True, metavar="EXPERIMENT")
    for offer in OFFERS:
        parser = names.add_parser(offer.name, help=offer.summary)
        _add_common(parser)
        offer.flags(parser)
        parser.set_defaults(command=lambda options, offer=offer: _command(options, offer))
    every.add_to(names, PROFILES, OFFERS, _run_one, add_server)


def _run_one(offer: Offer, arguments: list[str]) -> int:
    """Run one experiment as its own command would; return the exit status."""
    parser = Parser(prog=f"djinn experiment {offer.name}")
    _add_common(parser)
    offer.flags(parser)
    return _command(parser.parse_args(arguments), offer)


def _add_common(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--config", metavar="FILE", help="a configuration file, by path or by the name of a shipped one")
    add(
        "--profile",
        choices=PROFILES,
        help="a shipped configuration: small, the demo model in minutes; gpu, Llama-2-13B on one GPU",
    )
    add("--set", action="append", default=[], metavar="KEY=VALUE", dest="settings", help="one key, by its dotted path")
    add(
        "--random-weights",
        metavar="CONFIG",
        help="this architecture (a folder, a config.json, a hub name) with random "
        "weights; its sizes by --set architecture.KEY=VALUE",
    )
    add("--output-dir", type=Path, metavar="DIR", help="the folder of the results, in place of the configured one")
    add("--gpu-index", type=int, metavar="N", help="the GPU that all sides compute on")
    add_server(parser)
    add("--explain", action="store_true", help="what each key does, and end")


def add_server(parser: argparse.ArgumentParser) -> None:
    """Add the flags of an engine that runs already."""
    parser.add_argument(
        "--server-address",
        "--server",
        metavar="ADDRESS",
        dest="server",
        help="an engine that runs, in place of one of the run's own: tcp://gpu-box:5556, gpu-box or ssh://gpu-box",
    )
    parser.add_argument("--key", metavar="NAME", help="--server: which of your keys, or its file; else the only one")


def server_of(options: argparse.Namespace) -> Any:
    """Return the address that the flags name; None without one. UsageError for a key alone."""
    from djinn_evaluation.attached import ServerAddress

    if options.server is not None:
        return ServerAddress(place=options.server, key=options.key)
    if options.key is not None:
        raise UsageError("A key is for an engine that runs already: give its address too, as --server tcp://gpu-box.")
    return None


def _command(options: argparse.Namespace, offer: Offer) -> int:
    from djinn_evaluation.configuration.architecture import architecture, split
    from djinn_evaluation.configuration.reading import explain, read
    from djinn_evaluation.course import Setup, Undecided

    if options.explain:
        print(explain(offer.kind()))
        return 0
    from djinn_evaluation.devices import device_of

    name = _chosen(options, offer)
    settings, sizes = split([*options.settings, *_flagged(options)])
    options.server = server_of(options)
    options.setup = Setup(device=device_of(options.gpu_index), random=options.random_weights, server=options.server)
    with architecture(options.random_weights, sizes) as folder:
        if folder is not None and offer.model_key is not None:
            if any(key == offer.model_key for key, _ in _flags_given(options)):
                raise UsageError(TWO_MODELS)
            settings.append(f"{offer.model_key}={json.dumps(folder)}")
        options.drawn_model = folder
        try:
            failures = offer.run(options, read(name, offer.kind(), settings))
        except Undecided as why:
            print(f"UNDECIDED {why}")
            return every.UNDECIDED
    print("FAIL" if failures else "PASS")
    return int(bool(failures))


def _chosen(options: argparse.Namespace, offer: Offer) -> str:
    """Return the name of the configuration: the one given, or the shipped one that stands for a script without any."""
    if options.config and options.profile:
        raise UsageError("Give --config or --profile, not both.")
    if options.profile is not None:
        return f"{offer.name.replace('-', '_')}_{options.profile}.yaml"
    if options.config is None and offer.without_file is None:
        raise UsageError("Which configuration? Give --profile small or gpu, or --config FILE.")
    if options.config is None:
        print(f"No configuration is named: {offer.without_file} is read.", file=sys.stderr)
    return str(options.config or offer.without_file)


def _flagged(options: argparse.Namespace) -> list[str]:
    """Return the old flags that are keys of the file, as settings."""
    return [f"{key}={value}" for key, value in _flags_given(options)]


def _flags_given(options: argparse.Namespace) -> list[tuple[str, str]]:
    """Yield keys and values; of a flag with several values (a list) they are one, with commas."""
    flags = []
    for found in getattr(options, "keys", None) or ():
        told = found if isinstance(found, list) else [found]
        key, _, spell = told[0]
        flags.append((key, spell(",".join(value for _, value, _ in told))))
    return flags
