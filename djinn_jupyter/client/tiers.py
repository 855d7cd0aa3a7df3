"""The verbs of a session that move its bytes between the device and the tiers, or say when they will be wanted."""

from __future__ import annotations

from djinn_jupyter.client.arguments import typed
from djinn_jupyter.client.connection.channel import Channel, ask_for
from djinn_jupyter.client.moving import MovingSession
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.nouns import Tier, Transfer


class TieredSession(MovingSession):
    """The place of a session's bytes, as its handle moves them: also to another engine."""

    name: str
    _channel: Channel

    def swap_out(self, tier: Tier = "host") -> Transfer | None:
        """Move the session's pages and states from the device to `host` or `disk` until they are next needed; None when
        nothing had to move. TierFull when the tier has no room."""
        return ask_for(self._channel, ask.SwapOut(session=self.name, tier=tier)).transfer

    def swap_in(self) -> Transfer | None:
        """Bring the session back now; None when it is on the device already. SlabFull when there is no room."""
        return ask_for(self._channel, ask.SwapIn(session=self.name)).transfer

    @typed
    def rest(self, expected_seconds: float) -> bool:
        """Say that the session will be used again in so many seconds, as an agent knows that waits for a tool. Return
        True where it leaves the device meanwhile, which a rest of `idle_swap_seconds` or more does at once; it is
        brought back before the time is up, where there is room for it and prefetching is not off. Using it earlier or
        later is no mistake. IllegalMove while it runs; UsageError for a time that is none.

        >>> done = session.run("The capital of France is", max_new_tokens=2)
        >>> session.rest(expected_seconds=300.0)
        True
        """
        request = ask.Rest(session=self.name, expected_seconds=expected_seconds)
        return ask_for(self._channel, request).session.residency != "resident"
