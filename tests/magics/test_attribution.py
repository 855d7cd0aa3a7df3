"""Attribution of a logit is requested by the name of a point without a layer."""

from __future__ import annotations

import pytest

from djinn_jupyter.magics.completion import Matcher
from djinn_jupyter.methods.direct.request import Attribute
from tests.magics.conftest import Notebook, last

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


def test_heads_are_asked_for_by_z_and_a_figure_by_hover(notebook: Notebook) -> None:
    said = notebook.cell(STOPPED + '%djinn_lens z --token " Paris" --positions 2 --hover')
    assert "head 0" in said
    asked = last(notebook, Attribute)
    assert (asked.tokens, asked.heads, asked.position) == ((" Paris",), True, 2)
    assert any("application/vnd.plotly.v1+json" in output.data for output in notebook.outputs)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("%djinn_lens attn_out", "needs a token"),
        ('%djinn_lens z --token " a" --token " b" --token " c"', "needs a token"),
        ('%djinn_lens mlp_out --token " a" --positions 0,1', "at one position"),
    ],
)
def test_bad_input_is_answered_in_one_sentence(notebook: Notebook, line: str, said: str) -> None:
    notebook.cell(STOPPED)
    assert said in notebook.fails(line)


def test_the_points_complete(notebook: Notebook) -> None:
    found = [completion.text for completion in Matcher(notebook.state).matches("%djinn_lens attn")]
    assert "attn_out" in found
