"""An engine that runs already, by the address on which it listens. A run neither starts nor ends it."""

from __future__ import annotations

import dataclasses
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

import djinn_jupyter as dj
from djinn_jupyter.amounts import GIB
from djinn_jupyter.client.engine import RemoteEngine
from djinn_jupyter.client.engines.spelling import spell_model
from djinn_jupyter.errors import UsageError
from djinn_jupyter.experiments.configuration.validation import ValidationFile
from djinn_jupyter.options import SettledOptions
from djinn_jupyter.wire.names import told_apart
from djinn_jupyter.wire.registry import Entry

OWN = ("threads", "listen", "dtype", "device", "random_weights")  # options that are the engine's where a run asks none


def engine_at(address: str) -> Entry:
    """Return the running engine of this machine that listens on `localhost:5556`. UsageError where there is none."""
    hosts, port = _resolved(address)
    for entry in dj.engines():
        if _listens(entry, hosts, port):
            return entry
    raise UsageError(
        f"No engine of yours listens on {address} of this machine: start it with "
        f"`djinn start MODEL --listen tcp://127.0.0.1:{port}`."
    )


@contextmanager
def attached(address: str, model: str, **options: Any) -> Iterator[RemoteEngine]:
    """Yield the engine at the address, and close the sessions that the block opened. UsageError where it serves another
    model, has not the options that the run needs, or has sessions, which a run would disturb and be disturbed by."""
    entry = engine_at(address)
    _require_model(entry, address, model, options.get("dtype"))
    engine = dj.load(entry.identity.model, progress=_not_said, **_asked(entry, options))
    if found := [session.name for session in engine.sessions()]:
        raise UsageError(
            f"The engine on {address} has sessions ({', '.join(told_apart(found).values())}): close them first, for "
            "a run measures the memory and the evictions of the whole engine."
        )
    try:
        yield engine
    finally:
        for session in engine.sessions():
            engine.session(session.name).close()


def as_served(file: ValidationFile, entry: Entry) -> ValidationFile:
    """Return the file with the model, the dtype, the idle threshold and the host memory of a running engine: so the
    original's test of an agent runs, which is given nothing but an address."""
    agent = file.agent_sleep_resume
    if agent is None:
        return file
    host = entry.options.host_memory
    served = msgspec.structs.replace(
        agent,
        model_id=entry.identity.model,
        dtype=entry.found.dtype,
        idle_threshold_seconds=SettledOptions.idle_swap_seconds
        if entry.options.idle_swap_seconds is None
        else entry.options.idle_swap_seconds,
        host_swap_pool_gb=None if host is None else host / GIB,
    )
    if served.idle_threshold_seconds >= served.sleep_duration_seconds:
        raise UsageError(
            f"The engine's sessions leave the device after {served.idle_threshold_seconds:g} s without use and the "
            f"agent sleeps for {served.sleep_duration_seconds:g} s: start the engine with --idle-swap-seconds 1."
        )
    return msgspec.structs.replace(file, agent_sleep_resume=served)


def _asked(entry: Entry, options: dict[str, Any]) -> dict[str, Any]:
    """Return the engine's identity, and the options of the run that an engine has for all its life."""
    identity = {name: value for name, value in dataclasses.asdict(entry.identity).items() if name != "model"}
    return {**identity, **{name: value for name, value in options.items() if name not in OWN}}


def _require_model(entry: Entry, address: str, model: str, dtype: str | None) -> None:
    names = (entry.identity.model, entry.found.model)
    if spell_model(model) not in names or dtype not in (None, entry.found.dtype):
        wanted = model if dtype is None else f"{model} in {dtype}"
        raise UsageError(f"The engine on {address} serves {entry.found.model} in {entry.found.dtype}, not {wanted}.")


def _listens(entry: Entry, hosts: set[str], port: int) -> bool:
    host, _, bound = (entry.listens or "").removeprefix("tcp://").rpartition(":")
    return bound == str(port) and host.strip("[]") in {*hosts, "0.0.0.0", "::"}


def _resolved(address: str) -> tuple[set[str], int]:
    """Return the addresses of a host, and the port."""
    host, _, port = address.removeprefix("tcp://").rpartition(":")
    try:
        found = socket.getaddrinfo(host.strip("[]") or "localhost", int(port), type=socket.SOCK_STREAM)
    except (ValueError, OSError, OverflowError):
        raise UsageError(f"{address!r} is no address of an engine; write localhost:5556.") from None
    return {str(one[4][0]) for one in found}, int(port)


def _not_said(line: str) -> None: ...
