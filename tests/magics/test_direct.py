"""Magics of direct attribution and of heads."""

from __future__ import annotations

import pytest

from djinn_jupyter.magics.completion import Matcher
from djinn_jupyter.methods.direct.request import Attribute
from djinn_jupyter.methods.heads.request import ReadHeads
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
    said = notebook.cell(f"%djinn_direct {METRIC} --over layer,neuron --top 3 The capital of Italy is")
    assert last(notebook, Attribute).neurons
    assert "the largest parts" in said
    notebook.shell.user_ns["ids"] = [1, 2, 3]
    notebook.cell(f"%djinn_direct {METRIC} --over layer --ids ids")
    assert not last(notebook, Attribute).heads
    assert last(notebook, requests.Run).tokens == (1, 2, 3)
    assert "needs a metric" in notebook.fails("%djinn_direct The capital")
    assert "Give the line once" in notebook.fails(f"%djinn_direct {METRIC}")
    assert "Give the line once" in notebook.fails(f"%djinn_direct {METRIC} --ids ids The capital")


STOPPED = "%djinn_break 4\n%djinn_run The capital of France is\n"


def test_modules_and_the_rest_are_told_with_their_sum(notebook: Notebook) -> None:
    said = notebook.cell(STOPPED + '%djinn_lens attn_out --token " Paris" --token " Rome" -o read')
    assert "what adds to the logit of ' Paris' minus ' Rome' at position 4" in said
    assert "0      +1.25     -0.50" in said
    assert "sum: +3.00" in said
    assert "What adds to the logit of" in notebook.html()
    read = notebook.shell.user_ns["read"]
    assert read.headings == ("attn_out", "mlp_out")
    values = [value for _, row in read.rows() for value in row]
    assert sum(values) + read.embedding + read.constant + read.rest == read.logit
    said = notebook.cell(STOPPED + '%djinn_lens z --token " Paris" --positions 2 --hover')
    assert "head 0" in said
    asked = last(notebook, Attribute)
    assert (asked.tokens, asked.heads, asked.position) == ((" Paris",), True, 2)
    assert any("application/vnd.plotly.v1+json" in output.data for output in notebook.outputs)
    for line, said in [
        ("%djinn_lens attn_out", "needs a token"),
        ('%djinn_lens z --token " a" --token " b" --token " c"', "needs a token"),
        ('%djinn_lens mlp_out --token " a" --positions 0,1', "at one position"),
    ]:
        notebook.cell(STOPPED)
        assert said in notebook.fails(line)


def test_the_points_complete(notebook: Notebook) -> None:
    found = [*Matcher(notebook.state).matches("%djinn_lens attn")]
    assert "attn_out" in found


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
    notebook.cell("%djinn_heads --patterns -o patterns")
    asked = last(notebook, ReadHeads)
    assert (asked.lines, asked.rules_of, asked.patterns) == (("work/paris.ipynb",), "work/paris.ipynb", True)
    assert notebook.shell.user_ns["patterns"].values.shape == (2, 3, 4, 4)
    assert "head 1.2: the last position looks at" in notebook.cell("%djinn_heads --patterns --head 1.2 --head 0.0")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("--patterns --length 5", "--patterns are of the present line"),
        ("--prompts prompts --seed 2", "--length, --samples and --seed are of random tokens"),
        ("--prompts nothing", "neither a variable nor a file 'nothing'"),
        ("--length 1", "two or more tokens"),
        ("--head 1.2", "--head chooses heads of --patterns"),
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
