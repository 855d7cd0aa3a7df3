"""The engine double's edges: scored by their place."""

from __future__ import annotations

import msgspec

from djinn_jupyter.wire import nouns, replies, requests
from djinn_jupyter.wire.edges import EdgeRecipe
from tests.magics.swept import PROVENANCE
from tests.widgets.edged import edges_attributed


class Edged:
    sessions: dict[str, nouns.SessionDescription]

    def _attributeedges(self, request: requests.AttributeEdges) -> replies.Reply:
        stop = self.sessions[request.corrupted].stop if isinstance(request.corrupted, str) else None
        meant = msgspec.structs.replace(request, session="edges", corrupted=(1, 2, 3), clean=(1, 2, 4))
        reply = edges_attributed(stop=stop, metric=request.metric)
        reply = msgspec.structs.replace(reply, method=request.method)
        made = EdgeRecipe(asked=meant, attention=None, by=PROVENANCE)
        return msgspec.structs.replace(reply, made=made, steps=request.steps)
