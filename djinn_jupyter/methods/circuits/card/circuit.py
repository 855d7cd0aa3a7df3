"""A graph of edges between sites as a card: drawn by layer, with a table beside it. The labextension draws the same
graph so that a click sets a breakpoint; elsewhere the graph is a picture. Knows nothing of the edges' scores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from djinn_jupyter.api.result import STRONGEST
from djinn_jupyter.methods.circuits.api.circuits import Circuit, CircuitCurve, Interval
from djinn_jupyter.methods.circuits.api.edges import Edges
from djinn_jupyter.methods.circuits.card.edge_layout import HEIGHT, NODE, Node, laid_out
from djinn_jupyter.methods.sweep.api.grid import NO_INTERVAL
from djinn_jupyter.widgets.chart import Chart
from djinn_jupyter.widgets.charts import DRAWN, SOFT, picture, series_chart
from djinn_jupyter.widgets.html import Html, card, div, element, facts, mono, part, small, table
from djinn_jupyter.widgets.panels import BLUE, ORANGE, OUTLINES, Arrow, Box, Heatmap, Lines, Network, Outline
from djinn_jupyter.widgets.spelling import columns, figure, plural
from djinn_jupyter.widgets.view import View
from djinn_jupyter.wire.nouns import StopIdentity
from djinn_jupyter.wire.texts import label

MIME: Final = "application/vnd.djinn.edges+json"
PALE: Final = "rgba(128,128,128,.1)"
MOST: Final = 120  # edges drawn
THIN, THICK = 1.0, 6.0
TOGETHER: Final = "display:inline-flex;gap:5px;align-items:center;margin-right:12px"
METRIC, TARGET = "the metric", "what it leads to"


@dataclass(frozen=True, slots=True, kw_only=True)
class Edge:
    """A drawn edge: its ends by name, the `site` at which a breakpoint stops it, with the condition `when`, and its
    path as the `d` of an SVG path. `exact` is empty where the edge was not patched."""

    writer: str
    reader: str
    site: str
    score: float
    path: str
    exact: str = ""
    when: str | None = None
    rises: bool = False  # it runs from a lower row up to a higher one
    weight: float | None = None  # its thickness, in place of the score's magnitude

    @property
    def size(self) -> float:
        return abs(self.score) if self.weight is None else self.weight


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgeGraph:
    """`kind` is the noun of its result. `engine` and `stop` are its source, None without a session of an engine's
    process; `model` is the name of the model, None if unknown. A click on a node stops at its site; edges enter at its
    ports' sites. Each node is a `box` wide. `kinds` explain the kinds of its nodes."""

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
    kinds: Sequence[tuple[str, str]] = ()

    @property
    def what(self) -> str:
        """The words for what an edge raises or lowers."""
        return TARGET if self.kinds else METRIC

    @property
    def thick(self) -> str:
        """The words for the thickness of an edge."""
        return "as its influence" if any(edge.weight is not None for edge in self.edges) else "as large"

    @property
    def legend(self) -> str:
        """The meaning of the colours, widths and dashes of edges."""
        rises = "; dashed where it runs upwards" if any(edge.rises for edge in self.edges) else ""
        return f"orange where {self.what} would rise, blue where it would fall; as thick {self.thick}{rises}"

    @property
    def has_exact(self) -> bool:
        return any(edge.exact for edge in self.edges)

    @property
    def most(self) -> float:
        """The largest size of an edge, or 1."""
        return max((edge.size for edge in self.edges), default=0.0) or 1.0

    def thickness(self, edge: Edge) -> float:
        return round(THIN + (THICK - THIN) * edge.size / self.most, 1)

    def panel(self) -> Network:
        """Return the graph as a figure draws it."""
        boxes = [
            Box(name=one.label, x=one.x, y=one.y, width=self.box, height=HEIGHT, kind=one.kind) for one in self.nodes
        ]
        edges = [
            Arrow(name=f"{one.writer} to {one.reader}", path=one.path, score=one.score, size=one.size, rises=one.rises)
            for one in self.edges
        ]
        title = f"{self.kind}, {self.how}: {self.metric}"
        return Network(title=title, width=self.width, height=self.height, boxes=boxes, edges=edges, what=self.what,
                       kinds=self.kinds, note=f"as thick {self.thick}")  # fmt: skip

    def drawing(self) -> dict[str, Any]:
        """Return what the labextension draws: the layout, every score, and the graph's source."""
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
            "legend": self.legend,
            "kinds": [list(one) for one in self.kinds],
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
                    "rises": edge.rises,
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
        part(
            div("dj-pair", element("div", _picture(graph), *_legend(graph), style="max-width:100%"), _table(head, rows))
        ),
        facts(graph.facts),
        part(*(div("dj-note", note) for note in graph.notes)) if graph.notes else None,
        title=mono(graph.metric),
        beside=f"{graph.kind}, {graph.how}",
        session=None if graph.stop is None else graph.stop.session,
    )
    told = [f"{name}: {value}" for name, value in graph.facts]
    plain = "\n".join([title, columns(rows, head), *told, *graph.notes])
    drawing = (MIME, graph.drawing()) if graph.edges else None
    return View(plain=plain, html=html, drawn=drawing, chart=lambda: Chart(panels=[graph.panel()]))


def _node(node: Node) -> dict[str, Any]:
    ports = [{"label": one.label, "site": one.site, "x": one.x} for one in node.ports]
    place = {"label": node.label, "site": node.site, "when": node.when, "x": node.x, "y": node.y, "ports": ports}
    return place | {"kind": node.kind, "title": node.title}


def _picture(graph: EdgeGraph) -> Html:
    lines = [
        element(
            "path",
            d=edge.path,
            fill="none",
            stroke=ORANGE if edge.score > 0 else BLUE,
            stroke_width=graph.thickness(edge),
            stroke_opacity="0.8",
            stroke_dasharray="6 4" if edge.rises else None,
        )
        for edge in graph.edges
    ]
    names = ", ".join(f"{edge.writer} to {edge.reader} {figure(edge.score)}" for edge in graph.edges)
    boxes = [one for node in graph.nodes for one in _box(node, graph.box)]
    return picture(*lines, *boxes, alt=f"{graph.kind}: {names}", width=graph.width, height=graph.height)


def _box(node: Node, wide: int) -> list[Html]:
    """Draw a node: its name, and the names of its ports where edges come in side by side."""
    left, named = round(node.x - wide / 2, 1), [port for port in node.ports if port.label]
    box = element("rect", x=left, y=node.y, width=wide, height=HEIGHT, **_look(node.kind, 4))
    middle = {"text_anchor": "middle", "fill": SOFT}
    written = element("text", node.label, x=node.x, y=node.y + (21 if named else 17), font_size="11", **middle)
    letters = [element("text", one.label, x=one.x, y=node.y + 9, font_size="8", **middle) for one in named]
    return [box, written, *letters]


def _look(kind: str, radius: float) -> dict[str, Any]:
    """Return how the outline of a kind is drawn, with corners of a `radius` where it has none of its own."""
    outline = OUTLINES.get(kind, Outline())
    dashes, width = "3 2" if outline.dashed else None, outline.width if outline.width > 1 else None
    look = {"rx": outline.rounded(radius), "fill": PALE, "stroke": SOFT}
    return look | {"stroke_dasharray": dashes, "stroke_width": width}


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Html:
    made = [[mono(writer), mono(reader), *scores] for writer, reader, *scores in rows]
    return element("div", table(head, made, numeric=(2, 3)))


def _legend(graph: EdgeGraph) -> list[Html]:
    """Return what edges and boxes mean."""
    kinds = [element("span", _swatch(kind), small(words), style=TOGETHER) for kind, words in graph.kinds]
    return [element("div", small(graph.legend)), element("div", *kinds) if kinds else Html("")]


def _swatch(kind: str) -> Html:
    """Return a small box as those of a kind are drawn."""
    box = element("rect", x=2, y=2, width=26, height=11, **_look(kind, 3))
    return picture(box, alt="", width=30, height=15)


def edges_view(found: Edges, *, top: int = 2 * STRONGEST) -> View:
    """Show the `top` strongest edges as a graph and as a table."""
    strongest = found.top(min(top, MOST))
    exact = [_exact(found, writer, reader) for writer, reader, _ in strongest]
    facts = _edge_facts(found, len(strongest))
    graph = graph_of(found, strongest, kind="edges", how=_how_edges(found), facts=facts, exact=exact)
    view = graph_view(graph, title=repr(found).splitlines()[0])
    return replace(view, chart=lambda: Chart(panels=[_scores(found), graph.panel()]))


def _scores(found: Edges) -> Heatmap:
    return Heatmap(title=f"all edges, {_how_edges(found)}: {found.metric}", cells=found.values, rows=found.writers,
                   columns=found.readers, down="writer", across="reader", measure="change")  # fmt: skip


def graph_of(
    found: Edges | Circuit,
    scored: Sequence[tuple[str, str, float]],
    *,
    kind: str,
    how: str,
    facts: Sequence[tuple[str, str]],
    exact: Sequence[str],
) -> EdgeGraph:
    """Return the graph of the edges `scored` (writer, reader, score), with the exact change of each in words."""
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


def _how_edges(found: Edges) -> str:
    steps = "EAP" if found.steps == 1 else f"EAP-IG, {found.steps} steps"
    steps = "patched exactly" if found.method == "exact" else steps
    return f"{steps}, {plural(len(found.replies), 'pair')}" if found.paired else steps


def _edge_facts(found: Edges, shown: int) -> list[tuple[str, str]]:
    how = "patched, a pass each" if found.method == "exact" else "scored, to first order"
    return [
        ("corrupted", figure(found.corrupted)),
        ("clean", figure(found.clean)),
        ("edges", f"{len(found):,} {how}; the {shown:,} largest are shown"),
    ]


def _exact(found: Edges, writer: str, reader: str) -> str:
    """Return the exact change of an edge in words; "" where it was not patched."""
    if found.exact is None:
        return ""
    value = float(found.exact[found.writers.index(writer), found.readers.index(reader)])
    return "" if value != value else figure(value)


# A circuit as a graph of the kept edges, with its faithfulness; circuits of several sizes as a curve.

HEAD: Final = ("share", "edges", "faithfulness", "interval")


def circuit_view(circuit: Circuit, *, top: int = MOST) -> View:
    """Show the `top` strongest edges of the circuit as a graph and as a table. The others are left out: they carry the
    corrupted prompt's values."""
    kept = circuit.top(min(top, MOST))
    graph = graph_of(
        circuit, kept, kind="circuit", how=_how(circuit), facts=_facts(circuit, len(kept)), exact=[""] * len(kept)
    )
    return graph_view(graph, title=repr(circuit))


def curve_view(curve: CircuitCurve) -> View:
    """Show the faithfulness over the share of the edges as a chart and as a table, with the areas below."""
    first = curve.circuits[0]
    rows = [
        [f"{size:.1%}", f"{len(one):,}", f"{one.faithfulness:z.1%}", _bounds(one) or ""]
        for size, one in zip(curve.sizes, curve.circuits, strict=True)
    ]
    told = [
        ("CPR", f"{curve.cpr:.3f}, the area under the faithfulness"),
        ("CMD", f"{curve.cmd:.3f}, the area between it and 1"),
    ]
    told += [] if first.interval is not None else [("interval", NO_INTERVAL)]
    name = "share of the edges, those with the largest scores"
    values = ", ".join(f"{size} {faithfulness}" for size, _, faithfulness, _ in rows)
    html = card(
        part(
            series_chart(
                curve.sizes,
                [curve.faithfulness],
                name=name,
                alt=f"faithfulness by {name}: {values}",
                spelled=lambda value: f"{value:.0%}",
            ),
            table(HEAD, rows, numeric=(0, 1, 2)),
        ),
        facts(told),
        title=mono(first.metric),
        beside=f"circuits, {_how(first)}",
    )
    plain = [repr(curve).split(";")[0], columns(rows, list(HEAD)), *(f"{one}: {value}" for one, value in told)]
    return View(plain="\n".join(plain), html=html, chart=lambda: Chart(panels=[_curve(curve)]), pictures=DRAWN)


def _curve(curve: CircuitCurve) -> Lines:
    """Return the faithfulness over the share of the edges, with its interval where there is one."""
    bounds = [one.interval for one in curve.circuits if one.interval is not None]
    low, high = ({"faithfulness": [pair[side] for pair in bounds]} for side in (0, 1))
    drawn = {"low": low, "high": high} if len(bounds) == len(curve.sizes) else {}
    return Lines(title=curve.circuits[0].metric, places=curve.sizes, series={"faithfulness": curve.faithfulness},
                 across="share of the edges", measure="faithfulness", **drawn)  # fmt: skip


def _how(circuit: Circuit) -> str:
    pairs = f", {plural(len(circuit.replies), 'pair')}" if len(circuit.replies) > 1 else ""
    return f"{circuit.how or 'edges by name'}{pairs}"


def _facts(circuit: Circuit, shown: int) -> list[tuple[str, str]]:
    shown_of = "" if shown == len(circuit) else f"; the {shown:,} largest are shown"
    return [
        ("corrupted", figure(float(circuit.corrupted.mean()))),
        ("clean", figure(float(circuit.clean.mean()))),
        ("circuit", figure(float(circuit.values.mean()))),
        ("faithfulness", f"{circuit.faithfulness:z.1%}{_interval(circuit)}"),
        ("edges", f"{len(circuit):,} of {circuit.of:,} kept{shown_of}; all others carry the corrupted line"),
    ]


def _interval(circuit: Circuit) -> str:
    bounds, drawn = _bounds(circuit), circuit.drawn
    if bounds is None:
        return f"; {NO_INTERVAL}"
    return f", {bounds} ({_drawn(drawn)} of {plural(len(circuit.replies), 'pair')})"


def _bounds(circuit: Circuit) -> str | None:
    return None if circuit.interval is None else "{:z.1%} to {:z.1%}".format(*circuit.interval)


def _drawn(drawn: Interval) -> str:
    return f"{drawn.confidence:.0%} by {drawn.resamples:,} resamples"
