"""The fields of every event."""

from __future__ import annotations

from djinn_jupyter.wire.frozen import Frozen
from djinn_jupyter.wire.naming import OwnName


class EventBase(Frozen, tag_field="event"):
    """Something that happened to a session. Sent to all clients that listen to it."""

    session: OwnName
