"""The engine double's edges, scored by their place, its circuits, as faithful as they are large, and its graphs."""

from __future__ import annotations

import msgspec
import numpy as np

from djinn_jupyter.api.arrays import to_numpy
from djinn_jupyter.methods.circuits.request import AttributeEdges, CircuitRecipe, CircuitsRun, EdgeRecipe, RunCircuits
from djinn_jupyter.wire import nouns, replies
from tests.magics.graphed import Graphed
from tests.magics.swept import PROVENANCE
from tests.widgets.edged import edges_attributed


class Edged(Graphed):
    sessions: dict[str, nouns.SessionDescription]

    def _attributeedges(self, request: AttributeEdges) -> replies.Reply:
        stop = self.sessions[request.corrupted].stop if isinstance(request.corrupted, str) else None
        meant = msgspec.structs.replace(request, session="edges", corrupted=(1, 2, 3), clean=(1, 2, 4))
        reply = edges_attributed(stop=stop, metric=request.metric)
        reply = msgspec.structs.replace(reply, method=request.method)
        made = EdgeRecipe(asked=meant, attention=None, by=PROVENANCE)
        return msgspec.structs.replace(reply, made=made, steps=request.steps)

    def _runcircuits(self, request: RunCircuits) -> replies.Reply:
        scored = edges_attributed(metric=request.metric)
        edges = int((~np.isnan(to_numpy(scored.scores))).sum())
        return CircuitsRun(
            metric=request.metric,
            writers=scored.writers,
            readers=scored.readers,
            values=tuple(-1.0 + 3.0 * len(one) / edges for one in request.circuits),
            corrupted=-1.0,
            clean=2.0,
            made=CircuitRecipe(asked=request, attention=None, by=PROVENANCE),
        )
