"""The verbs of a session that set and clear breakpoints."""

from __future__ import annotations

from djinn_jupyter.client.connection.channel import Channel, ask_for
from djinn_jupyter.client.frames import Listing
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.nouns import BreakpointDescription


class Breakpoints:
    """The breakpoints of a session's handle."""

    name: str
    _channel: Channel

    def breakpoint(self, site: str | int, when: str | None = None, *, once: bool = False) -> BreakpointDescription:
        """Stop at `site` in every pass that reaches it and, if given, meets the condition `when`. Setting the same
        breakpoint twice gives one. UnknownSite; InvalidCondition."""
        request = ask.SetBreakpoint(session=self.name, site=str(site), when=when, once=once)
        return ask_for(self._channel, request).breakpoint

    def enable(self, number: int, enabled: bool = True) -> BreakpointDescription:
        """Turn a breakpoint on or off. UnknownBreakpoint."""
        request = ask.EnableBreakpoint(session=self.name, number=number, enabled=enabled)
        return ask_for(self._channel, request).breakpoint

    def breakpoints(self) -> Listing[BreakpointDescription]:
        """Return the breakpoints, with how often each was hit."""
        return Listing(ask_for(self._channel, ask.Describe(session=self.name)).session.breakpoints)

    def clear(self, *sites: str | int) -> int:
        """Remove the breakpoints at these sites (or of these numbers), or all. Return how many were removed.
        UnknownBreakpoint."""
        chosen = tuple(str(site) for site in sites) or None
        return ask_for(self._channel, ask.ClearBreakpoints(session=self.name, sites=chosen)).count
