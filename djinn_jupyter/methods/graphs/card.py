"""An attribution graph as a card: the edges with the most influence between nodes by layer, from the embeddings down to
the outputs, in each layer by position. A click on a feature stops at it, at its position."""

from __future__ import annotations

import itertools
import unicodedata
from bisect import bisect
from collections.abc import Sequence
from typing import Final

from djinn_jupyter.api.names import Names, cut
from djinn_jupyter.methods.circuits.card.circuit import MOST, Edge, EdgeGraph, graph_view
from djinn_jupyter.methods.circuits.card.edge_layout import NODE, Key, Node, laid_out_by
from djinn_jupyter.methods.graphs.api import LONGEST, AttributionGraph, GraphNode, PrunedGraph, spelled
from djinn_jupyter.units import power_above
from djinn_jupyter.widgets.spelling import figure
from djinn_jupyter.widgets.view import View
from djinn_jupyter.wire.texts import shown

DRAWN: Final = 30
ROOM, ROOM_OF_GROUP = 80.0, 120.0  # pixels of a name or a token in a box
PADDING: Final = 12
LETTER, BROAD = 6.6, 11.0  # pixels, of most letters and of the broadest
KINDS: Final = (
    ("feature", "a feature of a transcoder, at a position"),
    ("error", "what the transcoder of an MLP leaves out"),
    ("embedding", "a token's embedding"),
    ("output", "an output"),
    ("group", "a group of nodes: its effects are the sums of theirs"),
)
APART: Final = 1000  # groups in a layer, each with a row of its own


def attribution_graph_view(found: AttributionGraph, *, top: int = DRAWN) -> View:
    """Show the `top` edges with the most influence as a graph and as a table."""
    return pruned_graph_view(found.pruned(), top=top)


def pruned_graph_view(pruned: PrunedGraph, *, top: int = DRAWN) -> View:
    """Show the `top` edges of a pruned graph as a graph and as a table."""
    found, chosen = pruned.graph, pruned.edges[: min(max(top, 0), MOST)]
    names, keys = found.names, _keys([end for edge in chosen for end in edge[:2]])
    nodes = {keys[end.name]: end for edge in chosen for end in edge[:2]}
    rises = [keys[one.name][0] > keys[other.name][0] for one, other, _, _ in chosen]
    layout = laid_out_by(
        [_downwards(edge, up) for edge, up in zip(chosen, rises, strict=True)],
        keys.__getitem__,
        lambda key, x, y: _node(nodes[key], names, x, y),
        box=max([NODE, *(round(wide(_label(one, names)) + PADDING) for one in nodes.values())]),
    )
    edges = [
        Edge(
            writer=spelled(one, names),
            reader=spelled(other, names),
            site=other.site,
            when=_when(other),
            score=effect,
            path=way.path,
            rises=up,
            weight=influence,
        )
        for (one, other, effect, influence), way, up in zip(chosen, layout.ways, rises, strict=True)
    ]
    there = {one.kind for one in nodes.values()}
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
        kinds=[one for one in KINDS if one[0] in there],
    )
    return graph_view(graph, title=repr(found).splitlines()[0])


def _downwards(edge: tuple[GraphNode, GraphNode, float, float], rises: bool) -> tuple[str, str]:
    """Return the names of the upper and the lower end of an edge."""
    return (edge[1].name, edge[0].name) if rises else (edge[0].name, edge[1].name)


def _keys(nodes: Sequence[GraphNode]) -> dict[str, Key]:
    """Return the row of each node, and its order there: by position, features before errors. A group has a row of its
    own, below those of its mean layer."""
    order = sorted(nodes, key=lambda one: (one.layer, one.position, one.kind != "feature", one.name))
    groups = list(dict.fromkeys(one.name for one in order if one.kind == "group"))
    return {
        one.name: (APART * one.layer + (1 + groups.index(one.name) if one.kind == "group" else 0), number)
        for number, one in enumerate(order)
    }


def _node(node: GraphNode, names: Names, x: float, y: float) -> Node:
    title = f"{spelled(node, names)}: {', '.join(node.members)}" if node.members else spelled(node, names)
    return Node(
        label=_label(node, names), site=node.site, x=x, y=y, when=_when(node), kind=node.kind, title=cut(title, LONGEST)
    )


def _when(node: GraphNode) -> str | None:
    return None if node.kind == "group" else f"position == {node.position}"


def _label(node: GraphNode, names: Names) -> str:
    match node.kind:
        case "feature":
            named = names.get(node.site)
            what = f"#{node.site.split('[')[1][:-1]}" if named is None else _short(cut(named))
            return f"L{node.layer} {what} @{node.position}"
        case "error":
            return f"L{node.layer} error @{node.position}"
        case "embedding":
            return f"{_short(repr(node.text)[1:-1])} @{node.position}"
        case "group":
            return _short(cut(node.name), ROOM_OF_GROUP)
    return "metric" if "-" in node.text else _short(node.text.removeprefix("logit(").rstrip(")"))


def _short(text: str, most: float = ROOM) -> str:
    """Return a text as a box has room for it."""
    said = shown(text)
    ends = list(itertools.accumulate(map(_wide, said)))
    return said if not ends or ends[-1] <= most else f"{said[: bisect(ends, most - LETTER)]}\u2026"


def wide(text: str) -> float:
    """Return how many pixels a label takes at most."""
    return sum(map(_wide, text))


def _wide(letter: str) -> float:
    return BROAD if unicodedata.east_asian_width(letter) in "WF" or letter in "MWmw@%" else LETTER


def _facts(found: AttributionGraph, nodes: int, edges: int, shown: int) -> list[tuple[str, str]]:
    left = f"{nodes:,} nodes and {edges:,} edges are left when pruned; the {shown:,} edges of most influence are shown"
    return [
        ("features", f"{len(found.reply.sites):,} of {found.active:,} active"),
        ("edges", left),
        ("replacement", figure(found.replacement)),
        ("completeness", figure(found.completeness)),
        ("sums", f"bias and effects are what a node has, within {power_above(found.difference)}"),
    ]
