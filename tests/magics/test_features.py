"""The magic of a feature's page."""

from __future__ import annotations

from pathlib import Path

from msgspec import UNSET

from djinn_jupyter.methods.features.request import EncodeFeatures, ReadFeature
from djinn_jupyter.wire import requests
from tests.magics.conftest import Notebook, last


def test_a_page_is_shown_and_kept(notebook: Notebook) -> None:
    said = notebook.cell("%djinn_feature sae.4[17] -o page")
    asked = last(notebook, ReadFeature)
    assert (asked.site, asked.layer, asked.top, asked.session) == ("sae.4[17]", UNSET, 10, "feature 1")
    assert last(notebook, requests.Close).session == "feature 1"
    assert said.startswith("Feature sae.4[17], read without a collection")
    assert notebook.shell.user_ns["page"].site == "sae.4[17]"
    notebook.cell("%djinn_feature clt.4[3] --layer 6 --top 2")
    asked = last(notebook, ReadFeature)
    assert (asked.site, asked.layer, asked.top) == ("clt.4[3]", 6, 2)


def test_a_collection_is_a_variable_or_a_folder(notebook: Notebook, tmp_path: Path) -> None:
    notebook.shell.user_ns["prompts"] = [[1, 2, 3], [4, 5, 6]]
    notebook.cell(f'%djinn_collect resid_post.4 --prompts prompts --to "{tmp_path}" -o acts')
    said = notebook.cell("%djinn_feature sae.4[17] --over acts --examples 1 -o page")
    assert last(notebook, EncodeFeatures).units == (17, *range(20, 30))
    page = notebook.shell.user_ns["page"]
    assert "active at 4 of 6 positions (66.7 %), at most 4" in said
    assert page.top() == [(1, 2, " t6", 4.0)]
    assert "position 2: 4.00" in notebook.html()
    assert notebook.cell(f'%djinn_feature sae.4[17] --over "{tmp_path}" --examples 1') == said
    assert "There is no collection in" in notebook.fails("%djinn_feature sae.4[17] --over nowhere")
    assert "0 to 100 examples" in notebook.fails("%djinn_feature sae.4[17] --over acts --examples 101")


def test_it_is_drawn(notebook: Notebook, tmp_path: Path) -> None:
    said = notebook.cell(f'%djinn_feature sae.4[17] --save "{tmp_path / "page.html"}"')
    assert "written: page.html" in said
    assert "what sae.4[17] adds to logits" in (tmp_path / "page.html").read_text()
