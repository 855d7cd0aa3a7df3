"""The magic of why a head attends."""

from __future__ import annotations

from djinn_jupyter.methods.why.request import ExplainScore
from tests.magics.conftest import Notebook, last


def test_a_score_is_explained_shown_and_kept(notebook: Notebook) -> None:
    said = notebook.cell("%djinn_run The capital of France is\n%djinn_why 5.1 --query -1 --key 0 -o parts")
    asked = last(notebook, ExplainScore)
    name = "work/paris.ipynb"
    assert (asked.line, asked.rules_of, asked.layer, asked.head, asked.query, asked.key) == (name, name, 5, 1, -1, 0)
    assert "Why head 5.1 attends from query 4" in said
    assert "session paris" in notebook.html()
    assert notebook.shell.user_ns["parts"].weight == 0.25
    assert list(notebook.engine.sessions) == [name]


def test_mistakes_are_told(notebook: Notebook) -> None:
    notebook.cell("%djinn_run The capital of France is")
    assert "name the one that is attended to, as --key 3" in notebook.fails("%djinn_why 5.1")
    assert "such as 5.1; 'five' is none" in notebook.fails("%djinn_why five --key 0")
    notebook.cell("%djinn_why 5.1 --key 0 --features sae.4")
    assert last(notebook, ExplainScore).features == "sae.4"
