"""An engine in this process, reached as a client reaches one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any

from djinn_jupyter.api.engine import RemoteEngine
from djinn_jupyter.engine.process.clients import ClientTable
from djinn_jupyter.remote.engine.persons import Persons
from djinn_jupyter.wire import protocol
from djinn_jupyter.wire.replies import Event, Welcome
from tests.client.direct import DirectChannel
from tests.engine.desk import ME, Desk


@contextmanager
def reached(
    desk: Desk,
    *holders: str,
    notebooks: Mapping[str, str] = MappingProxyType({}),
    persons: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[list[RemoteEngine]]:
    """Yield the engine as each of these holders reaches it (by default one), for its notebook if it has one, and by the
    key of its person if it has one; afterwards it has no session."""
    admission = Persons(desk.engine.access, knows=lambda name: name in persons.values())
    clients = ClientTable(desk.engine, shut_down=lambda: None, admission=admission)
    each = holders or (ME.name,)
    channels = [_channel(desk, clients, one, notebooks.get(one), persons.get(one)) for one in each]

    def publish(event: Event) -> None:
        for holder, channel in zip(each, channels, strict=True):
            heard = admission.hears(clients._clients[holder.encode()].holder.person, event)
            if heard is not None:
                channel.publish(heard)

    heard, desk.hears = desk.hears, publish
    try:
        yield [RemoteEngine(channel) for channel in channels]
    finally:
        desk.hears = heard
        desk.close_all()


def _channel(desk: Desk, clients: ClientTable, holder: str, notebook: str | None, person: str | None) -> DirectChannel:
    answers: list[Any] = []
    peer = holder.encode()
    clients.receive(peer, protocol.hello(holder=holder, user=ME.user, notebook=notebook), answers.append, person)
    welcome = answers[0]
    assert isinstance(welcome, Welcome)
    channel = DirectChannel(
        welcome, lambda request, answer: clients.receive(peer, request, answer, person), desk.engine.tick, holder=holder
    )
    channel.is_afar = person is not None  # its folders are not the engine's
    return channel
