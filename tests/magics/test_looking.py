"""What is looked at, by the words that people have for heads, positions and sessions."""

from __future__ import annotations

from djinn_jupyter.wire import requests
from tests.magics.conftest import Notebook, last


def test_hover_adds_a_plotly_figure(stopped: Notebook) -> None:
    stopped.cell("%djinn_inspect --hover")
    card, figure = (output.data for output in stopped.outputs)
    assert set(card) == {"text/plain", "text/html"}
    assert set(figure) == {"text/plain", "application/vnd.plotly.v1+json"}
    assert figure["application/vnd.plotly.v1+json"]["data"][0]["type"] == "heatmap"


def test_a_head_is_chosen_by_its_number(stopped: Notebook) -> None:
    stopped.cell("%djinn_inspect pattern.2 --head 3 --hover")
    assert last(stopped, requests.Inspect).site == "pattern.2[3]"
    assert "selects already" in stopped.fails("%djinn_inspect pattern.2[1] --head 3")
    assert "counted from 0" in stopped.fails("%djinn_inspect pattern.2 --head -1")
