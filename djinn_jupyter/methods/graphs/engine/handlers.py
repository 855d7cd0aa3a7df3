"""Attribution graphs: check a request and begin its job. The session is empty: only its memory is used."""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from djinn_jupyter.engine.loop.mailbox import Holder
from djinn_jupyter.engine.passes.conditions import Metric
from djinn_jupyter.engine.requests.bounds import require_empty
from djinn_jupyter.engine.requests.handlers import MethodParts, handles
from djinn_jupyter.engine.session.residence import Steps
from djinn_jupyter.engine.session.session import Session
from djinn_jupyter.errors import UnknownSite, UsageError
from djinn_jupyter.methods.attribution.engine.attributing import Trials
from djinn_jupyter.methods.attribution.engine.estimates import require_slopes
from djinn_jupyter.methods.common.engine.lines import LineSources, completed
from djinn_jupyter.methods.graphs.engine.graphing import GraphMaking, dictionary_of
from djinn_jupyter.methods.graphs.request import GraphMade, GraphRecipe, MakeGraph
from djinn_jupyter.modules.engine.added import AddedModule
from djinn_jupyter.wire.nouns import AttentionName


def handlers(parts: MethodParts) -> tuple[GraphRequests, ...]:
    """Return the handlers of this method's requests."""
    return (GraphRequests(parts),)


class GraphRequests:
    def __init__(self, parts: MethodParts) -> None:
        self._parts, self._runtime, self._workspace = parts, parts.runtime, parts.workspace("graphs")
        self._lines, self._trials = LineSources(parts), Trials()

    @handles(MakeGraph)
    def make_graph(self, request: MakeGraph, session: Session, holder: Holder) -> Steps[GraphMade]:
        require_empty(session, "attribution graph", "dj.attribution_graph")
        if not 0 < request.probability <= 1:
            raise UsageError(f"A probability is above 0 and up to 1, not {request.probability}.")
        stop = None
        if isinstance(request.line, str):
            named = self._parts.sessions.find(request.line)
            session.compute_with(named.attention or session.attention, named.adapter or session.adapter)
            stop = named.stop_identity
        tokens, notes = self._lines.tokens(request.line)
        metric, modules = self._metric(request.metric), self._modules(request.module, holder)
        recipe = GraphRecipe(
            asked=replace(request, session="graph", line=tokens),
            modules=tuple((str(one.site), one.identity.digest) for one in modules),
            attention=msgspec.convert(session.attention, AttentionName | None),
            adapter=None if session.adapter is None else session.adapter.identity,
            by=self._parts.origin(),
        )
        making = GraphMaking(self._runtime.of(session), session, tokens, modules, metric, request)

        def made(reply: GraphMade) -> GraphRecipe:
            features = min(request.features, max(1, len(reply.sites))) if session.progress.ending else request.features
            return replace(recipe, asked=replace(recipe.asked, features=features))

        return completed(making.steps(self._workspace, self._trials), notes=notes, stop=stop, made=made)

    def _metric(self, text: str | None) -> Metric | None:
        if text is None:
            return None
        [metric] = self._lines.metrics((text,)).each
        require_slopes(metric)
        return metric

    def _modules(self, name: str, holder: Holder) -> list[AddedModule]:
        """Return the transcoders of that name. Raises UnknownSite where there are none, and UsageError for unsupported
        ones."""
        mine = self._runtime.modules.table.of(holder.person)
        found = [one for one in mine if one.identity.name == name]
        if not found:
            there = ", ".join(dict.fromkeys(one.identity.name for one in mine)) or "none"
            raise UnknownSite(
                f"There are no added modules named {name!r}; there are: {there}. Add transcoders by "
                "engine.add_transcoders (%djinn_add_transcoders) first."
            )
        for one in found:
            dictionary_of(one)
            written = one.written(self._runtime.forward.anatomy)
            if isinstance(written, str):
                raise UsageError(f"{one.site} reads {one.at} and has no graph: {written}.")
        return found
