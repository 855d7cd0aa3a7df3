"""`djinn dap`: the debug adapter for editors."""

from __future__ import annotations

import argparse
import sys

from djinn_jupyter.cli.commands import Commands


def add_to(commands: Commands) -> None:
    dap = commands.add_parser("dap", help="a debug adapter for editors, on standard input and output or on a port")
    dap.add_argument(
        "--port", type=int, metavar="N", help="serve clients on this port of 127.0.0.1; 0 takes a free one"
    )
    dap.set_defaults(command=_dap)


def _dap(options: argparse.Namespace) -> int:
    from djinn_jupyter.editors.dap.serving import serve_pipes, serve_port

    if options.port is None:
        serve_pipes()
    else:
        serve_port(options.port, _tell)
    return 0


def _tell(port: int, token: str) -> None:
    """Print the port, and the token as a configuration has it."""
    print(f'Listening on 127.0.0.1:{port}\n"token": "{token}"', file=sys.stderr, flush=True)
