"""The quickstart as a newcomer meets it: run in JupyterLab in a real browser, run again, and read without a kernel."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest
from playwright.sync_api import Page, expect

from tests.browser.lab_page import DARK, LIGHT, LabPage
from tests.browser.lab_server import LabServer
from tests.draw import commit

QUICKSTART = Path(__file__).parents[2] / "notebooks" / "01_quickstart.ipynb"
STOP_CARD = ".djinn:has(strong:has-text('Paused at'))"
OTHERS = sorted(set(QUICKSTART.parent.glob("*.ipynb")) - {QUICKSTART})
# In a run two that the commit draws; all of them run without a browser (`notebooks/`).
DRAWN = sorted(OTHERS, key=lambda path: crc32(f"{commit()} {path.stem}".encode()))[:2]
FIRST_STOP = f".jp-CodeCell:has({STOP_CARD})"
# Cards of a notebook that are shown in the documents, by words in them.
SHOWN = {
    "04_debugger_tour": {
        "lens": "Logit lens by layer",
        "attention": "attention of head 0",
        "branches": "intact against",
        "dose": "Who gets the drink",
    }
}
HEATMAP = f"{STOP_CARD} img[alt^='activation at']"

# Pictures that were not decoded (plotly's renderer holds an empty one ready), and texts that their card cuts off.
_DEFECTS = """cards => cards.flatMap(card => {
    const images = [...card.querySelectorAll('img:not(.plot-img)')];
    const empty = images.filter(image => !image.complete || !image.naturalWidth);
    const hides = box => box.clientWidth && getComputedStyle(box).overflowX === 'hidden';
    const boxes = [card, ...card.querySelectorAll('div, td, th')].filter(hides);
    const cut = boxes.filter(box => box.scrollWidth > box.clientWidth + 1);
    return [...empty.map(image => `empty: ${image.alt}`), ...cut.map(box => `cut off: ${box.textContent.slice(-80)}`)];
})"""


# A picture in its address is read some time after its element is there; one that cannot be is read too, and empty.
_PICTURES_ARE_READ = "() => [...document.querySelectorAll('.djinn img')].every(image => image.complete)"


def copied(notebook: Path, lab: LabServer, folder: str) -> str:
    """A copy in a folder of its own, so that its session is its own and the file in the repository stays as it is."""
    (lab.folder / folder).mkdir()
    shutil.copy(notebook, lab.folder / folder)
    return f"{folder}/{notebook.name}"


@pytest.fixture
def quickstart(lab: LabServer, request: pytest.FixtureRequest) -> str:
    return copied(QUICKSTART, lab, request.node.name)


def shown(opened: LabPage) -> list[list[dict[str, Any]]]:
    """The outputs of each cell, without the numbers of their cells and the seconds that a slow machine shows."""
    outputs = [cell.get("outputs", []) for cell in opened.cells()]
    return [
        [{k: v for k, v in o.items() if k != "execution_count"} for o in of_cell if not is_wait(o)]
        for of_cell in outputs
    ]


def is_wait(output: dict[str, Any]) -> bool:
    """Return whether an output is the line that a call of more than a second leaves."""
    return re.fullmatch(r"The engine: .*\d s", str(output.get("data", {}).get("text/plain"))) is not None


def unrun(opened: LabPage) -> list[str]:
    """Cells that were not reached: a usage error is no error output, but nothing runs after it."""
    return [c["source"] for c in opened.cells() if c["cell_type"] == "code" and not c["execution_count"]]


def assert_cards_are_whole(opened: LabPage) -> None:
    opened.show_everything()
    opened.page.wait_for_function(_PICTURES_ARE_READ)
    assert opened.drawn(".djinn").evaluate_all(_DEFECTS) == []


def assert_views_are_seen(opened: LabPage) -> None:
    assert_cards_are_whole(opened)
    expect(opened.drawn(STOP_CARD).first).to_be_visible()
    expect(opened.drawn(HEATMAP).first).to_be_visible()


def test_it_runs_to_its_end_and_its_views_are_seen_in_light_and_dark(
    lab: LabServer, kernelless_lab: LabServer, quickstart: str, page: Page, artifacts: Path
) -> None:
    """Restart and run all gives the same again; saved, it shows its views without a kernel."""
    opened = LabPage.open(page, lab.address(quickstart))
    opened.run_all()
    assert opened.errors() == unrun(opened) == []
    first = shown(opened)
    opened.restart_and_run_all()
    assert opened.errors() == unrun(opened) == []
    assert shown(opened) == first
    for theme in (LIGHT, DARK):
        opened.use_theme(theme)
        assert_views_are_seen(opened)
        opened.screenshots(artifacts / f"quickstart-{theme.split()[1].lower()}.png")
        opened.drawn(FIRST_STOP).first.screenshot(path=artifacts / f"stop-{theme.split()[1].lower()}.png")
    opened.save()
    reader = LabPage.open(page, kernelless_lab.address(quickstart))
    reader.without_kernel()
    assert kernelless_lab.running_kernels() == "[]"
    assert_views_are_seen(reader)
    reader.screenshots(artifacts / "quickstart-reopened.png")


@pytest.mark.parametrize(
    "notebook",
    [pytest.param(one, marks=() if one in DRAWN else pytest.mark.slow, id=one.stem) for one in OTHERS],
)
def test_so_does_every_other_notebook(notebook: Path, lab: LabServer, page: Page, artifacts: Path) -> None:
    opened = LabPage.open(page, lab.address(copied(notebook, lab, notebook.stem)))
    opened.run_all()
    assert opened.errors() == unrun(opened) == []
    has_cards = "%load_ext djinn_jupyter" in notebook.read_text()
    for theme in (LIGHT, DARK):
        opened.use_theme(theme)
        shade = theme.split()[1].lower()
        assert_cards_are_whole(opened)
        assert (opened.drawn(".djinn").count() > 0) == has_cards
        opened.screenshots(artifacts / f"{notebook.stem}-{shade}.png")
        for name, words in SHOWN.get(notebook.stem, {}).items():
            found = f":is(.djinn, .js-plotly-plot):is(:has-text('{words}'), :has([alt^='{words}']))"
            opened.drawn(found).first.screenshot(path=artifacts / f"{name}-{shade}.png")


def test_as_it_lies_in_the_repository_it_is_read_by_those_who_do_not_trust_it(
    kernelless_lab: LabServer, quickstart: str, page: Page, artifacts: Path
) -> None:
    """JupyterLab takes style sheets out of untrusted outputs; the words, tables and pictures stay."""
    reader = LabPage.open(page, kernelless_lab.address(quickstart))
    reader.without_kernel()
    reader.show_everything()
    expect(reader.drawn(".djinn:has-text('Paused at resid_post.4')").first).to_be_visible()
    expect(reader.drawn(".djinn img[alt^='activation at']").first).to_be_visible()
    reader.screenshots(artifacts / "quickstart-untrusted.png")
