"""A graph of edges between sites as a card: drawn by layer, with a table beside. The labextension draws the same graph
so that a click sets a breakpoint; where it is not, the graph is a picture. Knows nothing of what scored the edges."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from djinn_jupyter.methods.circuits.card.edge_layout import HEIGHT, NODE, Node
from djinn_jupyter.widgets.markup import Html, div, element, span, table
from djinn_jupyter.widgets.spelling import columns, figure
from djinn_jupyter.widgets.svg import SOFT, picture
from djinn_jupyter.widgets.theme import card, facts, mono, part
from djinn_jupyter.widgets.view import View
from djinn_jupyter.wire.names import label
from djinn_jupyter.wire.nouns import StopIdentity

MIME: Final = "application/vnd.djinn.edges+json"
PALE: Final = "rgba(128,128,128,.1)"
ROSE, FELL = "#e06c28", "#2e7ad6"
MOST: Final = 120  # edges drawn
THIN, THICK = 1.0, 6.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Edge:
    """An edge as it is drawn: its ends by name, the `site` at which a breakpoint stops it, with the condition `when`,
    and its way as the `d` of an SVG path. `exact` is empty where the edge was not patched."""

    writer: str
    reader: str
    site: str
    score: float
    path: str
    exact: str = ""
    when: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgeGraph:
    """`kind` is the noun of its result. `engine` and `stop` are what it was read from, None where that was no session
    of an engine's process; `model` is the name of the model, None where that is not known. A node's site is where a
    click on it stops, those of its ports are where edges come in; each is a `box` wide."""

    kind: str
    how: str
    metric: str
    engine: str | None
    model: str | None
    stop: StopIdentity | None
    facts: Sequence[tuple[str, str]]
    notes: Sequence[str]
    nodes: Sequence[Node]
    edges: Sequence[Edge]
    box: int = NODE
    width: int
    height: int

    @property
    def has_exact(self) -> bool:
        return any(edge.exact for edge in self.edges)

    @property
    def most(self) -> float:
        """The largest score by size, or 1."""
        return max((abs(edge.score) for edge in self.edges), default=0.0) or 1.0

    def thickness(self, edge: Edge) -> float:
        return round(THIN + (THICK - THIN) * abs(edge.score) / self.most, 1)

    def drawing(self) -> dict[str, Any]:
        """Return what the labextension draws: the layout, every score, and what the graph was read from."""
        stop = self.stop
        return {
            "kind": self.kind,
            "engine": self.engine,
            "model": self.model,
            "session": None if stop is None else stop.session,
            "stop": None if stop is None else {"number": stop.number, "edition": stop.edition},
            "label": None if stop is None else label(stop.session),
            "metric": self.metric,
            "how": self.how,
            "facts": [list(one) for one in self.facts],
            "notes": list(self.notes),
            "width": self.width,
            "height": self.height,
            "box": [self.box, HEIGHT],
            "nodes": [_node(one) for one in self.nodes],
            "edges": [
                {
                    "writer": edge.writer,
                    "reader": edge.reader,
                    "site": edge.site,
                    "when": edge.when,
                    "score": edge.score,
                    "text": figure(edge.score),
                    "exact": edge.exact,
                    "thickness": self.thickness(edge),
                    "path": edge.path,
                }
                for edge in self.edges
            ],
        }


def graph_view(graph: EdgeGraph, *, title: str) -> View:
    """Show a graph: its picture beside its table, and the facts below. `title` is the first line of its plain text."""
    head = ["writer", "reader", "score", *(["exact"] if graph.has_exact else [])]
    rows = [
        [one.writer, one.reader, figure(one.score), *([one.exact] if graph.has_exact else [])] for one in graph.edges
    ]
    html = card(
        part(div("dj-pair", _picture(graph), _table(head, rows)), _legend()),
        facts(graph.facts),
        part(*(div("dj-note", note) for note in graph.notes)) if graph.notes else None,
        title=mono(graph.metric),
        beside=f"{graph.kind}, {graph.how}",
        session=None if graph.stop is None else graph.stop.session,
    )
    told = [f"{name}: {value}" for name, value in graph.facts]
    plain = "\n".join([title, columns(rows, head), *told, *graph.notes])
    return View(plain=plain, html=html, drawn=(MIME, graph.drawing()) if graph.edges else None)


def _node(node: Node) -> dict[str, Any]:
    ports = [{"label": one.label, "site": one.site, "x": one.x} for one in node.ports]
    return {"label": node.label, "site": node.site, "when": node.when, "x": node.x, "y": node.y, "ports": ports}


def _picture(graph: EdgeGraph) -> Html:
    lines = [
        element(
            "path",
            d=edge.path,
            fill="none",
            stroke=ROSE if edge.score > 0 else FELL,
            stroke_width=graph.thickness(edge),
            stroke_opacity="0.8",
        )
        for edge in graph.edges
    ]
    names = ", ".join(f"{edge.writer} to {edge.reader} {figure(edge.score)}" for edge in graph.edges)
    boxes = [one for node in graph.nodes for one in _box(node, graph.box)]
    return picture(*lines, *boxes, alt=f"{graph.kind}: {names}", width=graph.width, height=graph.height)


def _box(node: Node, wide: int) -> list[Html]:
    """Draw a node: its name, and the names of its ports where edges come in side by side."""
    left, named = round(node.x - wide / 2, 1), [port for port in node.ports if port.label]
    box = element("rect", x=left, y=node.y, width=wide, height=HEIGHT, rx=4, fill=PALE, stroke=SOFT)
    middle = {"text_anchor": "middle", "fill": SOFT}
    written = element("text", node.label, x=node.x, y=node.y + (21 if named else 17), font_size="11", **middle)
    letters = [element("text", one.label, x=one.x, y=node.y + 9, font_size="8", **middle) for one in named]
    return [box, written, *letters]


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Html:
    made = [[mono(writer), mono(reader), *scores] for writer, reader, *scores in rows]
    return element("div", table(head, made, numeric=(2, 3)))


def _legend() -> Html:
    return div("dj-legend", span("", "orange where the metric would rise, blue where it would fall; as thick as large"))
