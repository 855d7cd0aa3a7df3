"""Commands that other packages add to `djinn`: modules with `add_to`, entry points of `djinn_jupyter.commands`."""

from __future__ import annotations

import argparse
from importlib.metadata import entry_points
from typing import Final, NoReturn

from djinn_jupyter.cli.commands import Commands
from djinn_jupyter.errors import UsageError

GROUP: Final = "djinn_jupyter.commands"


def add_to(commands: Commands) -> None:
    found = entry_points(group=GROUP)
    for point in found:
        point.load().add_to(commands)
    if "experiment" not in found.names:
        absent = commands.add_parser("experiment", help="the evaluation, a package of its own", add_help=False)
        absent.add_argument("words", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
        absent.set_defaults(command=_no_evaluation)


def _no_evaluation(options: argparse.Namespace) -> NoReturn:
    raise UsageError(
        "The evaluation is a package of its own: run `pip install ./evaluation` in a checkout of Djinn's repository."
    )
