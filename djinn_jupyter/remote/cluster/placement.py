"""Attach this process to a Ray cluster, or begin one. Anyone who reaches Ray can run programs as its account, so it
listens only on closed addresses."""

from __future__ import annotations

import ipaddress
import logging
import os
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import ray
from ray.exceptions import ActorDiedError, ActorUnavailableError, GetTimeoutError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from djinn_jupyter.errors import EngineUnavailable, UsageError, from_code
from djinn_jupyter.link.starting import StartCallbacks
from djinn_jupyter.remote.cluster.machines import spell_resources
from djinn_jupyter.remote.cluster.placed_engine import PlacedEngine
from djinn_jupyter.settings import Identity, Options, ProcessOptions, short_name, split_address, words_of
from djinn_jupyter.wire.registry import Entry, Notice, Progressed, Ready, StartFailed, StillStarting, decode_notice

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
    """Attach to the cluster of RAY_ADDRESS, else to this machine's. EngineUnavailable where there is none."""
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


PREFIX: Final = "engine "  # of an actor's name, before the spelled identity
ANSWER_SECONDS: Final = 5.0
PLACE_SECONDS: Final = 600.0
END_SECONDS: Final = 40.0
_CALLS_AT_ONCE: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class SetAside:
    """The part of a machine that Ray reserves for an engine."""

    cpus: int
    gpus: int
    memory_bytes: int

    @classmethod
    def of(cls, needs: Mapping[str, float]) -> SetAside:
        """Return what Ray has reserved, by Ray's names."""
        found = {name: int(needs.get(name, 0)) for name in ("CPU", "GPU", "memory")}
        return cls(cpus=found["CPU"], gpus=found["GPU"], memory_bytes=found["memory"])

    def __str__(self) -> str:
        return spell_resources({name: much for name, much in self.by_name().items() if much or name == "CPU"})

    def by_name(self) -> dict[str, float]:
        """Return it by Ray's names."""
        return {"CPU": self.cpus, "GPU": self.gpus, "memory": self.memory_bytes}


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """An engine of the cluster: its actor, and the requested identity."""

    identity: Identity
    actor: Any

    def notice(self, seconds: float = ANSWER_SECONDS) -> Notice | None:
        """Return the progress of its start; None while Ray places it. EngineUnavailable where it has ended."""
        try:
            return decode_notice(ray.get(self.actor.notice.remote(), timeout=seconds))
        except (GetTimeoutError, ActorUnavailableError):
            return None
        except ActorDiedError:
            if _named(_name(self.identity)) is not None:
                return None  # Ray starts it anew
            raise EngineUnavailable(f"The engine of {self.identity} has ended; load it again.") from None

    def admit(self, public: str, person: str) -> str:
        """Admit a person where the engine is; return the public key of its machine's engines."""
        try:
            spelled: str = ray.get(self.actor.admit.remote(public, person), timeout=ANSWER_SECONDS)
        except RayTaskError as error:
            raise error.cause from None
        except (GetTimeoutError, ActorUnavailableError, ActorDiedError):
            raise EngineUnavailable(f"The engine of {self.identity} has just ended; load it again.") from None
        return spelled

    def machine(self) -> str | None:
        """Return Ray's number of its machine; None while Ray places it."""
        try:
            found: str = ray.get(self.actor.process.remote(), timeout=ANSWER_SECONDS)[0]
        except (GetTimeoutError, ActorUnavailableError, ActorDiedError):
            return None
        return found

    def needs(self) -> dict[str, float]:
        """Return what Ray reserves for it, by Ray's names."""
        found: dict[str, float] = ray.get(self.actor.resources.remote(), timeout=ANSWER_SECONDS)
        return found

    def fingerprint(self) -> dict[str, str]:
        """Return its fingerprint on its machine."""
        found: dict[str, str] = ray.get(self.actor.fingerprint.remote(), timeout=ANSWER_SECONDS)
        return found

    def leave(self) -> None:
        """End the engine in order, so that Ray starts it again on another machine."""
        try:
            ray.get(self.actor.leave.remote(), timeout=END_SECONDS)
        except (GetTimeoutError, ActorUnavailableError, ActorDiedError):
            pass  # it ended while it answered

    def end(self) -> None:
        """End the engine in order, and return when Ray has released it."""
        try:
            ray.get(self.actor.end.remote(), timeout=END_SECONDS)
        except (GetTimeoutError, ActorUnavailableError, ActorDiedError):
            pass  # it is not placed, its machine has gone, or it ended while it answered
        ray.kill(self.actor, no_restart=True)


def place(
    identity: Identity, options: Options, serving: ProcessOptions, needs: SetAside, on: str | None = None
) -> Placed:
    """Return the engine of an identity, which Ray places if needed: `on` the machine of that number while it is up."""
    words = words_of(identity, options, serving)
    made = ray.remote(PlacedEngine).options(
        name=_name(identity),
        namespace=NAMESPACE,
        lifetime="detached",
        get_if_exists=True,
        max_restarts=-1,
        max_concurrency=_CALLS_AT_ONCE,
        num_cpus=needs.cpus,
        num_gpus=needs.gpus,
        memory=needs.memory_bytes or None,
        scheduling_strategy=None if on is None else NodeAffinitySchedulingStrategy(on, soft=True),
    )
    return Placed(identity=identity, actor=made.remote(identity, words))


def placed() -> list[Placed]:
    """Return the engines of the cluster, by their models."""
    names = [name for name in ray.util.list_named_actors() if name.startswith(PREFIX)]
    found = (_named(name) for name in sorted(names))
    return [one for one in found if one is not None]


def addresses() -> set[str] | None:
    """Return the addresses, HOST:PORT, of the cluster's engines; None where one does not answer: its address is
    unknown."""
    found = set[str]()
    for one in placed():
        try:
            notice = one.notice()
        except EngineUnavailable:
            continue  # it has ended
        if notice is None:
            return None
        if isinstance(notice, Ready) and notice.entry.listens is not None:
            found.add(notice.entry.listens.removeprefix("tcp://"))
    return found


def only(model: str | None) -> Placed:
    """Return the requested engine, by its name in the list or by its model. UsageError where none fits, or several
    do."""
    every = placed()
    found = [one for one in every if model == str(one.identity)] or [
        one for one in every if model in (None, one.identity.model, short_name(one.identity.model))
    ]
    if not found:
        raise UsageError(f"No engine{f' of {model}' if model else ''} is in the cluster: `djinn cluster load MODEL`.")
    if len(found) > 1:
        raise UsageError(f"Several engines are meant: {', '.join(str(one.identity) for one in found)}; name one.")
    return found[0]


def there(identity: Identity) -> Placed:
    """Return the engine of an identity. UsageError where the cluster has none."""
    found = _named(_name(identity))
    if found is None:
        raise UsageError(f"The engine of {identity} has ended, and the cluster has it no more: load it again.")
    return found


def await_entry(engine: Placed, needs: SetAside | None, told: StartCallbacks) -> Entry:
    """Return the entry of an engine when it is ready. Raises the error of its start, after releasing it, and
    EngineUnavailable where Ray has not placed it within PLACE_SECONDS."""
    for notice in _notices(engine):
        match notice:
            case None:
                wanted = f" ({needs})" if needs else ""
                told.second(f"waiting for Ray to place the engine of {engine.identity}{wanted}")
            case Ready(entry=entry):
                return entry
            case StartFailed(code=code, message=message):
                ray.kill(engine.actor, no_restart=True)
                raise from_code(code, message)
            case Progressed(line=line):
                told.line(line)
            case StillStarting(line=line):
                told.second(line)
    raise EngineUnavailable(
        f"Ray has not placed the engine of {engine.identity} within {PLACE_SECONDS:.0f} s: no machine has what it needs"
        f"{f', {needs}' if needs else ''}; `djinn cluster stop {shlex.quote(str(engine.identity))}` takes it back."
    )


def _notices(engine: Placed) -> Iterator[Notice | None]:
    """Yield each new notice, about once a second, for PLACE_SECONDS."""
    deadline, last = time.monotonic() + PLACE_SECONDS, None
    while time.monotonic() < deadline:
        notice = engine.notice(1.0)
        if notice is None or notice != last:
            yield notice
            last = notice
        time.sleep(0.2)


def _name(identity: Identity) -> str:
    return PREFIX + msgspec.json.encode(identity).decode()


def _named(name: str) -> Placed | None:
    """Return the engine of that name; None where it has just gone."""
    identity = msgspec.json.decode(name.removeprefix(PREFIX), type=Identity)
    try:
        return Placed(identity=identity, actor=ray.get_actor(name, namespace=NAMESPACE))
    except ValueError:
        return None
