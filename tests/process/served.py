"""A real service, with real sockets, in front of a fake engine that a thread ticks; and entries that point to it."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from djinn_jupyter._version import __version__
from djinn_jupyter.engine.process.clients import ClientTable
from djinn_jupyter.engine.process.registration import Registration, SocketFolder, own_mark
from djinn_jupyter.engine.process.sender import MESSAGES_QUEUED, Outbox
from djinn_jupyter.engine.process.service import Service, draw
from djinn_jupyter.remote.engine.access_keys import Door
from djinn_jupyter.remote.engine.persons import Persons
from djinn_jupyter.settings import Identity, Options
from djinn_jupyter.wire import protocol
from djinn_jupyter.wire.own import boot_id, host_name
from djinn_jupyter.wire.registry import Entry
from tests.process.fake_engine import FakeEngine


@dataclass
class Served:
    engine: FakeEngine
    service: Service
    entry: Entry
    shut_down: threading.Event
    clients: ClientTable


def entry_for(commands: str, listens: str | None = None) -> Entry:
    """Return an entry in which this very process is the engine's."""
    identity = Identity(model="fake")
    return Entry(
        version=__version__,
        protocol=protocol.digest(),
        pid=os.getpid(),
        mark=own_mark(),
        host=host_name(),
        boot=boot_id(),
        started=time.time(),
        identity=identity,
        found=identity,
        options=Options(),
        commands=commands,
        listens=listens,
    )


@contextmanager
def served(
    *,
    tcp: bool = False,
    host: str = "127.0.0.1",
    message_bytes: int = 2**20,
    messages_queued: int = MESSAGES_QUEUED,
    silence_seconds: float = 20.0,
    token_seconds: float = 0.0,
) -> Iterator[Served]:
    """Serve an engine. `token_seconds` is about the time of a token of a run: without it the engine leaves no time for
    other clients."""
    outbox, folder, shut_down = Outbox(), SocketFolder(), threading.Event()
    engine = FakeEngine(outbox.post)
    door = Door.at(f"tcp://{host}:*", draw) if tcp else None
    admission = Persons(engine.access, knows=door.admitted.knows) if door else None
    clients = ClientTable(engine, shut_down=shut_down.set, admission=admission, silence_seconds=silence_seconds)
    service = Service(
        clients,
        outbox,
        commands=folder.endpoint("commands"),
        door=door,
        message_bytes=message_bytes,
        messages_queued=messages_queued,
    )
    stopping = threading.Event()

    def move() -> None:
        while not stopping.is_set():
            if not engine.tick():
                engine.mailbox.wait(1.0)
            elif token_seconds:
                engine.mailbox.wait(token_seconds)

    mover = threading.Thread(target=move, name="fake-engine")
    mover.start()
    service.start()
    try:
        yield Served(engine, service, entry_for(service.commands, service.listens), shut_down, clients)
    finally:
        stopping.set()
        engine.mailbox.wake()
        mover.join()
        service.stop()
        folder.remove()


@contextmanager
def registered(*entries: Entry) -> Iterator[None]:
    """Have these entries in the registry. They are withdrawn in any case: who ends all engines ends their process."""
    there = [Registration(entry) for entry in entries]
    try:
        yield
    finally:
        for one in there:
            one.withdraw()
