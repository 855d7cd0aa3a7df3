"""The card of a circuit: the edges that are kept, with the faithfulness and its interval; and the card of a curve."""

from __future__ import annotations

import itertools
import re
from urllib.parse import unquote

from djinn_jupyter.methods.circuits.card.circuit import MIME, circuit_view, curve_view
from djinn_jupyter.widgets.charts import series_chart
from tests.widgets import circuits


def test_the_graph_has_the_kept_edges_and_the_facts_the_faithfulness_with_its_interval() -> None:
    circuit = circuits.circuit(shares=(0.6, 0.7, 0.6, 0.7, 0.65))
    view = circuit_view(circuit)
    assert view.drawn is not None
    graph = view.drawn[1]
    assert [(one["writer"], one["reader"]) for one in graph["edges"]] == circuit.edges
    assert (graph["kind"], graph["how"], graph["session"]) == ("circuit", "the largest scores, 5 pairs", None)
    assert graph["model"] == circuit.made[0].by.model
    assert circuit.interval is not None
    low, high = circuit.interval
    assert f"faithfulness: 65.0%, {low:.1%} to {high:.1%} (95% by 1,000 resamples of 5 pairs)" in view.plain
    assert f"edges: 9 of {circuit.of} kept; all others carry the corrupted line" in view.plain
    assert "circuit: 0.950" in view.plain
    assert view.html.count("<tr>") == 1 + 9 + 5


def test_of_one_pair_there_is_no_interval_and_a_click_stops_its_session() -> None:
    view = circuit_view(circuits.circuit(shares=(0.5,)), top=4)
    assert "faithfulness: 50.0%; no interval: it is drawn from 5 pairs or more" in view.plain
    assert "9 of 46 kept; the 4 largest are shown" in view.plain
    graph = view._repr_mimebundle_()[MIME]
    assert (graph["engine"], graph["session"], len(graph["edges"])) == ("demo-1", "work/paris.ipynb", 4)


def test_a_circuit_without_edges_draws_none() -> None:
    view = circuit_view(circuits.circuit(0))
    assert view.drawn is None
    assert "0 of 46 kept" in view.plain


def test_a_curve_has_a_row_for_each_size_and_the_areas() -> None:
    curve = circuits.curve()
    view = curve_view(curve)
    rows = [line.split() for line in view.plain.splitlines()[2:5]]
    assert [row[:3] for row in rows] == [["10.0%", "5", "20.0%"], ["20.0%", "9", "65.0%"], ["100.0%", "46", "100.0%"]]
    assert f"CPR: {curve.cpr:.3f}" in view.plain
    assert f"CMD: {curve.cmd:.3f}" in view.plain
    assert view.html.count("<img") == 1
    assert "10.0% 20.0%" in view.html


def test_a_faithfulness_that_rounds_to_none_has_no_sign() -> None:
    view = circuit_view(circuits.circuit(shares=(-1e-6,)))
    assert "faithfulness: 0.0%; no interval: it is drawn from 5 pairs or more" in view.plain


def test_the_sizes_of_mib_have_labels_that_do_not_meet() -> None:
    sizes = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
    chart = unquote(series_chart(sizes, [[-0.0001, *sizes[1:]]], name="share", alt="", spelled="{:.0%}".format))
    labels = re.findall(r'<text x="(\d+)" y="196"[^>]*>([\d.]+)<', chart)
    places = [int(x) for x, _ in labels]
    assert [label for _, label in labels][-3:] == ["0.2", "0.5", "1"]
    assert len(labels) < len(sizes)
    assert all(b - a >= 7 * len("0.00") for a, b in itertools.pairwise(places))
    assert "-0%" not in chart
