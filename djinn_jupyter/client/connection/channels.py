"""The channels of this process, one to each engine."""

from __future__ import annotations

import threading

from djinn_jupyter.client.connection.channel import SocketChannel
from djinn_jupyter.client.connection.io_thread import IoThread
from djinn_jupyter.client.engines.naming import holder_name, notebook_path, user_name
from djinn_jupyter.errors import DjinnError
from djinn_jupyter.wire.registry import Entry


class Channels:
    """One I/O thread, one channel to each engine. A forked child starts without any. Lost
    channels are closed when the next one is asked for: each has sockets and a thread of zmq."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._thread: IoThread | None = None
        self._channels: dict[object, SocketChannel] = {}

    def to(self, entry: Entry) -> SocketChannel:
        with self._lock:
            if self._thread is None or not self._thread.usable:
                self._thread, self._channels = IoThread(), {}
            self._close_lost()
            key = _engine_of(entry)
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


def _engine_of(entry: Entry) -> object:
    """Return what two entries of one engine have in common: here its process and its start, for a broken engine starts
    anew; afar its address, and the key."""
    return (entry.commands, entry.key) if entry.is_afar else (entry.pid, entry.started)
