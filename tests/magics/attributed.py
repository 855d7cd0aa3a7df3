"""The engine double's attribution of a logit."""

from __future__ import annotations

from djinn_jupyter.methods.direct.request import Attribute, Attributed
from djinn_jupyter.wire import nouns, replies
from djinn_jupyter.wire.readings import Contribution
from tests.widgets import samples


class Attributing:
    """Says the same of every token."""

    stops: dict[str, replies.Paused | None]

    def _attribute(self, request: Attribute) -> replies.Reply:
        stop = self.stops[request.session]
        assert stop is not None
        tokens = tuple(
            nouns.TopToken(token=i, text=str(token), probability=0.5, logit=3.0)
            for i, token in enumerate(request.tokens)
        )
        first = ("z", 0) if request.heads else ("attn_out", None)
        return samples_of(stop, request.position, tokens, first)


def samples_of(
    stop: replies.Paused, position: int, tokens: tuple[nouns.TopToken, ...], first: tuple[str, int | None]
) -> Attributed:
    found = [
        Contribution(point=point, layer=layer, head=head, value=value)
        for layer in (0, 1)
        for (point, head), value in ((first, 1.25), (("mlp_out", None), -0.5))
    ]
    return Attributed(
        stop=samples.STOP,
        position=stop.positions[position] if position < 0 else position,
        layer=2,
        tokens=tokens,
        logit=3.0,
        embedding=1.0,
        constant=0.25,
        rest=0.25,
        contributions=tuple(found),
    )
