"""Magics of edges, circuits and attribution graphs: scored, pruned, drawn and kept."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from djinn_jupyter.methods.circuits.api.circuits import SIZES, Circuit
from djinn_jupyter.methods.circuits.card.circuit import MIME
from djinn_jupyter.methods.circuits.request import AttributeEdges, RunCircuits
from djinn_jupyter.methods.graphs.request import MakeGraph
from djinn_jupyter.wire import requests
from tests.magics.conftest import Notebook, last

METRIC = "--metric \"logit(' Rome') - logit(' Paris')\""


def test_edges_are_scored_from_the_present_line_to_the_clean_one(stopped: Notebook) -> None:
    stopped.shell.user_ns["clean"] = [1, 2, 3]
    said = stopped.cell(f"%djinn_edges --from clean {METRIC} --steps 4 --top 3 -o found")
    asked = last(stopped, AttributeEdges)
    assert (asked.corrupted, asked.clean, asked.steps) == ("work/paris.ipynb", (1, 2, 3), 4)
    assert "the 3 largest are shown" in said
    assert "EAP-IG, 4 steps" in stopped.html()
    graph = stopped.outputs[0].data[MIME]
    assert graph["session"] == "work/paris.ipynb"
    assert graph["stop"]["number"] == stopped.engine.sessions["work/paris.ipynb"].stop.number
    assert len(stopped.shell.user_ns["found"].top(3)) == 3
    stopped.shell.user_ns["clean"] = [1, 2, 3]
    stopped.cell(f"%djinn_edges --from clean {METRIC} -o found")
    bundle, _ = stopped.shell.display_formatter.format(stopped.shell.user_ns["found"])
    assert bundle[MIME]["session"] == "work/paris.ipynb"
    stopped.shell.user_ns["clean"] = [1, 2, 3]
    said = stopped.cell(f"%djinn_edges --from clean {METRIC} --steps 4 --top 3 --exact -o found")
    asked = last(stopped, AttributeEdges)
    assert (asked.method, asked.steps, len(asked.chosen)) == ("exact", 1, 3)
    assert "exact" in said.splitlines()[1]
    assert "from 1 on" in stopped.fails(f"%djinn_edges --from clean {METRIC} --top 0 --exact")
    stopped.shell.user_ns["clean"] = [1, 2, 3]
    assert "Edges need a metric" in stopped.fails("%djinn_edges --from clean")
    assert "name the clean one with --from" in stopped.fails(f"%djinn_edges {METRIC}")
    assert "name the clean one with --from" in stopped.fails(f"%djinn_edges --from clean --prompts clean {METRIC}")
    assert "from 1 to 1,000 steps" in stopped.fails(f"%djinn_edges --from clean {METRIC} --steps 0")


def test_an_interrupt_keeps_the_pairs_that_were_scored(stopped: Notebook, monkeypatch: pytest.MonkeyPatch) -> None:
    stopped.shell.user_ns["two"] = [([1, 2, 3], [1, 2, 4]), ([1, 2, 5], [1, 2, 6])]
    channel: Any = stopped.engine.channel
    ask, left = channel.ask, iter([1])

    def asked(request: requests.Request) -> Any:
        if isinstance(request, AttributeEdges) and next(left, None) is None:
            raise KeyboardInterrupt
        return ask(request)

    monkeypatch.setattr(channel, "ask", asked)
    said = stopped.fails(f"%djinn_edges --prompts two {METRIC} -o found")
    assert said.endswith("1 of 2 pairs were done; `kept` of this error has what there is. So does found.")
    assert len(stopped.shell.user_ns["found"].by_pair) == 1
    assert getattr(sys.last_value, "kept", None) is stopped.shell.user_ns["found"]


def test_pairs_are_scored_one_by_one(stopped: Notebook) -> None:
    stopped.shell.user_ns["both"] = [([1, 2], [1, 3]), ([4, 5], [4, 6])]
    said = stopped.cell(f"%djinn_edges --prompts both {METRIC}")
    asked = [one for one in stopped.engine.channel.requests if isinstance(one, AttributeEdges)]
    assert [(one.clean, one.corrupted) for one in asked] == [((1, 2), (1, 3)), ((4, 5), (4, 6))]
    assert "2 pairs" in said
    assert stopped.outputs[0].data[MIME]["session"] is None


LOGITS = "logit(' Rome') - logit(' Paris')"


@pytest.fixture
def scored(stopped: Notebook) -> Notebook:
    stopped.shell.user_ns["clean"] = [1, 2, 3]
    stopped.cell(f'%djinn_edges --from clean --metric "{LOGITS}" -o found')
    return stopped


def test_the_first_edges_are_kept_and_drawn_with_their_faithfulness(scored: Notebook, tmp_path: Path) -> None:
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
    scored.cell("%djinn_circuit found --threshold 1.5 --top 3 -o small")
    assert "the 3 largest are shown" in scored.html()
    bundle, _ = scored.shell.display_formatter.format(scored.shell.user_ns["small"])
    assert len(bundle[MIME]["edges"]) == len(scored.shell.user_ns["small"])
    assert bundle[MIME]["how"] == "scores from 1.5 on"
    found = scored.shell.user_ns["found"]
    scored.shell.user_ns["known"] = [(writer, reader) for writer, reader, _ in found.top(4)]
    said = scored.cell("%djinn_circuit found --edges 4 --known known")
    assert "AUROC of the scores against the 4 edges of known: 1.000" in said
    path = scored.shell.user_ns["found"].save(tmp_path / "fact.edges.djinn")
    scored.cell(f"%djinn_circuit {path} --edges 5 -o small")
    assert len(scored.shell.user_ns["small"]) == 5
    assert scored.shell.user_ns["small"].edges == [edge[:2] for edge in scored.shell.user_ns["found"].top(5)]


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


def test_the_graph_of_a_line_is_drawn_and_kept(stopped: Notebook) -> None:
    said = stopped.cell("%djinn_graph --metric \"logit(' x') - logit(' y')\" --top 3 --features 50 -o found")
    asked = last(stopped, MakeGraph)
    assert (asked.module, asked.metric, asked.features) == ("tc", "logit(' x') - logit(' y')", 50)
    assert isinstance(asked.line, str)
    assert "the 3 edges of most influence are shown" in said
    found = stopped.shell.user_ns["found"]
    assert found.metric == "logit(' x') - logit(' y')"
    bundle, _ = stopped.shell.display_formatter.format(found)
    assert bundle[MIME]["session"] == "work/paris.ipynb"
    stopped.shell.user_ns["line"] = [1, 2]
    stopped.cell("%djinn_graph clt --from line")
    asked = last(stopped, MakeGraph)
    assert (asked.module, asked.metric, asked.line, asked.features) == ("clt", None, (1, 2), 1024)
