"""The verbs of a session that record a site at every pass."""

from __future__ import annotations

from djinn_jupyter.client.arrays import from_any
from djinn_jupyter.client.connection.channel import Channel, ask_for
from djinn_jupyter.client.watched import Watched
from djinn_jupyter.errors import UsageError
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.nouns import WatchDescription
from djinn_jupyter.wire.watches import Direction


class WatchingSession:
    """The watches of a session's handle."""

    name: str
    _channel: Channel

    def watch(
        self,
        site: str | int,
        byte_cap: int = 256 * 2**20,
        *,
        fresh: bool = False,
        direction: object = None,
        name: str | None = None,
    ) -> WatchDescription:
        """Record the site at every pass of every run from now on, or with a `direction` (a vector, called `name`) the
        component of its value along it; `fresh` discards earlier recordings. Passes that would exceed `byte_cap` bytes
        are left out and counted. UnknownSite.

        >>> watch = session.watch("resid_post.3")
        >>> done = session.run("The capital of France is", max_new_tokens=2, free=True)
        >>> [value.shape for value in session.watched("resid_post.3").values]
        [(5, 128), (1, 128)]
        """
        if direction is None and name is not None:
            raise UsageError("name is what a direction is called: give that too, or leave name out.")
        along = None if direction is None else Direction(name=name or "direction", vector=from_any(direction))
        request = ask.Watch(session=self.name, site=str(site), byte_cap=byte_cap, fresh=fresh, direction=along)
        return ask_for(self._channel, request).watch

    def watched(self, site: str | int, name: str | None = None) -> Watched:
        """Return the recordings of the site's watch; `name` is that of a direction."""
        request = ask.ReadWatch(session=self.name, site=str(site), direction=name)
        return Watched(ask_for(self._channel, request))

    def unwatch(self, site: str | int | None = None, name: str | None = None) -> int:
        """End the watch of a site, or all, with what they recorded; `name` is that of a direction. Return how many
        ended."""
        if site is None and name is not None:
            raise UsageError("name is that of a direction which is watched at a site: give the site too.")
        request = ask.Unwatch(session=self.name, site=None if site is None else str(site), direction=name)
        return ask_for(self._channel, request).count
