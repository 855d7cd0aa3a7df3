"""`%djinn_edges` asks for the scores of the present line's edges and draws the strongest."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from djinn_jupyter.methods.circuits.card.circuit import MIME
from djinn_jupyter.methods.circuits.request import AttributeEdges
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


def test_what_was_kept_is_displayed_as_the_same_graph(stopped: Notebook) -> None:
    stopped.shell.user_ns["clean"] = [1, 2, 3]
    stopped.cell(f"%djinn_edges --from clean {METRIC} -o found")
    bundle, _ = stopped.shell.display_formatter.format(stopped.shell.user_ns["found"])
    assert bundle[MIME]["session"] == "work/paris.ipynb"


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


def test_the_edges_that_are_drawn_are_patched_exactly_where_that_is_asked(stopped: Notebook) -> None:
    stopped.shell.user_ns["clean"] = [1, 2, 3]
    said = stopped.cell(f"%djinn_edges --from clean {METRIC} --steps 4 --top 3 --exact -o found")
    asked = last(stopped, AttributeEdges)
    assert (asked.method, asked.steps, len(asked.chosen)) == ("exact", 1, 3)
    assert "exact" in said.splitlines()[1]
    assert "from 1 on" in stopped.fails(f"%djinn_edges --from clean {METRIC} --top 0 --exact")


def test_pairs_are_scored_one_by_one(stopped: Notebook) -> None:
    stopped.shell.user_ns["both"] = [([1, 2], [1, 3]), ([4, 5], [4, 6])]
    said = stopped.cell(f"%djinn_edges --prompts both {METRIC}")
    asked = [one for one in stopped.engine.channel.requests if isinstance(one, AttributeEdges)]
    assert [(one.clean, one.corrupted) for one in asked] == [((1, 2), (1, 3)), ((4, 5), (4, 6))]
    assert "2 pairs" in said
    assert stopped.outputs[0].data[MIME]["session"] is None


def test_a_line_that_lacks_something_says_what(stopped: Notebook) -> None:
    stopped.shell.user_ns["clean"] = [1, 2, 3]
    assert "Edges need a metric" in stopped.fails("%djinn_edges --from clean")
    assert "name the clean one with --from" in stopped.fails(f"%djinn_edges {METRIC}")
    assert "name the clean one with --from" in stopped.fails(f"%djinn_edges --from clean --prompts clean {METRIC}")
    assert "from 1 to 1,000 steps" in stopped.fails(f"%djinn_edges --from clean {METRIC} --steps 0")
