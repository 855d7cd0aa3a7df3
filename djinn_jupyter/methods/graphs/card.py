"""An attribution graph as a card: the edges with the most influence between nodes by layer, from the embeddings down to
the outputs, in each layer by position. A click on a feature stops at it, at its position."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from djinn_jupyter.methods.circuits.card.circuit import MOST, Edge, EdgeGraph, graph_view
from djinn_jupyter.methods.circuits.card.edge_layout import NODE, Key, Node, laid_out_by
from djinn_jupyter.methods.graphs.api import AttributionGraph, GraphNode
from djinn_jupyter.units import power_above
from djinn_jupyter.widgets.spelling import figure
from djinn_jupyter.widgets.view import View

DRAWN: Final = 30
LETTERS: Final = 8  # of a token's label
PADDING: Final = 12
LETTER: Final = 6.6  # pixels, on average at most


def attribution_graph_view(found: AttributionGraph, *, top: int = DRAWN) -> View:
    """Show the `top` edges with the most influence as a graph and as a table."""
    pruned = found.pruned()
    chosen = pruned.edges[: min(max(top, 0), MOST)]
    nodes = {end.name: end for edge in chosen for end in edge[:2]}
    keys = _keys(list(nodes.values()))
    by_key = {key: nodes[name] for name, key in keys.items()}
    layout = laid_out_by(
        [(one.name, other.name) for one, other, _, _ in chosen],
        keys.__getitem__,
        lambda key, x, y: _node(by_key[key], x, y),
        box=max([NODE, *(round(LETTER * len(_label(one)) + PADDING) for one in nodes.values())]),
    )
    edges = [
        Edge(writer=one.name, reader=other.name, site=other.site, when=_when(other), score=effect, path=way.path)
        for (one, other, effect, _), way in zip(chosen, layout.ways, strict=True)
    ]
    graph = EdgeGraph(
        kind="attribution graph",
        how=f"through {found.module}",
        metric=found.metric,
        engine=found.engine,
        model=found.model,
        stop=found.stop,
        facts=_facts(found, len(pruned.nodes), len(pruned.edges), len(chosen)),
        notes=found.notes,
        nodes=layout.nodes,
        edges=edges,
        box=layout.box,
        width=layout.width,
        height=layout.height,
    )
    return graph_view(graph, title=repr(found).splitlines()[0])


def _keys(nodes: Sequence[GraphNode]) -> dict[str, Key]:
    """Return the row of each node, and its order there: by position, features before errors."""
    order = sorted(nodes, key=lambda one: (one.layer, one.position, one.kind != "feature", one.name))
    return {one.name: (one.layer, number) for number, one in enumerate(order)}


def _node(node: GraphNode, x: float, y: float) -> Node:
    return Node(label=_label(node), site=node.site, x=x, y=y, when=_when(node))


def _when(node: GraphNode) -> str:
    return f"position == {node.position}"


def _label(node: GraphNode) -> str:
    match node.kind:
        case "feature":
            return f"L{node.layer} #{node.site.split('[')[1][:-1]} @{node.position}"
        case "error":
            return f"L{node.layer} error @{node.position}"
        case "embedding":
            return _short(repr(node.text)[1:-1])
    return "metric" if "-" in node.text else _short(node.text.removeprefix("logit(").rstrip(")"))


def _short(text: str) -> str:
    return text if len(text) <= LETTERS else f"{text[: LETTERS - 1]}…"


def _facts(found: AttributionGraph, nodes: int, edges: int, shown: int) -> list[tuple[str, str]]:
    left = f"{nodes:,} nodes and {edges:,} edges are left when pruned; the {shown:,} edges of most influence are shown"
    return [
        ("features", f"{len(found.reply.sites):,} of {found.active:,} active"),
        ("edges", left),
        ("replacement", figure(found.replacement)),
        ("completeness", figure(found.completeness)),
        ("sums", f"bias and effects are what a node has, within {power_above(found.difference)}"),
    ]
