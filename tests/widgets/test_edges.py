"""Graphs are laid out so that nothing meets: edges, circuits, attribution graphs and the tree of sessions."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path
from urllib.parse import unquote

import msgspec
import numpy as np
import pytest

from djinn_jupyter.api.arrays import from_numpy
from djinn_jupyter.methods.circuits.api.edges import Edges
from djinn_jupyter.methods.circuits.card import edge_layout
from djinn_jupyter.methods.circuits.card.circuit import MIME, MOST, circuit_view, curve_view, edges_view
from djinn_jupyter.methods.circuits.card.edge_layout import BETWEEN, GAP, HEIGHT, NODE, EdgeLayout, laid_out
from djinn_jupyter.methods.graphs.api import AttributionGraph
from djinn_jupyter.methods.graphs.card import attribution_graph_view, pruned_graph_view, wide
from djinn_jupyter.widgets import tree, views
from djinn_jupyter.widgets.charts import series_chart
from tests.widgets import circuits, edged, graphed, trees

POINTS = 24


def sampled(path: str) -> list[tuple[float, float]]:
    """Return points of a way: its curves and its straight parts."""
    start = re.match(r"M([\d.-]+),([\d.-]+)", path)
    at, points = (float(start[1]), float(start[2])), []
    for kind, rest in re.findall(r"([CV])([^CV]*)", path):
        if kind == "V":
            points += [(at[0], at[1] + (float(rest) - at[1]) * n / POINTS) for n in range(POINTS + 1)]
            at = (at[0], float(rest))
            continue
        one, two, end = ([float(x) for x in pair.split(",")] for pair in rest.split())
        for n in range(POINTS + 1):
            t = n / POINTS
            weights = ((1 - t) ** 3, 3 * t * (1 - t) ** 2, 3 * t * t * (1 - t), t**3)
            points.append(
                tuple(sum(w * p[i] for w, p in zip(weights, (at, one, two, end), strict=True)) for i in (0, 1))
            )
        at = (end[0], end[1])
    return points


def drawn(layers: int, heads: int, count: int, keys: int | None = None) -> tuple[EdgeLayout, list[tuple[str, str]]]:
    found = edged.found(layers=layers, heads=heads, keys=keys)
    edges = [(writer, reader) for writer, reader, _ in found.top(count)]
    return laid_out(edges, range(layers) if keys is not None else ()), edges


@pytest.mark.parametrize(("layers", "heads", "count", "keys"), [(2, 2, 8, None), (4, 8, MOST, 2)])
def test_no_node_meets_another_and_no_edge_meets_a_node(layers: int, heads: int, count: int, keys: int | None) -> None:
    layout, _ = drawn(layers, heads, count, keys)
    boxes = [(node.x - NODE / 2, node.y, node.x + NODE / 2, node.y + HEIGHT) for node in layout.nodes]
    for one, other in itertools.combinations(boxes, 2):
        assert one[1] != other[1] or one[2] + GAP - 0.2 <= other[0] or other[2] + GAP - 0.2 <= one[0]
    for left, top, right, bottom in boxes:
        assert 0 <= left < right <= layout.width
        assert 0 <= top < bottom <= layout.height
        for way in layout.ways:
            inside = [(x, y) for x, y in sampled(way.path) if left < x < right and top + 0.1 < y < bottom - 0.1]
            assert inside == []


def test_an_edge_goes_from_its_writer_to_its_reader_and_rows_go_down_by_layer() -> None:
    layout, edges = drawn(8, 4, 24)
    nodes = {node.site: node for node in layout.nodes}
    for (writer, reader), way in zip(edges, layout.ways, strict=True):
        points = sampled(way.path)
        read = re.sub(r"^[qkv]\.", "z.", reader).replace("mlp_in", "mlp_out")
        for (x, y), node, side in ((points[0], nodes[writer], HEIGHT), (points[-1], nodes[read], 0)):
            assert abs(x - node.x) <= NODE / 2
            assert y == pytest.approx(node.y + side, abs=0.1)
    layout, _ = drawn(3, 2, 60)
    rows = sorted({node.y for node in layout.nodes})
    order = [{node.label for node in layout.nodes if node.y == y} for y in rows]
    assert order == [{"embed"}, {"0.0", "0.1"}, {"mlp 0"}, {"1.0", "1.1"}, {"mlp 1"}, {"2.0", "2.1"}, {"mlp 2"},
                     {"logits"}]  # fmt: skip
    assert {b - a for a, b in itertools.pairwise(rows)} == {HEIGHT + BETWEEN}
    layout, edges = drawn(2, 4, 70, keys=2)
    shared = {node.label: node.site for node in layout.nodes if node.label.startswith("kv")}
    assert set(shared) == {"kv 0.0", "kv 0.1", "kv 1.0", "kv 1.1"}
    assert all(re.match(r"[kv]\.", site) for site in shared.values())
    assert any(reader == "k.1[0]" for _, reader in edges)


def test_the_card_has_the_graph_a_table_and_the_lines() -> None:
    view = edges_view(edged.found(), top=5)
    strongest = edged.found().top(5)
    assert view.html.count("<img") == 1
    assert view.html.count("<tr>") == 1 + 5 + 3
    for writer, reader, _ in strongest:
        assert writer in view.plain
        assert reader in view.html
    assert "the 5 largest are shown" in view.plain
    assert "session paris" in view.html
    assert "corrupted: -1.00" in view.plain
    view = edges_view(edged.found(), top=0)
    assert view.drawn is None
    assert "the 0 largest are shown" in view.plain
    graph = edges_view(edged.found(stop=None))._repr_mimebundle_()[MIME]
    assert (graph["session"], graph["stop"], graph["label"]) == (None, None, None)
    scored = edged.found()
    exact = np.full(scored.values.shape, np.nan)
    [(writer, reader, _), *_] = scored.top(2)
    exact[scored.writers.index(writer), scored.readers.index(reader)] = 0.125
    patched = [msgspec.structs.replace(scored.replies[0], scores=from_numpy(exact))]
    view = edges_view(Edges(scored.replies, engine="demo-1", patched=patched), top=2)
    assert view.plain.splitlines()[1].split() == ["writer", "reader", "score", "exact"]
    assert view.plain.splitlines()[2].endswith("0.125")
    assert [one["exact"] for one in view._repr_mimebundle_()[MIME]["edges"]] == ["0.125", ""]
    one, other = edged.edges_attributed(metric="a"), edged.edges_attributed(metric="b")
    found = Edges([one, other], paired=True)
    assert found.by_pair.shape == (2, len(found.writers), len(found.readers))
    assert "2 pairs" in repr(found)
    assert found.metric == "a and each pair's own"
    assert found.stop is None
    assert "EAP, 2 pairs" in edges_view(found).html


def test_what_the_page_draws_says_what_it_was_read_from_and_where_a_click_stops() -> None:
    found = edged.found()
    bundle = edges_view(found, top=9)._repr_mimebundle_()
    assert {"text/plain", "text/html", MIME} == set(bundle)
    graph = json.loads(json.dumps(bundle[MIME]))
    assert (graph["engine"], graph["session"]) == ("demo-1", "work/paris.ipynb")
    assert graph["stop"] == {"number": 7, "edition": 9}
    assert [(one["writer"], one["reader"], one["score"]) for one in graph["edges"]] == found.top(9)
    sites = {one["reader"]: one["site"] for one in graph["edges"]}
    assert all(site == ("resid_post.1" if reader == "logits" else reader) for reader, site in sites.items())
    whole = edges_view(found, top=100)._repr_mimebundle_()[MIME]
    assert {one["label"]: one["site"] for one in whole["nodes"]} == {
        "embed": "resid_pre.0", "0.0": "z.0[0]", "0.1": "z.0[1]", "mlp 0": "mlp_out.0", "1.0": "z.1[0]",
        "1.1": "z.1[1]", "mlp 1": "mlp_out.1", "logits": "resid_post.1",
    }  # fmt: skip
    assert (graph["kind"], graph["model"]) == ("edges", None)


def test_a_node_has_a_port_for_each_site_at_which_edges_come_in() -> None:
    whole = edges_view(edged.found(), top=100)._repr_mimebundle_()[MIME]
    nodes = {one["label"]: one for one in whole["nodes"]}
    ports = {name: [(port["label"], port["site"]) for port in one["ports"]] for name, one in nodes.items()}
    assert ports["0.1"] == [("q", "q.0[1]"), ("k", "k.0[1]"), ("v", "v.0[1]")]
    assert ports["mlp 1"] == [("", "mlp_in.1")]
    assert ports["embed"] == ports["logits"] == []
    landed = {edge["site"]: float(edge["path"].split()[-1].split(",")[0]) for edge in whole["edges"]}
    for port in (port for node in nodes.values() for port in node["ports"] if port["label"]):
        assert abs(landed[port["site"]] - port["x"]) <= 6
    shared = edges_view(edged.found(heads=4, keys=2), top=120)._repr_mimebundle_()[MIME]
    sites = {one["label"]: [port["site"] for port in one["ports"]] for one in shared["nodes"]}
    assert sites["1.3"] == ["q.1[3]"]
    assert sites["kv 1.0"] == ["k.1[0]", "v.1[0]"]


def test_a_circuit_has_the_kept_edges_and_its_faithfulness_with_its_interval() -> None:
    circuit = circuits.circuit(shares=(0.6, 0.7, 0.6, 0.7, 0.65))
    view = circuit_view(circuit)
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
    view = circuit_view(circuits.circuit(shares=(0.5,)), top=4)
    assert "faithfulness: 50.0%; no interval: it is drawn from 5 pairs or more" in view.plain
    assert "9 of 46 kept; the 4 largest are shown" in view.plain
    graph = view._repr_mimebundle_()[MIME]
    assert (graph["engine"], graph["session"], len(graph["edges"])) == ("demo-1", "work/paris.ipynb", 4)
    view = circuit_view(circuits.circuit(0))
    assert view.drawn is None
    assert "0 of 46 kept" in view.plain
    view = circuit_view(circuits.circuit(shares=(-1e-6,)))
    assert "faithfulness: 0.0%; no interval: it is drawn from 5 pairs or more" in view.plain


def test_a_curve_has_a_row_for_each_size_and_the_areas() -> None:
    curve = circuits.curve()
    view = curve_view(curve)
    rows = [line.split() for line in view.plain.splitlines()[2:5]]
    assert [row[:3] for row in rows] == [["10.0%", "5", "20.0%"], ["20.0%", "9", "65.0%"], ["100.0%", "46", "100.0%"]]
    assert f"CPR: {curve.cpr:.3f}" in view.plain
    assert f"CMD: {curve.cmd:.3f}" in view.plain
    assert view.html.count("<img") == 1
    assert "10.0% 20.0%" in view.html


def test_the_sizes_of_mib_have_labels_that_do_not_meet() -> None:
    sizes = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
    chart = unquote(series_chart(sizes, [[-0.0001, *sizes[1:]]], name="share", alt="", spelled="{:.0%}".format))
    labels = re.findall(r'<text x="(\d+)" y="196"[^>]*>([\d.]+)<', chart)
    places = [int(x) for x, _ in labels]
    assert [label for _, label in labels][-3:] == ["0.2", "0.5", "1"]
    assert len(labels) < len(sizes)
    assert all(b - a >= 7 * len("0.00") for a, b in itertools.pairwise(places))
    assert "-0%" not in chart


def test_a_node_stops_at_its_feature_at_its_position() -> None:
    shown = attribution_graph_view(graphed.found())
    assert shown.drawn is not None
    mime, drawing = shown.drawn
    assert mime == MIME
    assert json.loads(json.dumps(drawing, allow_nan=False)) == drawing
    nodes = {one["label"]: one for one in drawing["nodes"]}
    assert (nodes["L0 #3 @1"]["site"], nodes["L0 #3 @1"]["when"]) == ("tc.0[3]", "position == 1")
    assert (nodes[" extraordin… @1"]["site"], nodes[" extraordin… @1"]["when"]) == ("resid_pre.0", "position == 1")
    assert (nodes["metric"]["site"], nodes["metric"]["when"]) == ("resid_post.1", "position == 1")
    assert "L1 #12345 @1" in nodes
    edges = {(one["writer"], one["reader"]): one for one in drawing["edges"]}
    between = edges["tc.0[3] @1", "tc.1[12345] @1"]
    assert (between["site"], between["when"], between["score"]) == ("tc.1[12345]", "position == 1", -1.0)


def test_an_attribution_graph_has_rows_boxes_that_do_not_meet_and_sums() -> None:
    _, drawing = attribution_graph_view(graphed.found()).drawn or ("", {})
    heights = {one["label"]: one["y"] for one in drawing["nodes"]}
    assert heights[" extraordin… @1"] < heights["L0 #3 @1"] < heights["L1 #12345 @1"] < heights["metric"]
    wide, high = drawing["box"]
    assert wide >= 6 * max(len(one["label"]) for one in drawing["nodes"])
    assert wide > edge_layout.NODE
    for one, other in itertools.combinations(drawing["nodes"], 2):
        assert abs(one["x"] - other["x"]) >= wide or abs(one["y"] - other["y"]) >= high
    assert all(wide / 2 <= one["x"] <= drawing["width"] - wide / 2 for one in drawing["nodes"])
    found = graphed.found()
    shown = attribution_graph_view(found, top=2)
    assert "features: 2 of 2 active" in shown.plain
    assert "the 2 edges of most influence are shown" in shown.plain
    assert "sums: bias and effects are what a node has, within 0" in shown.plain
    assert "replacement" in shown.plain
    assert 0 < found.replacement < 1
    assert 0 < found.completeness < 1


def test_the_line_of_a_fork_that_has_no_stop_in_common_crosses_no_name() -> None:
    """It begins where the lines do."""
    names = re.findall(
        r'<text x="(\d+)" y="\d+" text-anchor="middle"[^>]*>([^<]+)<', unquote(views.tree_view(trees.branches()).html)
    )
    assert len(names) == 4
    assert all(int(x) - 2.6 * len(name) > tree.LEFT for x, name in names)  # half of it: a letter is 5.2 pixels wide


def test_groups_names_and_kinds_are_drawn_and_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AttributionGraph, "names", {"tc.0[3]": "<b>$x$ " + "m" * 300})
    found = graphed.found().group("late & </script> " + "y" * 100, ["tc.1[12345]", "error.1 @1"])
    view = attribution_graph_view(found)
    _, drawing = view.drawn or ("", {})
    nodes = {one["kind"]: one for one in drawing["nodes"]}
    assert {*nodes} == {"feature", "group", "embedding", "output"}
    assert [kind for kind, _ in drawing["kinds"]] == ["feature", "embedding", "output", "group"]
    assert nodes["feature"]["label"] == "L0 <b>$x$ mm\u2026 @1"
    assert (nodes["group"]["site"], nodes["group"]["when"]) == ("", None)
    assert nodes["group"]["title"].endswith(": tc.1[12345] @1, error.1 @1")
    assert all(wide(one["label"]) <= drawing["box"][0] for one in drawing["nodes"])
    assert "tc.0[3] '<b>$x$ " in view.plain
    assert "<b>" not in view.html
    assert "</script>" not in view.html
    assert "a group of nodes: its effects are the sums of theirs" in view.html
    effects = {(one["writer"], one["reader"]): one["score"] for one in drawing["edges"]}
    [group] = found.groups
    assert effects[group, found.metric] == pytest.approx(2.2)  # of EFFECTS: the feature's and the error's


def test_an_edge_to_a_row_above_is_dashed_and_none_leads_from_a_group_to_itself() -> None:
    found = graphed.found().group("both", ["embed @1", "tc.1[12345] @1"])  # of layers -1 and 1: below tc.0[3]
    view = attribution_graph_view(found)
    _, drawing = view.drawn or ("", {})
    rows = {one["label"]: one["y"] for one in drawing["nodes"]}
    assert rows["both"] > rows["L0 #3 @1"]
    rising = {(one["writer"], one["reader"]) for one in drawing["edges"] if one["rises"]}
    assert rising == {("both", "tc.0[3] @1")}
    assert ("tc.0[3] @1", "both") in {(one["writer"], one["reader"]) for one in drawing["edges"]}
    assert ("both", "both") not in {(one["writer"], one["reader"]) for one in drawing["edges"]}
    assert unquote(view.html).count('stroke-dasharray="6 4"') == 1
    assert "dashed where it runs upwards" in view.html


def test_a_pruned_graph_is_drawn_and_saved_as_a_figure(tmp_path: Path) -> None:
    pruned = graphed.found().pruned(0.5, 0.5)
    view = pruned_graph_view(pruned)
    assert len(view.drawn[1]["edges"]) == len(pruned.edges) if view.drawn else False
    assert pruned.save(tmp_path / "graph.svg").read_text().startswith("<?xml")
    assert pruned.top(1) == [tuple(column[0] for name, column in pruned.columns().items() if name != "influence")]
