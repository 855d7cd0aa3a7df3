"""`%djinn_study`: results of a notebook in one file, shown, checked and computed again, with or without an engine."""

from __future__ import annotations

from pathlib import Path

import pytest

import djinn_jupyter as dj
from tests.magics.conftest import Notebook

RUN = "%djinn_run The capital of France is"
EDGES = "%djinn_edges --from ids --metric \"logit(' Rome') - logit(' Paris')\" -o found"


@pytest.fixture
def scored(notebook: Notebook, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Notebook:
    """A notebook in a folder of its own, with edges in the variable `found`."""
    monkeypatch.chdir(tmp_path)
    notebook.shell.push({"ids": [1, 2, 3], "table": {"a": [1, 2]}})
    notebook.cell(f"{RUN}\n{EDGES}")
    return notebook


def test_results_and_notes_are_added_to_a_file_that_begins_with_them(scored: Notebook, tmp_path: Path) -> None:
    said = scored.cell('%djinn_study ioi --add found --title "the edges" --note "With *care*: {ids}."')
    assert said.startswith("Study ioi: 1 item\n")
    assert "the edges  Edges" in said
    scored.cell('%djinn_study ioi.study.zip --note "What follows."\n%djinn_study ioi --add table -o kept')
    study = dj.study(tmp_path / "ioi.study.zip")
    assert [(one.title, one.kind, one.note) for one in study] == [
        ("the edges", "Edges", "With *care*: {ids}."),
        ("note", "note", "What follows."),
        ("dict", "dict", ""),
    ]
    assert study[0].result.columns() == scored.shell.user_ns["found"].columns()
    assert scored.shell.user_ns["kept"].digest == study.digest
    assert scored.cell("%djinn_study ioi") == scored.cell("%djinn_study ioi --add found --title 'the edges'")
    assert [one.name for one in tmp_path.iterdir()] == ["ioi.study.zip"]


def test_it_is_read_and_checked_without_an_engine_and_computed_again_with_one(scored: Notebook) -> None:
    scored.cell("%djinn_study ioi --add found --title edges")
    said = scored.cell("%djinn_study ioi --reproduce -o report")
    assert scored.shell.user_ns["report"].columns()["outcome"] == ["same"]
    assert said.startswith("Reproduction: 1 same\n0  edges: The same bits: ")
    scored.cell("%djinn_unload")
    assert "edges  Edges" in scored.cell("%djinn_study ioi")
    assert scored.cell("%djinn_study ioi --check -o report").startswith("Check: 1 ok\n0  edges: ok, computed again by")
    assert scored.shell.user_ns["report"].ok
    assert "No model is loaded" in scored.fails("%djinn_study ioi --reproduce")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("nowhere", "nowhere.study.zip could not be read: No such file or directory."),
        ("ioi --add nothing", "There is no variable 'nothing' in this notebook."),
        ("ioi --add ids", "A study takes a result, a table (of pandas, or a dict of lists), a figure of matplotlib"),
        ("ioi --title x", "--title does not go with a study that is shown; leave it out."),
        ("ioi --check --note x", "--note does not go with --check; leave it out."),
        ("ioi --reproduce --check", "--reproduce does not go with --check; leave it out."),
        ('ioi --note " "', "A note is a text that is not empty."),
        ("", "the following arguments are required: FILE"),
    ],
)
def test_a_mistake_is_one_sentence_and_the_file_stays(scored: Notebook, tmp_path: Path, line: str, said: str) -> None:
    scored.cell("%djinn_study ioi --add found")
    before = (tmp_path / "ioi.study.zip").read_bytes()
    assert said in scored.fails(f"%djinn_study {line}")
    assert (tmp_path / "ioi.study.zip").read_bytes() == before
    assert [one.name for one in tmp_path.iterdir()] == ["ioi.study.zip"]
