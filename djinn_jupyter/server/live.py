"""The live picture that browsers see, and its messages in order. Knows neither sockets nor engines.

Messages are numbered consecutively; a snapshot has the number of the last message that it includes.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping

from djinn_jupyter._version import __version__
from djinn_jupyter.server import json_codec
from djinn_jupyter.server.delta import change, settled
from djinn_jupyter.server.messages import (
    Live,
    LiveDelta,
    LiveEngine,
    LiveEvent,
    LiveOutcome,
    LiveSnapshot,
    Sampled,
)
from djinn_jupyter.server.reader import Reader
from djinn_jupyter.wire.replies import Event, Reply

OUTCOMES_KEPT = 16


class LivePicture:
    """The state last sent to all readers. Used in one event loop."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._engines: dict[str, LiveEngine] = {}
        self._outcomes: deque[LiveOutcome] = deque(maxlen=OUTCOMES_KEPT)
        self._sequence = 0
        self.readers: set[Reader] = set()

    @property
    def focused(self) -> frozenset[str]:
        """The notebooks shown in at least one window."""
        return frozenset(reader.focus for reader in self.readers if reader.focus is not None)

    def show(
        self,
        engines: Mapping[str, LiveEngine],
        *,
        gone: Mapping[str, str],
        sampled: Mapping[str, Mapping[str, Sampled]],
    ) -> None:
        """Take a new reading of all engines and send the changes, if any, as a delta. `gone` maps ended engines to
        reasons, "" where they ended in order."""
        before = self._engines
        self._engines = {name: settled(before.get(name), engine) for name, engine in engines.items()}
        appeared = {name: engine for name, engine in self._engines.items() if name not in before}
        changes = {
            name: change(before[name], engine, sampled.get(name, {}))
            for name, engine in self._engines.items()
            if name in before
        }
        changed = {name: changed for name, changed in changes.items() if changed is not None}
        ended = {name: gone.get(name, "The engine has ended.") for name in before if name not in engines}
        if appeared or changed or ended:
            self._tell(
                LiveDelta(sequence=self._next(), at=self._clock(), appeared=appeared, changed=changed, gone=ended)
            )

    def event(self, engine: str, event: Event) -> None:
        self._tell(LiveEvent(sequence=self._next(), engine=engine, event=event))

    def outcome(self, engine: str, session: str, request: str, move: int, reply: Reply) -> None:
        outcome = LiveOutcome(
            sequence=self._next(), engine=engine, session=session, request=request, move=move, reply=reply
        )
        self._outcomes.append(outcome)
        self._tell(outcome)

    def snapshot(self) -> bytes:
        return json_codec.write(
            LiveSnapshot(
                sequence=self._sequence,
                at=self._clock(),
                version=__version__,
                engines=self._engines,
                outcomes=tuple(self._outcomes),
            )
        )

    def _next(self) -> int:
        self._sequence += 1
        return self._sequence

    def _tell(self, message: Live) -> None:
        if self.readers:
            written = json_codec.write(message)
            for reader in self.readers:
                reader.post(written)
