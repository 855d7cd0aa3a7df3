"""The magic of a head's page."""

from __future__ import annotations

from djinn_jupyter.methods.heads.request import ReadHead
from tests.magics.conftest import Notebook, last


def test_a_page_is_read_shown_and_kept(notebook: Notebook) -> None:
    notebook.shell.user_ns["prompts"] = [[1, 2, 3], [4, 5, 6]]
    said = notebook.cell("%djinn_heads --page --head 1.2 --prompts prompts -o page")
    asked = last(notebook, ReadHead)
    assert (asked.layer, asked.head, asked.lines) == (1, 2, ((1, 2, 3), (4, 5, 6)))
    assert "Head 1.2 over 2 prompts" in said
    assert notebook.shell.user_ns["page"].head == "1.2"
    assert list(notebook.engine.sessions) == ["work/paris.ipynb"]


def test_a_page_needs_no_prompts(notebook: Notebook) -> None:
    assert "Give prompts to see what it attends to" in notebook.cell("%djinn_heads --page --head 1.2")
    assert last(notebook, ReadHead).lines == ()


def test_mistakes_are_told(notebook: Notebook) -> None:
    for line, words in (
        ("--page", "A page is of one head: --page --head 5.1"),
        ("--page --head 1.2 --head 1.1", "A page is of one head"),
        ("--page --head one", "such as 5.1; 'one' is none"),
        ("--page --head 1.2 --seed 3", "leave --patterns, --length"),
        ("--page --head 1.2 --patterns", "leave --patterns, --length"),
        ("--head 1.2", "or that of --page"),
    ):
        assert words in notebook.fails(f"%djinn_heads {line}")
