"""Messages between the server extension and a browser, beyond the wire's own requests, replies and events.

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
    """A session with its notebook and kernel. `notebook` is the contents path of the notebook that it belongs to,
    `kernel` the kernel that holds it, both None where this server has none. `idle_since` in seconds since the epoch;
    `described.idle_seconds` is as of the last change of any other field."""

    described: SessionDescription
    label: str
    notebook: str | None
    kernel: KernelDescription | None
    idle_since: float


class EngineFound(Frozen, frozen=True):
    """An engine of the registry. In state `refused` it has no connection, for `reason`; `description` is None until
    `ready`. `model` is the name as requested, `load` the arguments of `%djinn_load` that select this engine; `started`
    in seconds since the epoch. `pid` is None on another machine, which `host` then names as the user does. `down_since`
    is when the line to it was lost, in seconds since the epoch; None while it is up."""

    id: str
    model: str
    load: str
    pid: int | None
    host: str
    version: str
    started: float
    state: EngineState
    reason: str | None
    description: ModelDescription | None
    down_since: float | None = None


class LiveEngine(Frozen, frozen=True):
    """An engine with its statistics and its sessions by name. `statistics` is None until first read."""

    found: EngineFound
    statistics: EngineStatistics | None
    sessions: dict[str, LiveSession]


class Engines(Frozen, frozen=True):
    """The answer of GET engines; `version` is the server's own, `protocol` the digest of the messages that it knows."""

    version: str
    protocol: str
    engines: tuple[EngineFound, ...]


class Accepted(Frozen, frozen=True, tag_field="reply"):
    """The engine has accepted a move; its outcome comes over the WebSocket under the same number."""

    move: int


class Sampled(Frozen, frozen=True):
    """The number of tokens a session sampled since the last delta, and the text of at most the last 1000 of them."""

    count: int
    step: int
    text: str


class EngineChange(Frozen, frozen=True, omit_defaults=True):
    """The changed parts of an engine; omitted fields are unchanged. A session that is null has been closed."""

    found: EngineFound | msgspec.UnsetType = msgspec.UNSET
    statistics: EngineStatistics | msgspec.UnsetType = msgspec.UNSET
    sessions: dict[str, LiveSession | None] | msgspec.UnsetType = msgspec.UNSET
    sampled: dict[str, Sampled] | msgspec.UnsetType = msgspec.UNSET


class LiveMessage(Frozen, tag_field="live"):
    """A message of the server on the WebSocket. `sequence` is one more than that of the previous message."""

    sequence: int


class LiveOutcome(LiveMessage, frozen=True, tag="outcome"):
    """The end of an accepted move: Paused, Finished or Failed. `request` is the verb's name."""

    engine: str
    session: str
    request: str
    move: int
    reply: Reply


class LiveSnapshot(LiveMessage, frozen=True, tag="snapshot"):
    """The whole state, sent at each connect and after a gap; it replaces all earlier state. `outcomes` are the latest
    ones, oldest first, for a browser that was disconnected. `at` in seconds since the epoch."""

    at: float
    version: str
    engines: dict[str, LiveEngine]
    outcomes: tuple[LiveOutcome, ...]


class LiveDelta(LiveMessage, frozen=True, tag="delta"):
    """The changes since the previous message. `gone` maps each ended engine to the reason, "" where it
    ended in order."""

    at: float
    appeared: dict[str, LiveEngine]
    changed: dict[str, EngineChange]
    gone: dict[str, str]


class LiveEvent(LiveMessage, frozen=True, tag="event"):
    """An engine's event, unchanged. TokenSampled is not forwarded: see `EngineChange.sampled`."""

    engine: str
    event: Event


Live = LiveSnapshot | LiveDelta | LiveEvent | LiveOutcome


class Focus(Frozen, frozen=True, tag_field="say", tag="focus"):
    """The notebook that this browser window shows now, by its contents path; None for none."""

    notebook: str | None


class Resync(Frozen, frozen=True, tag_field="say", tag="resync"):
    """A request for a snapshot, after the browser missed a message."""


Said = Focus | Resync
