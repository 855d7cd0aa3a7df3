"""`djinn hub`: the service that a JupyterHub starts, which admits its users' servers to this user's engines."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
from typing import Final
from urllib.parse import urlsplit

from djinn_jupyter.cli.commands import Commands, duration
from djinn_jupyter.errors import MissingDependency, UsageError
from djinn_jupyter.link.registry import running_engines
from djinn_jupyter.remote.addresses import key_folder, of_engines_here
from djinn_jupyter.wire.own import host_name

LENT_SECONDS: Final = 600.0
LOOK_SECONDS: Final = 10.0


def add_to(commands: Commands) -> None:
    hub = commands.add_parser("hub", help="a JupyterHub's service that admits its users to your engines")
    add = hub.add_argument
    add(
        "--host", default=host_name(), metavar="NAME", help="how users' servers reach this machine; by default its name"
    )
    add("--for", type=duration, dest="lent", default=LENT_SECONDS, metavar="TIME", help="how long without a renewal")
    add("--look", type=duration, default=LOOK_SECONDS, metavar="TIME", help="how often the hub is asked for each token")
    hub.set_defaults(command=_hub)


def _hub(options: argparse.Namespace) -> int:
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        asyncio.run(_serve(options))
    except KeyboardInterrupt:
        print("The service has ended; what it admitted ends by itself.")
    return 0


async def _serve(options: argparse.Namespace) -> None:
    """Serve until it is interrupted. UsageError outside of a hub; MissingDependency without tornado."""
    api, address, prefix = (_given(name) for name in ("API_URL", "SERVICE_URL", "SERVICE_PREFIX"))
    try:
        from djinn_jupyter.remote.hub import Hub, Loans, TokenExchange, listen
    except ImportError as error:
        raise MissingDependency(f"The service of a hub needs tornado: pip install tornado ({error}).") from None
    service = TokenExchange(
        hub=Hub(api, frozenset(json.loads(_given("OAUTH_ACCESS_SCOPES")))),
        loans=Loans(key_folder(), options.lent),
        engines_key=of_engines_here().public,
        host=options.host,
        running=running_engines,
    )
    at = urlsplit(address)
    if at.scheme != "http" or at.hostname is None or at.port is None:
        raise UsageError(f"The service's url is {address}; write url='http://127.0.0.1:10101' in its entry.")
    listen(service.application(prefix), at.hostname, at.port)
    print(f"Djinn's service of the hub listens on {address}{prefix}.", flush=True)
    await service.look_every(options.look)


def _given(name: str) -> str:
    variable = f"JUPYTERHUB_{name}"
    found = os.environ.get(variable)
    if not found:
        raise UsageError(f"`djinn hub` is started by a JupyterHub (docs/jupyterhub.md): {variable} is not set.")
    return found
