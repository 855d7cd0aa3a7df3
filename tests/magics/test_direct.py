"""`%djinn_direct` runs the prompt in a session of its own, attributes its logit, and draws the parts."""

from __future__ import annotations

from djinn_jupyter.methods.direct.request import Attribute
from djinn_jupyter.wire import requests
from tests.magics.conftest import Notebook, last

METRIC = "--metric \"logit(' Rome') - logit(' Paris')\""


def test_the_parts_are_drawn_and_kept(notebook: Notebook) -> None:
    said = notebook.cell(f"%djinn_direct {METRIC} -o parts The capital of Italy is")
    asked = last(notebook, Attribute)
    assert (asked.tokens, asked.heads) == ((" Rome", " Paris"), True)
    assert last(notebook, requests.Run).text == "The capital of Italy is"
    assert last(notebook, requests.Close).session == asked.session == "attribution 1"
    assert notebook.shell.user_ns["parts"].remainder in said


def test_neurons_are_asked_for_and_the_largest_parts_listed(notebook: Notebook) -> None:
    said = notebook.cell(f"%djinn_direct {METRIC} --over layer,neuron --top 3 The capital of Italy is")
    assert last(notebook, Attribute).neurons
    assert "the largest parts" in said


def test_token_ids_are_a_line_too(notebook: Notebook) -> None:
    notebook.shell.user_ns["ids"] = [1, 2, 3]
    notebook.cell(f"%djinn_direct {METRIC} --over layer --ids ids")
    assert not last(notebook, Attribute).heads
    assert last(notebook, requests.Run).tokens == (1, 2, 3)


def test_a_metric_and_one_line_are_needed(notebook: Notebook) -> None:
    assert "needs a metric" in notebook.fails("%djinn_direct The capital")
    assert "Give the line once" in notebook.fails(f"%djinn_direct {METRIC}")
    assert "Give the line once" in notebook.fails(f"%djinn_direct {METRIC} --ids ids The capital")
