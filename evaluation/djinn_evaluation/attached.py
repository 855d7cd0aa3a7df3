"""An engine that runs already, by its address: of this user on this machine, or reached over a line. A run neither
starts nor ends it."""

from __future__ import annotations

import dataclasses
import ipaddress
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

import msgspec
import psutil

import djinn_jupyter as dj
from djinn_evaluation.configuration.validation import ValidationFile
from djinn_jupyter.api.engine import RemoteEngine
from djinn_jupyter.api.loading import attach
from djinn_jupyter.errors import DjinnError, UsageError
from djinn_jupyter.link.spelling import spell_model
from djinn_jupyter.remote.addresses import read_address, require_model
from djinn_jupyter.remote.hub_user import HUB
from djinn_jupyter.remote.ssh import CLUSTER, SCHEME
from djinn_jupyter.settings import Identity, SettledOptions
from djinn_jupyter.units import GIB
from djinn_jupyter.wire.registry import Entry
from djinn_jupyter.wire.texts import told_apart

OWN: Final = ("threads", "listen", "dtype", "device", "random_weights")
"""Options that are the engine's where a run asks none."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ServerAddress:
    """The place of an engine as `dj.connect` takes it, and the name or the file of the `key` by which it knows this
    user."""

    place: str
    key: str | None = None

    def __str__(self) -> str:
        return self.place


def engine_at(server: ServerAddress) -> RemoteEngine:
    """Attach to this user's engine on this machine that listens at the address, else to the one that is reached there
    over a line. Where a key is named it is reached over a line. Errors as of `dj.connect`."""
    entry = entry_here(server)
    return dj.connect(server.place, key=server.key) if entry is None else attach(entry)


def entry_here(server: ServerAddress) -> Entry | None:
    """Return the entry of this user's engine on this machine that listens at the address; None where there is none."""
    hosts, port = _resolved(server.place)
    if server.key is not None or not hosts:
        return None
    return next((entry for entry in dj.engines() if _listens(entry, hosts, port)), None)


@contextmanager
def attached(server: ServerAddress, model: str, **options: Any) -> Iterator[RemoteEngine]:
    """Yield the engine at the address, and close the sessions that the block opened. UsageError where it serves another
    model, has not the options that the run needs, or has sessions, which a run would disturb and be disturbed by."""
    entry = entry_here(server)
    if entry is None:
        engine = _required_afar(server, model, options)
    else:
        _require_model(entry, server, model, options.get("dtype"))
        engine = dj.load(entry.identity.model, progress=_not_said, **_asked(entry, options))
    if found := [session.name for session in engine.sessions()]:
        raise UsageError(
            f"The engine on {server} has sessions ({', '.join(told_apart(found).values())}): close them first "
            "(`session.close()`), for a run measures the memory and the evictions of the whole engine."
        )
    try:
        yield engine
    except BaseException:
        if engine.channel.down_since is None:
            with suppress(DjinnError):  # the block's own error is the one to tell
                _close_sessions(engine)
        raise
    _close_sessions(engine)


def as_served(file: ValidationFile, server: ServerAddress) -> ValidationFile:
    """Return the file with the model, the dtype, the idle threshold and the host memory of a running engine: so the
    original's test of an agent runs, which is given nothing but an address."""
    agent, (identity, idle, host) = file.agent_sleep_resume, _served(server)
    if agent is None:
        return file
    served = msgspec.structs.replace(
        agent,
        model_id=identity.model,
        dtype=identity.dtype,
        idle_threshold_seconds=SettledOptions.idle_swap_seconds if idle is None else idle,
        host_swap_pool_gb=None if host is None else host / GIB,
    )
    if served.idle_threshold_seconds >= served.sleep_duration_seconds:
        raise UsageError(
            f"The engine's sessions leave the device after {served.idle_threshold_seconds:g} s without use and the "
            f"agent sleeps for {served.sleep_duration_seconds:g} s: start the engine with --idle-swap-seconds 1."
        )
    return msgspec.structs.replace(file, agent_sleep_resume=served)


def _served(server: ServerAddress) -> tuple[Identity, float | None, int | None]:
    """Return the model of the engine at an address, with the dtype that it found, its idle threshold and its host
    memory."""
    entry = entry_here(server)
    if entry is not None:
        identity = dataclasses.replace(entry.identity, dtype=entry.found.dtype)
        return identity, entry.options.idle_swap_seconds, entry.options.host_memory
    engine = engine_at(server)
    limits, found = engine.statistics().limits, engine.description
    assert limits is not None  # every engine of this version has them
    return Identity(model=found.name, dtype=found.dtype), limits.idle_swap_seconds, limits.host_memory


def _required_afar(server: ServerAddress, model: str, options: dict[str, Any]) -> RemoteEngine:
    """Return the engine that is reached over a line. UsageError where it is not the one that the run needs."""
    engine = engine_at(server)
    assert engine.entry is not None  # it was reached by one
    require_model(engine.entry, Identity(model=spell_model(model), dtype=options.get("dtype")))
    limits = engine.statistics().limits
    needed = {name: value for name, value in options.items() if name not in OWN and value is not None}
    if lacking := [name for name, value in needed.items() if getattr(limits, name) != value]:
        flags = " ".join(f"--{name.replace('_', '-')} {needed[name]}" for name in lacking)
        raise UsageError(f"The engine on {server} has other limits than this run needs: serve it with {flags}.")
    return engine


def _close_sessions(engine: RemoteEngine) -> None:
    """Close the sessions that this process has open."""
    for session in engine.sessions():
        if session.holder == engine.holder:
            engine.session(session.name).close()


def _asked(entry: Entry, options: dict[str, Any]) -> dict[str, Any]:
    """Return the engine's identity, and the options of the run that an engine has for all its life."""
    identity = {name: value for name, value in dataclasses.asdict(entry.identity).items() if name != "model"}
    return {**identity, **{name: value for name, value in options.items() if name not in OWN}}


def _require_model(entry: Entry, server: ServerAddress, model: str, dtype: str | None) -> None:
    names = (entry.identity.model, entry.found.model)
    if spell_model(model) not in names or dtype not in (None, entry.found.dtype):
        wanted = model if dtype is None else f"{model} in {dtype}"
        raise UsageError(f"The engine on {server} serves {entry.found.model} in {entry.found.dtype}, not {wanted}.")


def _listens(entry: Entry, hosts: set[str], port: int) -> bool:
    host, _, bound = (entry.listens or "").removeprefix("tcp://").rpartition(":")
    return bound == str(port) and host.strip("[]") in {*hosts, "0.0.0.0", "::"}


def _resolved(place: str) -> tuple[set[str], int]:
    """Return those addresses of a place that are this machine's, and the port; none for a place of another kind."""
    if place.startswith(SCHEME) or place in (HUB, CLUSTER):
        return set(), 0
    address = read_address(place)
    try:
        found = socket.getaddrinfo(address.host.strip("[]"), address.port, type=socket.SOCK_STREAM)
    except OSError:  # connecting says so, in words
        return set(), address.port
    return {str(one[4][0]) for one in found if _is_of_this_machine(str(one[4][0]))}, address.port


def _is_of_this_machine(address: str) -> bool:
    own = {one.address for interface in psutil.net_if_addrs().values() for one in interface}
    return address in own or ipaddress.ip_address(address.partition("%")[0]).is_loopback


def _not_said(line: str) -> None: ...
