"""The magic of a text as a whole."""

from __future__ import annotations

from djinn_jupyter.methods.text.request import ReadText, ReadTextLens
from djinn_jupyter.wire.arrays import Array
from tests.magics.conftest import Notebook, last
from tests.widgets import samples

METRIC = "logit(' Rome') - logit(' Paris')"


def test_a_text_is_read_shown_and_kept(notebook: Notebook) -> None:
    said = notebook.cell("%djinn_run The capital of France is\n%djinn_text -o read")
    asked = last(notebook, ReadText)
    assert (asked.line, asked.rules_of, asked.top, asked.metric) == (
        "work/paris.ipynb",
        "work/paris.ipynb",
        5,
        asked.site,
    )
    assert "Text of 5 tokens, 1 of them generated" in said
    assert "session paris" in notebook.html()
    assert notebook.shell.user_ns["read"].by == "probability"
    assert list(notebook.engine.sessions) == ["work/paris.ipynb"]


def test_what_colours_it_is_measured(notebook: Notebook) -> None:
    said = notebook.cell(f'%djinn_text --metric "{METRIC}" --top 3')
    assert (last(notebook, ReadText).metric, last(notebook, ReadText).top) == (METRIC, 3)
    assert f"coloured by {METRIC}" in said
    notebook.shell.user_ns["vector"] = [1.0, 2.0]
    said = notebook.cell("%djinn_text --site resid_post.4 --along vector --by entropy")
    asked = last(notebook, ReadText)
    assert (asked.site, isinstance(asked.direction, Array)) == ("resid_post.4", True)
    assert "coloured by entropy" in said
    assert "measured by probability, entropy" in notebook.fails("%djinn_text --by norm")
    assert "This notebook knows no 'missing'" in notebook.fails("%djinn_text --site resid_post.4 --along missing")


def test_another_text_is_read_under_the_sessions_rules(notebook: Notebook) -> None:
    notebook.shell.user_ns["ids"] = [4, 5, 6]
    notebook.cell("%djinn_text --text-from ids")
    assert (last(notebook, ReadText).line, last(notebook, ReadText).rules_of) == ((4, 5, 6), "work/paris.ipynb")


def test_the_lens_reads_the_whole_text(notebook: Notebook) -> None:
    said = notebook.cell('%djinn_run The capital of France is\n%djinn_lens --text -k 2 --token " Paris" -o read')
    asked = last(notebook, ReadTextLens)
    layers = samples.model().layers
    assert asked.sites == tuple(f"resid_post.{layer}" for layer in range(layers))
    assert (asked.line, asked.rules_of, asked.top, asked.tokens) == (
        "work/paris.ipynb",
        "work/paris.ipynb",
        2,
        (" Paris",),
    )
    assert f"Lens of {layers} sites, resid_post.0 to resid_post.{layers - 1}, over 5 tokens" in said
    assert "session paris" in notebook.html()
    assert notebook.shell.user_ns["read"].values.shape == (5, layers, 5)
    notebook.cell("%djinn_lens resid_post.2 --text")
    assert last(notebook, ReadTextLens).sites == ("resid_post.2",)
    for words, sites in (("0,3", ("resid_post.0", "resid_post.3")), ("2:4", ("resid_post.2", "resid_post.3"))):
        assert "Lens of 2 sites" in notebook.cell(f"%djinn_lens --text --layers {words}")
        assert last(notebook, ReadTextLens).sites == sites
    notebook.cell("%djinn_lens --text --layers")
    assert last(notebook, ReadTextLens).sites == asked.sites
    assert "layers choose among the sites" in notebook.fails("%djinn_lens resid_post.2 --text --layers 2")
    assert "it has 0, 1, 2" in notebook.fails(f"%djinn_lens --text --layers {layers}")
    for words in ("x", "4:2", "resid_post.2"):
        assert f"--layers {words} names no layers" in notebook.fails(f"%djinn_lens --text --layers {words}")
    assert "leave the site out" in notebook.fails("%djinn_lens --layers resid_post.2")
    assert "belong to --text" in notebook.fails("%djinn_lens --layers 0,3")
    assert "--text" in notebook.fails("%djinn_lens --text --positions 2")
