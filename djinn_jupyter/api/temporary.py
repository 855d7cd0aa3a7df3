"""Sessions for the time of one piece of work: opened under a free name, closed at the end, which ends the work."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count

from djinn_jupyter.errors import DjinnError, SessionHeld
from djinn_jupyter.link.channel import Channel, all_sessions, ask_for
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.texts import label


@contextmanager
def temporary_session(channel: Channel, kind: str, adapter: str | None = None) -> Iterator[str]:
    """Open the first of "sweep 1", "sweep 2" and so on, for a `kind` of "sweep", that is free and that no other client
    takes meanwhile. It computes with the adapter, where one is named. The next engine at the address does not have it:
    there another's may have its name by then, which is not closed."""
    name, engine = open_temporarily(channel, kind), channel.welcome.engine
    try:
        if adapter is not None:
            ask_for(channel, ask.SetAdapter(session=name, adapter=adapter))
        yield name
    finally:
        if channel.welcome.engine == engine:
            with suppress(DjinnError):  # another client closed it, which ended the work, or the engine is gone
                ask_for(channel, ask.Close(session=name))


def open_temporarily(channel: Channel, kind: str) -> str:
    """Open a session under the first free name of that kind, which ends with this client at the latest."""
    taken = {label(one.name) for one in all_sessions(channel)}
    while True:
        name = next(name for n in count(1) if (name := f"{kind} {n}") not in taken)
        taken.add(name)
        with suppress(SessionHeld):
            try:
                if ask_for(channel, ask.Open(session=name, temporary=True)).created:
                    return name
            except KeyboardInterrupt:  # it may be there by now, and nothing else would close it
                channel.ask(ask.Close(session=name))
                raise
