"""A client and a fake engine in one thread: a request is worked on when the client waits for it."""

from __future__ import annotations

from djinn_jupyter.api.engine import RemoteEngine
from djinn_jupyter.engine.process.clients import ClientTable
from djinn_jupyter.wire import protocol
from djinn_jupyter.wire.replies import Reply, Welcome
from tests.client.direct import DirectChannel
from tests.process.fake_engine import FakeEngine


class Near:
    """`kernel(name)` is a client that holds sessions under that name. `before_tick` may break in."""

    def __init__(self) -> None:
        self.channels: list[DirectChannel] = []
        self.engine = FakeEngine(self._publish)
        self.stopped = False
        self.clients = ClientTable(self.engine, shut_down=self._stop)
        self.before_tick: list[object] = []

    def kernel(self, holder: str = "kernel-1") -> RemoteEngine:
        peer = f"{holder}-{len(self.channels)}".encode()
        answers: list[Reply] = []
        self.clients.receive(peer, protocol.hello(holder=holder, user="ada"), answers.append, None)
        welcome = answers[0]
        assert isinstance(welcome, Welcome)
        channel = DirectChannel(
            welcome, lambda r, answer: self.clients.receive(peer, r, answer, None), self._pump, holder=holder
        )
        self.channels.append(channel)
        return RemoteEngine(channel)

    def _pump(self) -> None:
        while self.before_tick:
            happening = self.before_tick.pop()
            if isinstance(happening, BaseException):
                raise happening
        self.engine.tick()

    def _publish(self, event: object) -> None:
        for channel in self.channels:
            channel.publish(event)

    def _stop(self) -> None:
        self.stopped = True
