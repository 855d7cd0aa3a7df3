"""Adopt the engine of a model, or start it: exactly one process per identity, even under concurrent loads.

A lock file is held from the registry lookup until the new engine answers. The engine is not a child of the kernel and
has its own OS session: neither a kernel's interrupt nor its end reaches it.
"""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from djinn_jupyter.errors import UsageError
from djinn_jupyter.files import first_change
from djinn_jupyter.link import starting
from djinn_jupyter.link.registry import registry_folder, require_this_protocol, running_engines
from djinn_jupyter.link.spelling import require_engine_parts
from djinn_jupyter.link.starting import ChildEngine, StartCallbacks
from djinn_jupyter.settings import AMOUNTS, Identity, Options, ProcessOptions, words_of
from djinn_jupyter.units import spell_option
from djinn_jupyter.wire.logs import LOG_BYTES, LOG_SUFFIX, rotate
from djinn_jupyter.wire.own import open_own, require_supported_platform
from djinn_jupyter.wire.people import read_quota
from djinn_jupyter.wire.registry import LOCK_SUFFIX, Entry

OR_STOP: Final = "or stop the engine first (%djinn_stop, engine.stop(), `djinn stop`)."
LOCK_SECONDS: Final = 0.1  # between two attempts to lock; flock has no wait with a time limit


def adopt_or_start(identity: Identity, options: Options, serving: ProcessOptions, *, told: StartCallbacks) -> Entry:
    """Return the entry of a ready engine. Raises the engine's own error when it could not start."""
    require_supported_platform()
    found = adopt(identity, options, serving)
    if found is not None:
        return found
    require_engine_parts()
    with _alone(identity, told) as lock:
        found = adopt(identity, options, serving)
        if found is not None:
            return found
        arguments = [*words_of(identity, options, serving), f"--launcher-lock={lock}"]
        return start(identity, arguments, keep_open=(lock,), told=told)


def adopt(identity: Identity, options: Options, serving: ProcessOptions | None = None) -> Entry | None:
    """Return the running engine of that identity, or None. VersionMismatch for another version, UsageError where its
    options, its addresses or its quota differ from the requested ones, or its files from those that it loaded."""
    for entry in running_engines():
        if not entry.serves(identity):
            continue
        require_this_protocol(entry)
        require_options(entry, options)
        _require_same_files(entry)
        if serving is not None:
            _require_serving(entry, serving)
        return entry
    return None


def start(identity: Identity, arguments: list[str], *, keep_open: tuple[int, ...], told: StartCallbacks) -> Entry:
    """Start the process and wait until it answers. An interrupt ends the started process."""
    with _log(identity) as log:
        return starting.start(str(identity), [f"--log={log.path}", *arguments], log=log, keep_open=keep_open, told=told)


def start_child(identity: Identity, arguments: list[str], *, told: StartCallbacks) -> ChildEngine:
    """Start an engine that ends with this process, whatever else runs on this machine, and wait until it answers."""
    require_supported_platform()
    require_engine_parts()
    with _log(identity) as log:
        return ChildEngine(str(identity), [f"--log={log.path}", *arguments], log=log, told=told)


@contextmanager
def _log(identity: Identity) -> Iterator[starting.Log]:
    """Open the log of the engines of an identity; a long one is truncated."""
    path = registry_folder() / f"{identity.slug()}{LOG_SUFFIX}"
    if path.exists() and path.stat().st_size > LOG_BYTES:
        rotate(path)
    descriptor = open_own(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    try:
        yield starting.Log(path, descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _alone(identity: Identity, told: StartCallbacks) -> Iterator[int]:
    """Hold the lock of an identity and yield the descriptor of its file. The lock belongs to the open file: a process
    that inherits the descriptor holds it too, and the lock ends when the last one closes it."""
    path = registry_folder() / f"{identity.slug()}{LOCK_SUFFIX}"
    descriptor = open_own(path, os.O_RDWR | os.O_CREAT)
    try:
        _lock(descriptor, identity, told)
        yield descriptor
    finally:
        os.close(descriptor)


def _lock(descriptor: int, identity: Identity, told: StartCallbacks) -> None:
    waiting = f"waiting for {identity}, which another process is starting"
    begun, due = time.monotonic(), 0.0
    while not _could_lock(descriptor):
        now = time.monotonic()
        if not due:
            told.line(waiting)
        if now >= due:
            due = now + starting.TICK_SECONDS
            told.second(f"{waiting} ({now - begun:.0f} s)")
        time.sleep(LOCK_SECONDS)


def _could_lock(descriptor: int) -> bool:
    import fcntl  # missing where engines cannot run; adopt_or_start has raised before that

    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def require_options(entry: Entry, wanted: Options) -> None:
    """Raise UsageError for an option that the running engine does not have."""
    for name in (field.name for field in dataclasses.fields(wanted)):
        asked, has = getattr(wanted, name), getattr(entry.options, name)
        if asked is not None and asked is not False and asked != has:
            raise UsageError(
                f"The engine of {entry.identity} already runs with {name} = {_spelled(name, has)}, not "
                f"{_spelled(name, asked)}: leave the option out, {OR_STOP}"
            )


def _require_same_files(entry: Entry) -> None:
    """Raise UsageError where the model's files differ from those that the running engine has loaded."""
    if (changed := first_change(entry.files)) is not None:
        when = time.strftime("%H:%M on %d %B", time.localtime(entry.started))
        raise UsageError(
            f"The files of {entry.identity} have changed since this engine loaded them ({when}): {changed}. Put them "
            "back, or stop the engine first (%djinn_stop, engine.stop(), `djinn stop`) and load again."
        )


def _require_serving(entry: Entry, serving: ProcessOptions) -> None:
    """Raise UsageError for an address or a common quota that the running engine does not have."""
    runs = f"The engine of {entry.identity} already runs"
    listens, metrics, quota = serving.listen, serving.metrics, serving.quota
    if listens is not None and not _is_at(entry.listens or "", listens):
        where = f"on {entry.listens}" if entry.listens else "in a private folder of this machine"
        raise UsageError(f"{runs} and listens {where}, not on {listens}: leave --listen out, {OR_STOP}")
    if metrics is not None and not _is_at(entry.metrics or "", metrics):
        where = f"with its metrics at {entry.metrics}" if entry.metrics else "without a page of metrics"
        raise UsageError(f"{runs} {where}: leave --metrics out, {OR_STOP}")
    if quota is not None and read_quota(quota) != (entry.quota and read_quota(entry.quota)):
        has = f"with the common quota {entry.quota}" if entry.quota else "without a common quota"
        own = "(`djinn quota` tells a person's own at any time)"
        raise UsageError(f"{runs} {has}, not with {quota}: leave --quota out {own}, {OR_STOP}")


def _is_at(bound: str, asked: str) -> bool:
    """True where a bound address is the requested one; a port of `*` or 0 is any."""
    address, _, port = asked.rpartition(":")
    return bound == asked or (port in ("*", "0") and bound.startswith(f"{address}:"))


def _spelled(option: str, value: object) -> str:
    """Spell the value of an option for a message: `500GiB`; None as the engine's default behaviour."""
    if value is None:
        return {"device_memory": "what is free", "card_memory": "the whole card"}.get(option, "the default")
    return spell_option(value) if option in AMOUNTS and isinstance(value, int) else str(value)
