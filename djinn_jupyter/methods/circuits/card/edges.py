"""Scored edges as a graph: the strongest, between nodes by layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from djinn_jupyter.client.result import STRONGEST
from djinn_jupyter.methods.circuits.api.circuits import Circuit
from djinn_jupyter.methods.circuits.api.edges import Edges
from djinn_jupyter.methods.circuits.card.edge_layout import laid_out
from djinn_jupyter.methods.circuits.card.graph import MOST, Edge, EdgeGraph, graph_view
from djinn_jupyter.widgets.spelling import figure, plural
from djinn_jupyter.widgets.view import View


def edges_view(found: Edges, *, top: int = 2 * STRONGEST) -> View:
    """Show the `top` strongest edges as a graph and as a table."""
    strongest = found.top(min(top, MOST))
    exact = [_exact(found, writer, reader) for writer, reader, _ in strongest]
    facts = _facts(found, len(strongest))
    graph = graph_of(found, strongest, kind="edges", how=_how(found), facts=facts, exact=exact)
    return graph_view(graph, title=repr(found).splitlines()[0])


def graph_of(
    found: Edges | Circuit,
    scored: Sequence[tuple[str, str, float]],
    *,
    kind: str,
    how: str,
    facts: Sequence[tuple[str, str]],
    exact: Sequence[str],
) -> EdgeGraph:
    """Return the graph of the edges `scored` (writer, reader, score), with what each changes exactly, in words."""
    layout = laid_out([(writer, reader) for writer, reader, _ in scored], found.shared)
    edges = [
        Edge(writer=writer, reader=reader, site=found.site(reader), score=score, path=way.path, exact=changed)
        for (writer, reader, score), way, changed in zip(scored, layout.ways, exact, strict=True)
    ]
    return EdgeGraph(
        kind=kind,
        how=how,
        metric=found.metric,
        engine=found.engine,
        model=found.model,
        stop=found.stop,
        facts=facts,
        notes=found.notes,
        nodes=[replace(node, site=found.site(node.site)) for node in layout.nodes],
        edges=edges,
        width=layout.width,
        height=layout.height,
    )


def _how(found: Edges) -> str:
    steps = "EAP" if found.steps == 1 else f"EAP-IG, {found.steps} steps"
    steps = "patched exactly" if found.method == "exact" else steps
    return f"{steps}, {plural(len(found.replies), 'pair')}" if found.paired else steps


def _facts(found: Edges, shown: int) -> list[tuple[str, str]]:
    how = "patched, a pass each" if found.method == "exact" else "scored, to first order"
    return [
        ("corrupted", figure(found.corrupted)),
        ("clean", figure(found.clean)),
        ("edges", f"{len(found):,} {how}; the {shown:,} largest are shown"),
    ]


def _exact(found: Edges, writer: str, reader: str) -> str:
    """Return what an edge changes exactly, in words; "" where it was not patched."""
    if found.exact is None:
        return ""
    value = float(found.exact[found.writers.index(writer), found.readers.index(reader)])
    return "" if value != value else figure(value)
