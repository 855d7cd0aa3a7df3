"""A circuit as a graph of the edges that are kept, with its faithfulness; circuits of several sizes as a curve."""

from __future__ import annotations

from typing import Final

from djinn_jupyter.methods.circuits.api.circuit_curves import CircuitCurve
from djinn_jupyter.methods.circuits.api.circuits import Circuit
from djinn_jupyter.methods.circuits.api.faithfulness import Interval
from djinn_jupyter.methods.circuits.card.edges import graph_of
from djinn_jupyter.methods.circuits.card.graph import MOST, graph_view
from djinn_jupyter.methods.sweep.api.pair_statistics import NO_INTERVAL
from djinn_jupyter.widgets.markup import table
from djinn_jupyter.widgets.spelling import columns, figure, plural
from djinn_jupyter.widgets.svg import series_chart
from djinn_jupyter.widgets.theme import card, facts, mono, part
from djinn_jupyter.widgets.view import View

HEAD: Final = ("share", "edges", "faithfulness", "interval")


def circuit_view(circuit: Circuit, *, top: int = MOST) -> View:
    """Show the `top` strongest of the edges that the circuit keeps as a graph and as a table. The others are left out:
    they carry the corrupted line."""
    kept = circuit.top(min(top, MOST))
    graph = graph_of(
        circuit,
        kept,
        kind="circuit",
        how=_how(circuit),
        facts=_facts(circuit, len(kept)),
        exact=[""] * len(kept),
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
    return View(plain="\n".join(plain), html=html)


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
