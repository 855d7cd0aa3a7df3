"""The engine double's attribution graphs."""

from __future__ import annotations

import msgspec

from djinn_jupyter.methods.graphs.request import GraphRecipe, MakeGraph
from djinn_jupyter.wire import nouns, replies
from tests.magics.swept import PROVENANCE
from tests.widgets.graphed import graph_made


class Graphed:
    sessions: dict[str, nouns.SessionDescription]

    def _makegraph(self, request: MakeGraph) -> replies.Reply:
        stop = self.sessions[request.line].stop if isinstance(request.line, str) else None
        reply = graph_made(stop=stop, metric=request.metric or "logit(' x')")
        meant = msgspec.structs.replace(request, session="graph", line=(1, 2))
        made = GraphRecipe(asked=meant, modules=(("tc.0", "d"),), attention=None, by=PROVENANCE)
        return msgspec.structs.replace(reply, made=made)
