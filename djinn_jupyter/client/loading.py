"""`dj.load` and `dj.engines`: from a user's arguments to a ready engine. One channel per engine and process."""

from __future__ import annotations

import atexit
import threading
from os import PathLike
from pathlib import Path
from typing import Any, Unpack

from djinn_jupyter.amounts import parse_bytes
from djinn_jupyter.client.connection.channel import SocketChannel
from djinn_jupyter.client.connection.io_thread import IoThread
from djinn_jupyter.client.engine import RemoteEngine
from djinn_jupyter.client.engines.launcher import adopt_or_start
from djinn_jupyter.client.engines.naming import holder_name, notebook_path, user_name
from djinn_jupyter.client.engines.registry import is_alive, running_engines
from djinn_jupyter.client.engines.spelling import check_words, spell_device, spell_dtype
from djinn_jupyter.client.engines.starting import StartCallbacks, Tell
from djinn_jupyter.client.engines.terminal import TerminalProgress
from djinn_jupyter.described import check_least, given_by_name, part_of, takes
from djinn_jupyter.errors import DjinnError, EngineUnavailable, UsageError
from djinn_jupyter.options import AMOUNTS, GivenOptions, Identity, Options, ProcessOptions
from djinn_jupyter.wire.registry import Entry


@takes(GivenOptions)
def load(
    model: str | Path, *, progress: Tell | None = None, each_second: Tell | None = None, **options: Unpack[GivenOptions]
) -> RemoteEngine:
    """Start the engine of a model (`demo`, a folder, a hub name), or attach to it if it already runs.

    `dtype` and `device` are strings or torch objects; amounts of memory are in bytes or as "20GiB". `progress` is
    called with each step of the start, `each_second` with the present step and how long it has taken; without either
    the terminal shows both. UsageError where an option is impossible on this machine, or differs from that of the
    running engine. The options:
    """
    given = {name: _spelled(name, value) for name, value in given_by_name(GivenOptions, options).items()}
    check_least(GivenOptions, given)
    identity, serving = part_of(Identity, given, model=spell_model(model)), part_of(ProcessOptions, given)
    check_words(identity, serving.listen)
    with TerminalProgress() as shown:
        second = each_second or (shown.second if progress is None else _not_said)
        told = StartCallbacks(line=progress or _not_said, second=second)
        return _loaded(identity, part_of(Options, given), serving, told)


def _spelled(name: str, value: Any) -> Any:
    """Return a value as engines take it."""
    if name in AMOUNTS:
        return parse_bytes(value)
    return {"dtype": spell_dtype, "device": spell_device}.get(name, _as_it_is)(value)


def _as_it_is(value: object) -> object:
    return value


def _loaded(identity: Identity, options: Options, serving: ProcessOptions, told: StartCallbacks) -> RemoteEngine:
    for attempt in (1, 2):
        entry = adopt_or_start(identity, options, serving, told=told)
        try:
            return attach(entry)
        except EngineUnavailable:
            if attempt == 2 or is_alive(entry):
                raise  # an engine that is alive but silent is reported; one that has just ended is started again
    raise AssertionError("unreachable")


def _not_said(line: str) -> None: ...


def engines() -> tuple[Entry, ...]:
    """Return the engines that run on this machine; `attach` to one of them, or `load` its model."""
    return running_engines()


def attach(entry: Entry) -> RemoteEngine:
    """Attach to a running engine over this process's channel to it, opening one if there is none."""
    return RemoteEngine(_channels.to(entry), entry)


def spell_model(model: str | Path) -> str:
    """Return a folder as its absolute path, the same in every process; `demo` and hub names unchanged. UsageError where
    `model` is neither text nor a path."""
    if not isinstance(model, str | PathLike):
        raise UsageError(f"A model is named by a text or a path, not by {type(model).__name__}: write dj.load('demo').")
    text = str(model)
    if text not in ("", "demo") and Path(text).expanduser().is_dir():
        return str(Path(text).expanduser().resolve())
    return text


class Channels:
    """The channels of this process: one I/O thread, one channel to each engine. A forked child starts without any. Lost
    channels are closed when the next one is asked for: each has sockets and a thread of zmq."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._thread: IoThread | None = None
        self._channels: dict[tuple[int, float], SocketChannel] = {}  # by process and start: a broken engine starts anew

    def to(self, entry: Entry) -> SocketChannel:
        with self._lock:
            if self._thread is None or not self._thread.usable:
                self._thread, self._channels = IoThread(), {}
            self._close_lost()
            key = (entry.pid, entry.started)
            channel = self._channels.get(key)
            if channel is None:
                channel = SocketChannel(
                    self._thread, entry, holder=holder_name(), user=user_name(), notebook=notebook_path()
                )
                self._channels[key] = channel
            return channel

    def _close_lost(self) -> None:
        for key in [key for key, channel in self._channels.items() if not channel.usable]:
            self._channels.pop(key).close()

    def close(self) -> None:
        """Send Goodbye to every engine, so that sessions are detached at once and not after a timeout."""
        with self._lock:
            channels, self._channels = self._channels, {}
            for channel in channels.values():
                try:
                    channel.close()
                except DjinnError:
                    pass  # the engine has gone already
            if self._thread is not None:
                self._thread.stop()
                self._thread = None


_channels = Channels()
atexit.register(_channels.close)
