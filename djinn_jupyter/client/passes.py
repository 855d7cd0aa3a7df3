"""The verbs of a session that read many sites of the stopped pass at once, or how the pass would go on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from djinn_jupyter.client.arrays import to_numpy
from djinn_jupyter.client.connection.channel import Channel, ask_for
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.passes import PassRead

if TYPE_CHECKING:
    import numpy as np


class PassReader:
    """The stopped pass, as a session's handle reads it."""

    name: str
    _channel: Channel

    def values(self, *sites: str | int, ahead: bool = False) -> dict[str, np.ndarray[Any, Any]]:
        """Return the values at many sites of the stopped pass at once, by site; with `ahead` also of those that it has
        not reached, as it would go on with the edits made so far. A site that the pass does not meet is left out.
        IllegalMove where no pass is stopped; UnknownSite.

        >>> here = session.breakpoint("resid_post.4", when="step == 0")
        >>> stop = session.run("The capital of France is")
        >>> session.values("z.2", "resid_post.4", "mlp_out.6").keys() == {"z.2", "resid_post.4"}
        True
        >>> session.values("pattern.6", ahead=True)["pattern.6"].shape
        (5, 4, 5)
        """
        read = self._read_pass(tuple(str(site) for site in sites), ahead=ahead, logits=False)
        return {site: to_numpy(value) for site, value in zip(read.sites, read.values, strict=True)}

    def logits_ahead(self) -> np.ndarray[Any, Any]:
        """Return the logits, fp32 [positions of the pass, vocabulary], of the stopped pass if it went on from here with
        the edits made so far. It goes on on the side: the session stays at its stop. IllegalMove where no pass is
        stopped.

        >>> here = session.breakpoint("resid_post.4", when="step == 0")
        >>> stop = session.run("The capital of France is")
        >>> before = session.logits_ahead()
        >>> edited = session.edit(dj.scale(0.0), positions=-1)
        >>> before.shape, bool((session.logits_ahead()[:-1] == before[:-1]).all())
        ((5, 1393), True)
        """
        read = self._read_pass((), ahead=True, logits=True)
        assert read.logits is not None
        return to_numpy(read.logits)

    def _read_pass(self, sites: tuple[str, ...], *, ahead: bool, logits: bool) -> PassRead:
        request = ask.ReadPass(session=self.name, sites=sites, ahead=ahead, logits=logits)
        return ask_for(self._channel, request)
