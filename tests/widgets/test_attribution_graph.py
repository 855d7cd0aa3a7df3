"""The card of an attribution graph: layers from above, positions from the left, a click that stops at a position."""

from __future__ import annotations

import itertools
import json

from djinn_jupyter.methods.circuits.card import edge_layout
from djinn_jupyter.methods.circuits.card.circuit import MIME
from djinn_jupyter.methods.graphs.card import attribution_graph_view
from tests.widgets import graphed


def test_a_node_stops_at_its_feature_at_its_position() -> None:
    shown = attribution_graph_view(graphed.found())
    assert shown.drawn is not None
    mime, drawing = shown.drawn
    assert mime == MIME
    assert json.loads(json.dumps(drawing, allow_nan=False)) == drawing
    nodes = {one["label"]: one for one in drawing["nodes"]}
    assert (nodes["L0 #3 @1"]["site"], nodes["L0 #3 @1"]["when"]) == ("tc.0[3]", "position == 1")
    assert (nodes[" extrao…"]["site"], nodes[" extrao…"]["when"]) == ("resid_pre.0", "position == 1")
    assert (nodes["metric"]["site"], nodes["metric"]["when"]) == ("resid_post.1", "position == 1")
    assert "L1 #12345 @1" in nodes
    edges = {(one["writer"], one["reader"]): one for one in drawing["edges"]}
    between = edges["tc.0[3] @1", "tc.1[12345] @1"]
    assert (between["site"], between["when"], between["score"]) == ("tc.1[12345]", "position == 1", -1.0)


def test_rows_are_layers_from_the_embeddings_to_the_outputs() -> None:
    _, drawing = attribution_graph_view(graphed.found()).drawn or ("", {})
    heights = {one["label"]: one["y"] for one in drawing["nodes"]}
    assert heights[" extrao…"] < heights["L0 #3 @1"] < heights["L1 #12345 @1"] < heights["metric"]


def test_names_have_room_in_boxes_that_do_not_meet() -> None:
    _, drawing = attribution_graph_view(graphed.found()).drawn or ("", {})
    wide, high = drawing["box"]
    assert wide >= 6 * max(len(one["label"]) for one in drawing["nodes"])
    assert wide > edge_layout.NODE
    for one, other in itertools.combinations(drawing["nodes"], 2):
        assert abs(one["x"] - other["x"]) >= wide or abs(one["y"] - other["y"]) >= high
    assert all(wide / 2 <= one["x"] <= drawing["width"] - wide / 2 for one in drawing["nodes"])


def test_it_says_scores_and_sums() -> None:
    found = graphed.found()
    shown = attribution_graph_view(found, top=2)
    assert "features: 2 of 2 active" in shown.plain
    assert "the 2 edges of most influence are shown" in shown.plain
    assert "sums: bias and effects are what a node has, within 0" in shown.plain
    assert "replacement" in shown.plain
    assert 0 < found.replacement < 1
    assert 0 < found.completeness < 1
