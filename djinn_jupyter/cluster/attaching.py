"""Attach this process to a Ray cluster, and begin one. All who reach Ray can run programs as its account, so it
listens on closed addresses alone."""

from __future__ import annotations

import ipaddress
import logging
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import ray

from djinn_jupyter.errors import EngineUnavailable, UsageError
from djinn_jupyter.options import split_address

NAMESPACE: Final = "djinn"  # of the actors' names
PORT: Final = 6379
REACH_SECONDS: Final = 5.0
BEGIN_SECONDS: Final = 120.0
_NONE: Final = (
    "No Ray cluster runs on this machine: begin one by `djinn cluster start`, join one by `ray start --address "
    "HOST:PORT`, or name one in RAY_ADDRESS."
)


@contextmanager
def attached() -> Iterator[None]:
    """Attach to the cluster that RAY_ADDRESS names, else to that of this machine. EngineUnavailable where there is
    none."""
    named = os.environ.get("RAY_ADDRESS")
    if named:
        _require_reachable(named)
    try:
        ray.init(address="auto", namespace=NAMESPACE, log_to_driver=False, logging_level=logging.CRITICAL)
    except ConnectionError:
        raise EngineUnavailable(_NONE) from None
    try:
        yield
    finally:
        ray.shutdown()


def begin(host: str, port: int) -> None:
    """Begin a cluster whose head is this machine. UsageError for an address that is not closed; EngineUnavailable
    where Ray does not start."""
    _require_closed(host)
    words = ["--head", f"--node-ip-address={host}", f"--port={port}", "--include-dashboard=false"]
    command = [sys.executable, "-m", "ray.scripts.scripts", "start", *words, "--disable-usage-stats"]
    try:
        said = subprocess.run(command, capture_output=True, text=True, timeout=BEGIN_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise EngineUnavailable(f"Ray has not started within {BEGIN_SECONDS:.0f} s; see /tmp/ray.") from None
    if said.returncode != 0:
        last = [line for line in (said.stdout + said.stderr).splitlines() if line.strip()][-1:]
        raise EngineUnavailable(
            f"Ray does not start ({''.join(last).strip().rstrip('.')}). `ray stop` ends what is left of it, and all "
            "of Ray on this machine; then try again."
        )


def _require_closed(host: str) -> None:
    """Raise UsageError unless a host is the IP address of a network that is not the internet."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        raise UsageError(f"{host!r} is no IP address; write that of this machine in a closed network.") from None
    if str(address) in ("127.0.0.1", "::1"):
        raise UsageError(f"Ray takes {host} for another address of this machine: give 127.0.0.2 to try it alone here.")
    if not address.is_private or address.is_unspecified:
        raise UsageError(
            f"{host} is no closed address, and all who reach Ray can run programs as its account: give the address of "
            "this machine in a private network."
        )


def _require_reachable(named: str) -> None:
    host, port = split_address(named)
    try:
        socket.create_connection((host, port), REACH_SECONDS).close()
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        raise EngineUnavailable(f"No Ray cluster answers at {named}, which RAY_ADDRESS names ({why}).") from None
