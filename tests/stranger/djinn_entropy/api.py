"""What a notebook calls and holds."""

from typing import Any

from djinn_entropy.request import EntropyRead, ReadEntropy
from djinn_jupyter.api import arrays, likeness
from djinn_jupyter.api.result import Result
from djinn_jupyter.api.session import RemoteSession
from djinn_jupyter.link.channel import Channel, ask_for


class HeadEntropies(Result):
    """The entropy of each head's attention at the last position of a stopped pass, in nats: float64 [layers, heads]."""

    _view = "entropy_view"
    ending = ".entropy.djinn"
    named = "file of entropies of heads"
    reply: EntropyRead

    def __post_init__(self) -> None:
        self.layers, self.values = self.reply.layers, arrays.to_numpy(self.reply.entropy)
        self.tokens = self._lines = (self.reply.line,)
        self._unmade = self.reply.unmade

    def place_of(self, index: tuple[int, ...]) -> dict[str, Any]:
        return {"layer": self.layers[index[0]], "head": index[1]}

    def _replied_again(self, channel: Channel, reply: EntropyRead) -> EntropyRead:
        assert reply.made is not None
        with likeness.stopped_again(channel, "look", reply.made, reply.line, reply.passes, reply.site) as (name, _):
            return ask_for(channel, ReadEntropy(session=name))


def entropy(session: RemoteSession) -> HeadEntropies:
    """Return the entropy of each head's attention at the session's stop."""
    return HeadEntropies(ask_for(session.channel, ReadEntropy(session=session.name)))
