"""Each notebook says first what a stranger asks, and its links lead to the public copy of the repository."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import nbformat
import pytest

from tests.house.repository import ROOT, text_files

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PUBLIC = PROJECT["urls"]["Repository"]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
BINDER = ROOT / ".binder"


def name_of(path: Path) -> str:
    return path.name


def first_cell(notebook: Path) -> Any:
    return nbformat.read(notebook, as_version=4).cells[0]


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=name_of)
def test_the_first_cell_says_how_long_it_takes_and_that_the_demo_model_suffices(notebook: Path) -> None:
    cell = first_cell(notebook)
    title, terms, shown = cell.source.split("\n\n", 2)
    assert cell.cell_type == "markdown"
    assert title.startswith("# ")
    assert re.match(r"\*Less than (a|two) minutes? with the demo model: no download, no GPU\.", terms)
    assert len(shown) > 100


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=name_of)
def test_it_opens_on_colab_and_on_binder_from_the_public_copy(notebook: Path) -> None:
    copy = PUBLIC.removeprefix("https://github.com/")
    path = notebook.relative_to(ROOT).as_posix()
    links = dict(re.findall(r"\[([\w ]+)\]\((https://(?:colab|mybinder)[^)]+)\)", first_cell(notebook).source))
    assert links == {
        "Open in Colab": f"https://colab.research.google.com/github/{copy}/blob/main/{path}",
        "on Binder": f"https://mybinder.org/v2/gh/{copy}/main?labpath={path}",
    }


def test_no_other_repository_is_named_ours() -> None:
    """Wherever an address of the public copy stands, it is that of pyproject.toml."""
    ours = re.compile(r"https://github\.com/[\w-]+/djinn[\w-]*")
    assert {path: other for path, text in text_files() if (other := {*ours.findall(text)} - {PUBLIC})} == {}


def test_binder_installs_extras_that_are_there_and_all_distributions_of_the_checkout() -> None:
    commands = (BINDER / "postBuild").read_text()
    extras = re.findall(r"'\.\[([\w,]+)\]'", commands)[0].split(",")
    assert {*extras} <= PROJECT["optional-dependencies"].keys()
    assert {"./distribution", "./evaluation"} <= {*commands.split()}  # the second requires the first
    assert (BINDER / "postBuild").stat().st_mode & 0o111
    assert "pytorch-cpu" in (BINDER / "environment.yml").read_text()
