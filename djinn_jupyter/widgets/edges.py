"""Edges as a graph: the strongest drawn between nodes by layer, with a table beside. The labextension draws the same
graph so that a click sets a breakpoint; where it is not, the graph is a picture."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from djinn_jupyter.client.edges import STRONGEST, Edges
from djinn_jupyter.widgets.edge_layout import HEIGHT, NODE, PORTS, EdgeLayout, laid_out
from djinn_jupyter.widgets.markup import Html, div, element, span, table
from djinn_jupyter.widgets.spelling import columns, figure, plural
from djinn_jupyter.widgets.svg import SOFT, picture
from djinn_jupyter.widgets.theme import card, facts, mono, part
from djinn_jupyter.widgets.view import View
from djinn_jupyter.wire.names import label

MIME: Final = "application/vnd.djinn.edges+json"
PALE: Final = "rgba(128,128,128,.1)"
ROSE, FELL = "#e06c28", "#2e7ad6"
MOST: Final = 120  # edges drawn
THIN, THICK = 1.0, 6.0
Edge = tuple[str, str, float]


def edges_view(found: Edges, *, top: int = 2 * STRONGEST) -> View:
    """Show the `top` strongest edges as a graph and as a table."""
    strongest = found.top(min(top, MOST))
    layout = laid_out([(writer, reader) for writer, reader, _ in strongest], _shared(found))
    head = ["writer", "reader", "score", *([] if found.exact is None else ["exact"])]
    rows = [[writer, reader, figure(score), *_exact(found, writer, reader)] for writer, reader, score in strongest]
    told, session = _facts(found, len(strongest)), None if found.stop is None else found.stop.session
    html = card(
        part(div("dj-pair", _picture(layout, strongest), _table(head, rows)), _legend()),
        facts(told),
        part(*(div("dj-note", note) for note in found.notes)) if found.notes else None,
        title=mono(found.metric),
        beside=f"edges, {_how(found)}",
        session=session,
    )
    plain = [repr(found).splitlines()[0], columns(rows, head)]
    plain += [f"{name}: {value}" for name, value in told]
    drawn = (MIME, drawing(found, layout, strongest)) if strongest else None
    return View(plain="\n".join([*plain, *found.notes]), html=html, drawn=drawn)


def drawing(found: Edges, layout: EdgeLayout, strongest: Sequence[Edge]) -> dict[str, Any]:
    """Return what the labextension draws: the layout, every score, and what the graph was read from."""
    stop = found.stop
    most = _most(strongest)
    return {
        "engine": found.engine,
        "session": None if stop is None else stop.session,
        "stop": None if stop is None else {"number": stop.number, "edition": stop.edition},
        "label": None if stop is None else label(stop.session),
        "metric": found.metric,
        "how": _how(found),
        "facts": [list(one) for one in _facts(found, len(strongest))],
        "notes": list(found.notes),
        "width": layout.width,
        "height": layout.height,
        "box": [NODE, HEIGHT],
        "nodes": [
            {"label": one.label, "site": found.site(one.site), "x": one.x, "y": one.y, "ports": one.has_ports}
            for one in layout.nodes
        ],
        "edges": [
            {
                "writer": writer,
                "reader": reader,
                "site": found.site(reader),
                "score": score,
                "text": figure(score),
                "exact": next(iter(_exact(found, writer, reader)), ""),
                "thickness": _thickness(score, most),
                "path": way.path,
            }
            for (writer, reader, score), way in zip(strongest, layout.ways, strict=True)
        ],
    }


def _shared(found: Edges) -> frozenset[int]:
    """Return the layers in which several heads read one head of keys and values."""

    def layers(names: Sequence[str], point: str) -> list[int]:
        return [int(name.split(".")[1].split("[")[0]) for name in names if name.startswith(f"{point}.")]

    heads, keys = layers(found.writers, "z"), layers(found.readers, "k")
    return frozenset(layer for layer in set(heads) if keys.count(layer) < heads.count(layer))


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


def _most(strongest: Sequence[Edge]) -> float:
    return max((abs(score) for _, _, score in strongest), default=0.0) or 1.0


def _thickness(score: float, most: float) -> float:
    return round(THIN + (THICK - THIN) * abs(score) / most, 1)


def _picture(layout: EdgeLayout, strongest: Sequence[Edge]) -> Html:
    most = _most(strongest)
    lines = [
        element(
            "path",
            d=way.path,
            fill="none",
            stroke=ROSE if score > 0 else FELL,
            stroke_width=_thickness(score, most),
            stroke_opacity="0.8",
        )
        for (_, _, score), way in zip(strongest, layout.ways, strict=True)
    ]
    names = ", ".join(f"{writer} to {reader} {figure(score)}" for writer, reader, score in strongest)
    boxes = [one for node in layout.nodes for one in _box(node.x, node.y, node.label, ports=node.has_ports)]
    return picture(*lines, *boxes, alt=f"edges: {names}", width=layout.width, height=layout.height)


def _box(x: float, y: float, name: str, *, ports: bool) -> list[Html]:
    """Draw a node: its name, and at a head where queries, keys and values come in."""
    left = round(x - NODE / 2, 1)
    box = element("rect", x=left, y=y, width=NODE, height=HEIGHT, rx=4, fill=PALE, stroke=SOFT)
    middle = {"text_anchor": "middle", "fill": SOFT}
    written = [element("text", name, x=x, y=y + (21 if ports else 17), font_size="11", **middle)]
    letters = [element("text", one, x=x + at, y=y + 9, font_size="8", **middle) for one, at in PORTS.items()]
    return [box, *written, *(letters if ports else [])]


def _exact(found: Edges, writer: str, reader: str) -> list[str]:
    """Return what an edge changes exactly, where any was patched."""
    if found.exact is None:
        return []
    value = float(found.exact[found.writers.index(writer), found.readers.index(reader)])
    return ["" if value != value else figure(value)]


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Html:
    made = [[mono(writer), mono(reader), *scores] for writer, reader, *scores in rows]
    return element("div", table(head, made, numeric=(2, 3)))


def _legend() -> Html:
    return div("dj-legend", span("", "orange where the metric would rise, blue where it would fall; as thick as large"))
