"""What the server extension and a browser say to each other, beyond the wire's own requests, replies and events.

`docs/server.md` is the contract around these; `labextension/src/wire/` is written from them.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from djinn_jupyter.wire.frozen import Frozen
from djinn_jupyter.wire.nouns import EngineStatistics, ModelDescription, SessionDescription
from djinn_jupyter.wire.replies import Event, Reply

EngineState = Literal["connecting", "ready", "refused"]


class KernelDescription(Frozen, frozen=True):
    """A kernel of this server. `state` is Jupyter's execution state: starting, idle, busy, restarting, dead..."""

    id: str
    state: str


class LiveSession(Frozen, frozen=True):
    """A session with what Jupyter knows of it. `notebook` is the contents path of the notebook that it belongs to,
    `kernel` the kernel that holds it, both None where this server has none. `idle_since` in seconds since the epoch;
    `described.idle_seconds` is as of the last change of anything else."""

    described: SessionDescription
    label: str
    notebook: str | None
    kernel: KernelDescription | None
    idle_since: float


class EngineFound(Frozen, frozen=True):
    """An engine of the registry. `refused` cannot be spoken to, for `reason`; `description` is None until `ready`.
    `model` is as it was asked for, `load` what `%djinn_load` is given to mean this engine; `started` in seconds since
    the epoch."""

    id: str
    model: str
    load: str
    pid: int
    host: str
    version: str
    started: float
    state: EngineState
    reason: str | None
    description: ModelDescription | None


class LiveEngine(Frozen, frozen=True):
    """An engine with its books and its sessions by name. `statistics` is None until they were first read."""

    found: EngineFound
    statistics: EngineStatistics | None
    sessions: dict[str, LiveSession]


class Engines(Frozen, frozen=True):
    """The answer of GET engines; `version` is the server's own."""

    version: str
    engines: tuple[EngineFound, ...]


class Accepted(Frozen, frozen=True, tag_field="reply"):
    """The engine has taken a move; its outcome comes over the WebSocket under the same number."""

    move: int


class Sampled(Frozen, frozen=True):
    """Tokens that a session sampled since the last delta, and the text that (at most the last 1000 of) them gave."""

    count: int
    step: int
    text: str


class EngineChange(Frozen, frozen=True, omit_defaults=True):
    """What is other than before; what is left out is as before. A session that is null has been closed."""

    found: EngineFound | msgspec.UnsetType = msgspec.UNSET
    statistics: EngineStatistics | msgspec.UnsetType = msgspec.UNSET
    sessions: dict[str, LiveSession | None] | msgspec.UnsetType = msgspec.UNSET
    sampled: dict[str, Sampled] | msgspec.UnsetType = msgspec.UNSET


class LiveMessage(Frozen, tag_field="live"):
    """What the server says on the WebSocket. `sequence` is one more than that of the message before."""

    sequence: int


class LiveOutcome(LiveMessage, frozen=True, tag="outcome"):
    """The end of an accepted move: Paused, Finished or Failed. `request` is the verb's name."""

    engine: str
    session: str
    request: str
    move: int
    reply: Reply


class LiveSnapshot(LiveMessage, frozen=True, tag="snapshot"):
    """All there is, at each connect and after a gap: what was known before is to be forgotten. `outcomes` are the last
    ones, oldest first, which somebody who was away may have missed. `at` in seconds since the epoch."""

    at: float
    version: str
    engines: dict[str, LiveEngine]
    outcomes: tuple[LiveOutcome, ...]


class LiveDelta(LiveMessage, frozen=True, tag="delta"):
    """What has changed since the message before. `gone` says of each engine that has ended why."""

    at: float
    appeared: dict[str, LiveEngine]
    changed: dict[str, EngineChange]
    gone: dict[str, str]


class LiveEvent(LiveMessage, frozen=True, tag="event"):
    """An engine's event, as it came. TokenSampled is not among them: see `EngineChange.sampled`."""

    engine: str
    event: Event


Live = LiveSnapshot | LiveDelta | LiveEvent | LiveOutcome


class Focus(Frozen, frozen=True, tag_field="say", tag="focus"):
    """The notebook that this browser window shows now, by its contents path; None for none."""

    notebook: str | None


class Resync(Frozen, frozen=True, tag_field="say", tag="resync"):
    """A message was missed: send a snapshot."""


Said = Focus | Resync
