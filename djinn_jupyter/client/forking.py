"""The verb of a session that makes another one of it: as it stands, or with committed keys or values edited."""

from __future__ import annotations

from typing import Self

from djinn_jupyter.client.arguments import typed
from djinn_jupyter.client.connection.channel import Channel, ask_for
from djinn_jupyter.client.edits import as_edit
from djinn_jupyter.client.patches import in_one_engine
from djinn_jupyter.client.positions import Positions, spell_positions
from djinn_jupyter.described import refuses
from djinn_jupyter.errors import UsageError
from djinn_jupyter.sampling import DRAWN_AS_BEGUN, GivenSampling
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.nouns import StopIdentity


class Forks:
    """The forks of a session's handle."""

    name: str
    _channel: Channel

    def sibling(self, name: str, channel: Channel | None = None) -> Self:
        """Return the session of that name in the same engine, or that of a channel, which is not asked for it."""
        raise NotImplementedError

    @refuses(GivenSampling, DRAWN_AS_BEGUN)
    @typed
    def fork(
        self,
        name: str,
        *,
        edit: object = None,
        site: str | None = None,
        positions: Positions = None,
        stop: StopIdentity | None = None,
    ) -> Self:
        """Create a session `name` with the same tokens, stop and rules; keys and values are shared until one of the two
        writes. IllegalMove where it no longer stands at `stop`; UsageError where there is a session of that name.

        With an `edit` (as in `session.edit`) the fork has other keys (`k_rot.N`, after the rotary embedding) or values
        (`v.N`) at committed `positions`, [positions, key heads, head features]; by default at all of them. What it runs
        from there on attends to these; this session keeps its own. InvalidEdit where a layer has run in the stopped
        pass already.

        >>> done = session.run("The capital of France is", max_new_tokens=1)
        >>> other = session.fork("other", edit=dj.zero(), site="v.3[0]", positions="1:4")
        >>> other.run(extend=True, max_new_tokens=1).reason
        'length'
        """
        if edit is None and (site is not None or positions is not None):
            raise UsageError("site and positions belong to an edit of the fork's keys or values: fork(name, edit=...).")
        request = ask.Fork(
            session=self.name,
            name=name,
            stop=stop,
            edit=None if edit is None else in_one_engine(as_edit(edit)),
            site=site,
            positions=spell_positions(positions, self._committed),
        )
        ask_for(self._channel, request)
        return self.sibling(name)

    def _committed(self) -> tuple[int, int]:
        return 0, ask_for(self._channel, ask.Describe(session=self.name)).session.committed
