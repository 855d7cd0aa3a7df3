"""Sessions for the time of one piece of work that compute as the work did whose recipe this is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

import msgspec

from djinn_jupyter.client.adapters import same_adapter
from djinn_jupyter.client.connection.channel import Channel, ask_for
from djinn_jupyter.client.temporary import temporary_session
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.adapters import AdapterIdentity
from djinn_jupyter.wire.circumstances import Circumstances
from djinn_jupyter.wire.nouns import AttentionName
from djinn_jupyter.wire.replies import Described, Steered


class Computed(Protocol):
    """The way in which passes were computed: their attention, None for the engine's own, and their adapter."""

    @property
    def attention(self) -> AttentionName | None: ...
    @property
    def adapter(self) -> AdapterIdentity | None: ...


@contextmanager
def session_like(channel: Channel, kind: str, made: Computed | None) -> Iterator[str]:
    """Open a session that computes as these passes did; as the engine does, where there are none."""
    adapter = None if made is None else same_adapter(channel, made.adapter)
    with temporary_session(channel, kind, adapter) as name:
        if made is not None and made.attention is not None:
            ask_for(channel, ask.SetAttention(session=name, attention=made.attention), Described)
        yield name


@contextmanager
def ruling_session(channel: Channel, made: Circumstances) -> Iterator[str | None]:
    """Yield the name of a session with the rules, the attention and the adapter that held; None where none is
    needed."""
    if not made.rules and made.attention is None and made.adapter is None:
        yield None
        return
    with session_like(channel, "rules", made) as name:
        for rule in made.rules:
            ask_for(channel, msgspec.structs.replace(rule, session=name), Steered)
        yield name
