"""The links of the documents lead to what is there, the site shows every page, and decisions are referred to by title.

Read from the sources; `tests/browser/test_site.py` reads the site as it is built.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.house.repository import ROOT, anchor_of, text_files

PAGES = sorted((ROOT / "docs").rglob("*.md"))
RESULTS = ROOT / "evaluation" / "results"
OTHERS = [*ROOT.glob("*.md"), ROOT / "evaluation" / "README.md", RESULTS / "README.md", *RESULTS.glob("*/*/README.md")]
DOCUMENTS = sorted([*PAGES, *OTHERS])
NAV = re.findall(r"^ +- ([\w./-]+\.(?:md|ipynb))$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
FENCED = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


def links_of(document: Path) -> list[tuple[Path, str]]:
    """Return the file and the anchor, which may be empty, of each link to something in the repository."""
    found = re.findall(r"\]\((?!https?:)([^)#\s]*)#?([^)\s]*)\)", FENCED.sub("", document.read_text()))
    return [((document.parent / path).resolve() if path else document, anchor) for path, anchor in found]


def anchors_of(document: Path) -> set[str]:
    return {anchor_of(title) for title in re.findall(r"^#+ (.*)$", FENCED.sub("", document.read_text()), re.MULTILINE)}


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
def test_what_a_document_links_to_is_there(document: Path) -> None:
    links = links_of(document)
    assert [name_of(path) for path, _ in links if not path.exists()] == []
    assert [f"{name_of(path)}#{anchor}" for path, anchor in links if anchor and anchor not in anchors_of(path)] == []


def test_every_page_is_reached_from_the_readme() -> None:
    found, waiting = set(), [ROOT / "README.md"]
    while waiting:
        for target, _ in links_of(waiting.pop()):
            if target in DOCUMENTS and target not in found:
                found.add(target)
                waiting.append(target)
    assert sorted(map(name_of, {*PAGES} - found)) == []


def test_every_page_and_every_notebook_is_in_the_sites_navigation_once() -> None:
    shown = [*map(name_of, PAGES), *map(name_of, (ROOT / "notebooks").glob("*.ipynb")), *map(name_of, OTHERS)]
    assert len(set(NAV)) == len(NAV)
    assert sorted({*shown} - {*NAV}) == []
    assert [name for name in NAV if not (ROOT / name).exists()] == []


# --- decisions --------------------------------------------------------------------------------------------------------


DESIGN = (Path(__file__).parents[2] / "docs" / "design.md").read_text()
SECTIONS = re.split(r"^##+ ", DESIGN, flags=re.MULTILINE)[1:]
TITLES = re.findall(r"^### (.*)$", DESIGN, re.MULTILINE)
_NUMBER = re.compile(r"\bdecisions? \d+|design\.md(?:#|, )\d+", re.IGNORECASE)
_LINK = re.compile(r"design\.md#([\w-]+)")


def test_the_page_is_short() -> None:
    assert len(DESIGN.encode()) <= 60_000
    assert len(set(TITLES)) == len(TITLES) <= 50


def test_every_decision_names_the_alternative_that_lost() -> None:
    decisions = [one for one in SECTIONS if one.splitlines()[0] in TITLES]
    assert len(decisions) == len(TITLES)
    assert [one.splitlines()[0] for one in decisions if "\nRejected: " not in one] == []


def test_a_decision_is_referred_to_by_a_title_that_is_there() -> None:
    anchors = {anchor_of(title) for title in TITLES}
    files = [(path, text) for path, text in text_files() if path != "tests/house/test_design.py"]
    assert {path: found for path, text in files if (found := _NUMBER.findall(text))} == {}
    assert {path: found for path, text in files if (found := {*_LINK.findall(text)} - anchors)} == {}
