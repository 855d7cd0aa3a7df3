"""Sessions for the time of one piece of work that compute as the work did whose recipe this is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

import msgspec

from djinn_jupyter.api.temporary import temporary_session
from djinn_jupyter.errors import UsageError
from djinn_jupyter.link.channel import Channel, ask_for
from djinn_jupyter.modules.api import same_adapter
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.looks import Circumstances
from djinn_jupyter.wire.modules import AdapterIdentity, AddedModuleDescription, ModuleIdentity
from djinn_jupyter.wire.nouns import AttentionName


class HowComputed(Protocol):
    """The way in which passes were computed: their attention, None for the engine's own, and their adapter."""

    @property
    def attention(self) -> AttentionName | None: ...
    @property
    def adapter(self) -> AdapterIdentity | None: ...


@contextmanager
def session_like(channel: Channel, kind: str, made: HowComputed | None) -> Iterator[str]:
    """Open a session that computes as these passes did; as the engine does, where there are none."""
    adapter = None if made is None else same_adapter(channel, made.adapter)
    with temporary_session(channel, kind, adapter) as name:
        if made is not None and made.attention is not None:
            ask_for(channel, ask.SetAttention(session=name, attention=made.attention))
        yield name


def require_modules(channel: Channel, modules: Sequence[ModuleIdentity | AddedModuleDescription]) -> None:
    """Raise UsageError unless these modules are added here, of the same files."""
    there = ask_for(channel, ask.ListAddedModules()).modules if modules else ()
    for one in modules:
        same = (one.name, one.at, one.digest, one.error_term)
        if same not in {(other.name, other.at, other.digest, other.error_term) for other in there}:
            error_term = "" if one.error_term else " --no-error-term"
            raise UsageError(
                f"It was computed with the module {one.name} of {one.folder} at {one.at}, which is not added here as "
                f"it was; add it first (%djinn_add_module {one.name} {one.folder} --at {one.at}{error_term})."
            )


@contextmanager
def ruling_session(channel: Channel, made: Circumstances) -> Iterator[str | None]:
    """Yield the name of a session with the rules, the attention and the adapter that held; None where none is
    needed."""
    if not made.rules and made.attention is None and made.adapter is None:
        yield None
        return
    require_modules(channel, made.modules)
    with session_like(channel, "rules", made) as name:
        for rule in made.rules:
            ask_for(channel, msgspec.structs.replace(rule, session=name))
        yield name
