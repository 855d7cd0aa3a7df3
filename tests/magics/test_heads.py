"""`%djinn_heads` scores all heads, or draws all patterns of the present line."""

from __future__ import annotations

import pytest

from djinn_jupyter.methods.heads.request import ReadHeads
from djinn_jupyter.wire import requests
from tests.magics.conftest import Notebook, last


def test_heads_are_scored_on_random_tokens_or_on_prompts(notebook: Notebook) -> None:
    notebook.cell("%djinn_heads --length 6 --samples 2 --seed 1 -o scores")
    asked = last(notebook, ReadHeads)
    assert [len(line) for line in asked.lines] == [12, 12]
    assert all(line[:6] == line[6:] for line in asked.lines)
    assert notebook.shell.user_ns["scores"].top(1, "induction") == [(1, 2, 1.0)]
    notebook.shell.user_ns["prompts"] = [[1, 2, 1]]
    notebook.cell("%djinn_heads --prompts prompts")
    assert last(notebook, ReadHeads).lines == ((1, 2, 1),)
    assert list(notebook.engine.sessions) == ["work/paris.ipynb"]


def test_all_patterns_are_of_the_present_line_under_its_rules(notebook: Notebook) -> None:
    notebook.cell("%djinn_heads --patterns -o patterns")
    asked = last(notebook, ReadHeads)
    assert (asked.lines, asked.rules_of, asked.patterns) == (("work/paris.ipynb",), "work/paris.ipynb", True)
    assert notebook.shell.user_ns["patterns"].values.shape == (2, 3, 4, 4)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("--patterns --length 5", "--patterns are of the present line"),
        ("--prompts prompts --seed 2", "--length, --samples and --seed are of random tokens"),
        ("--prompts nothing", "neither a variable nor a file 'nothing'"),
        ("--length 1", "two or more tokens"),
        ("--session paris", "--session has the line of --patterns"),
    ],
)
def test_what_cannot_be_meant_is_one_line(notebook: Notebook, line: str, said: str) -> None:
    notebook.shell.user_ns["prompts"] = [[1, 2]]
    assert said in notebook.fails(f"%djinn_heads {line}")


def test_a_matrix_is_read_and_kept(notebook: Notebook) -> None:
    said = notebook.cell("%djinn_weight W_OV.5[3] --rows 0:2,-1 --fold-norm -o matrix")
    asked = last(notebook, requests.ReadWeight)
    assert (asked.name, asked.rows, asked.columns, asked.fold_norm) == ("W_OV.5[3]", (0, 1, -1), None, True)
    assert notebook.shell.user_ns["matrix"].shape == (3, 2)
    assert "W_OV.5[3]: [3, 2] float32" in said
    assert "both ends" in notebook.fails("%djinn_weight W_U --columns 5:")
