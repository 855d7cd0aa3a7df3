"""`%djinn_graph` makes the attribution graph of the present line, draws and keeps it."""

from __future__ import annotations

from djinn_jupyter.methods.circuits.card.circuit import MIME
from djinn_jupyter.methods.graphs.request import MakeGraph
from tests.magics.conftest import Notebook, last


def test_the_graph_of_the_present_line_is_drawn_and_kept(stopped: Notebook) -> None:
    said = stopped.cell("%djinn_graph --metric \"logit(' x') - logit(' y')\" --top 3 --features 50 -o found")
    asked = last(stopped, MakeGraph)
    assert (asked.module, asked.metric, asked.features) == ("tc", "logit(' x') - logit(' y')", 50)
    assert isinstance(asked.line, str)
    assert "the 3 edges of most influence are shown" in said
    found = stopped.shell.user_ns["found"]
    assert found.metric == "logit(' x') - logit(' y')"
    bundle, _ = stopped.shell.display_formatter.format(found)
    assert bundle[MIME]["session"] == "work/paris.ipynb"


def test_another_line_and_other_transcoders_are_named(stopped: Notebook) -> None:
    stopped.shell.user_ns["line"] = [1, 2]
    stopped.cell("%djinn_graph clt --from line")
    asked = last(stopped, MakeGraph)
    assert (asked.module, asked.metric, asked.line, asked.features) == ("clt", None, (1, 2), 1024)
