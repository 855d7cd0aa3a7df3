"""Commands that other packages add to `djinn`: modules with `add_to`, entry points of `djinn_jupyter.commands`."""

from __future__ import annotations

import argparse
from importlib.metadata import entry_points
from typing import Final, NoReturn

from djinn_jupyter.cli.commands import Commands
from djinn_jupyter.errors import UsageError

GROUP: Final = "djinn_jupyter.commands"
NO_EVALUATION: Final = (
    "The evaluation is a package of its own: run `pip install ./evaluation` in a checkout of Djinn's repository."
)


def add_to(commands: Commands) -> None:
    found = entry_points(group=GROUP)
    for point in found:
        try:
            point.load().add_to(commands)
        except ImportError as error:  # one broken installation leaves the other commands
            _add_refusal(
                commands, point.name, f"What adds this command cannot be imported ({error}); install it again."
            )
    if "experiment" not in found.names:
        _add_refusal(commands, "experiment", NO_EVALUATION)


def _add_refusal(commands: Commands, name: str, why: str) -> None:
    def refuse(options: argparse.Namespace) -> NoReturn:
        raise UsageError(why)

    absent = commands.add_parser(name, help="not installed here", add_help=False)
    absent.add_argument("words", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    absent.set_defaults(command=refuse)
