"""`djinn COMMAND ...`. Prints one clear sentence and exits with 1 on failure."""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Callable, Sequence

from djinn_jupyter._version import __version__
from djinn_jupyter.cli import commands as added
from djinn_jupyter.cli import engines, journals
from djinn_jupyter.cli.commands import Parser, as_typed
from djinn_jupyter.editors import cli
from djinn_jupyter.errors import DjinnError
from djinn_jupyter.remote.cli import cluster, entry, hub, keys, people


def main(arguments: Sequence[str] | None = None) -> int:
    _escape_what_is_not_of_the_encoding()
    options = parser().parse_args(arguments)
    command: Callable[[argparse.Namespace], int] = options.command
    try:
        status = command(options)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader has enough, as `head` does; the rest is dropped
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except DjinnError as error:
        print(f"djinn: {as_typed(options, str(error))}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return status


def _escape_what_is_not_of_the_encoding() -> None:
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def parser() -> Parser:
    top = Parser(prog="djinn", description="Engines of Djinn for Jupyter on this machine.")
    top.add_argument("--version", action="version", version=__version__)
    commands = top.add_subparsers(required=True, metavar="COMMAND")
    for family in (engines, journals, people, entry, keys, hub, cluster, cli, added):
        family.add_to(commands)
    return top


if __name__ == "__main__":
    sys.exit(main())
