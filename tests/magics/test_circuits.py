"""`%djinn_circuit` prunes edges that were kept, and shows those that are left with their faithfulness."""

from __future__ import annotations

from pathlib import Path

import pytest

from djinn_jupyter.methods.circuits.api.circuits import SIZES, Circuit
from djinn_jupyter.methods.circuits.card.circuit import MIME
from djinn_jupyter.methods.circuits.request import RunCircuits
from tests.magics.conftest import Notebook, last

METRIC = "logit(' Rome') - logit(' Paris')"


@pytest.fixture
def scored(stopped: Notebook) -> Notebook:
    stopped.shell.user_ns["clean"] = [1, 2, 3]
    stopped.cell(f'%djinn_edges --from clean --metric "{METRIC}" -o found')
    return stopped


def test_the_first_edges_are_kept_and_drawn_with_their_faithfulness(scored: Notebook) -> None:
    said = scored.cell("%djinn_circuit found --edges 12 -o small")
    [kept] = last(scored, RunCircuits).circuits
    found, small = scored.shell.user_ns["found"], scored.shell.user_ns["small"]
    assert isinstance(small, Circuit)
    assert small.edges == [(writer, reader) for writer, reader, _ in found.top(12)]
    assert len(kept) == 12
    assert f"faithfulness: {12 / len(found):.1%}" in said
    assert f"edges: 12 of {len(found):,} kept; all others carry the corrupted line" in said
    graph = scored.outputs[0].data[MIME]
    assert (graph["kind"], graph["how"], graph["session"]) == ("circuit", "the largest scores", "work/paris.ipynb")
    assert [(one["writer"], one["reader"]) for one in graph["edges"]] == small.edges


def test_a_circuit_that_a_cell_returns_is_displayed_as_the_same_graph(scored: Notebook) -> None:
    scored.cell("%djinn_circuit found --threshold 1.5 --top 3 -o small")
    assert "the 3 largest are shown" in scored.html()
    bundle, _ = scored.shell.display_formatter.format(scored.shell.user_ns["small"])
    assert len(bundle[MIME]["edges"]) == len(scored.shell.user_ns["small"])
    assert bundle[MIME]["how"] == "scores from 1.5 on"


def test_acdc_drops_edges_by_the_metric(scored: Notebook) -> None:
    said = scored.cell("%djinn_circuit found --acdc 1000 --first 20")
    assert "ACDC, threshold 1000, of the first 20" in scored.html()
    assert "0 of" in said
    said = scored.cell("%djinn_circuit found --acdc 0.001 --first 20 -o small")
    assert len(scored.shell.user_ns["small"]) == 20


def test_a_curve_has_the_faithfulness_at_each_size_and_the_areas(scored: Notebook) -> None:
    said = scored.cell("%djinn_circuit found --curve -o curve")
    assert len(last(scored, RunCircuits).circuits) == len(SIZES)
    curve = scored.shell.user_ns["curve"]
    assert f"CPR: {curve.cpr:.3f}" in said
    assert f"CMD: {curve.cmd:.3f}" in said
    assert "100.0%" in said
    bundle, _ = scored.shell.display_formatter.format(curve)
    assert "CPR" in bundle["text/html"]


def test_a_known_circuit_is_compared_with_the_scores(scored: Notebook) -> None:
    found = scored.shell.user_ns["found"]
    scored.shell.user_ns["known"] = [(writer, reader) for writer, reader, _ in found.top(4)]
    said = scored.cell("%djinn_circuit found --edges 4 --known known")
    assert "AUROC of the scores against the 4 edges of known: 1.000" in said


def test_edges_in_a_file_are_pruned_too(scored: Notebook, tmp_path: Path) -> None:
    path = scored.shell.user_ns["found"].save(tmp_path / "fact.edges.djinn")
    scored.cell(f"%djinn_circuit {path} --edges 5 -o small")
    assert len(scored.shell.user_ns["small"]) == 5
    assert scored.shell.user_ns["small"].edges == [edge[:2] for edge in scored.shell.user_ns["found"].top(5)]


def test_a_line_that_tells_no_circuit_says_what_is_wrong(scored: Notebook) -> None:
    scored.shell.user_ns["text"] = "abc"
    for line, said in (
        ("found", "Tell a circuit by one of"),
        ("found --edges 3 --curve", "Tell a circuit by one of"),
        ("found --edges 3 --first 2", "give --acdc too"),
        ("found --acdc 0.1 --signed", "leave one of the two out"),
        ("found --acdc 0", "larger than 0"),
        ("found --edges 99999", "has from 0 to"),
        ("found --faithfulness 2", "less than the 200.0% asked for"),
        ("text --edges 3", "neither a variable nor a file with edges"),
        ("nothing --edges 3", "neither a variable nor a file with edges"),
        ("found --edges 3 --known text", "no list of edges"),
        ("found --edges 3 --known nothing", "no list of edges"),
    ):
        assert said in scored.fails(f"%djinn_circuit {line}")
