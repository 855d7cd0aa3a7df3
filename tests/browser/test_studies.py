"""A study made in a notebook, and the page in its file, opened in a browser by a reader without Djinn."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.lab_page import LabPage
from tests.browser.lab_server import LabServer
from tests.browser.sidebar import no_complaints
from tests.browser.test_lab import write

# Of settings that no other test asks for, so that the engine is this notebook's alone.
LOAD = "%load_ext djinn_jupyter\n%djinn_load demo --stops-kept 9"
LINES = "a, b = 'The capital of France is', 'The capital of Italy is'"
SWEEP = (
    "%djinn_run --max-tokens 0 The capital of Italy is\n"
    "%djinn_sweep resid_post --from a --over layer,position --metric \"logit(' Paris') - logit(' Rome')\" -o grid"
)
ADD = '%djinn_study capitals --add grid --title "residual stream" --note "Where is *Paris*? <b>$a$</b>"'
HEADS = "%djinn_heads -o heads\n%djinn_study capitals --add heads"
AGAIN = "%djinn_study capitals --reproduce"
END = "%djinn_stop --forget --force"


@pytest.fixture(scope="module")
def made(lab: LabServer, browser: Browser, artifacts: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a study that a notebook made, unzipped."""
    page = browser.new_page(viewport={"width": 900, "height": 900})
    notebook = write(lab, "studies.ipynb", LOAD, LINES, SWEEP, ADD, HEADS, AGAIN, END)
    with no_complaints(page):
        opened = LabPage.open(page, lab.address(notebook))
        opened.run_all()
        assert opened.errors() == []
        said = "\n".join(str(one.get("data", {}).get("text/plain", "")) for one in opened.outputs())
        assert "Study capitals: 2 items" in said
        assert said.count(": The same bits: ") == 2
        opened.show_everything()
        expect(opened.drawn(".djinn").get_by_text("Where is *Paris*? <b>$a$</b>").first).to_be_visible()
        assert opened.drawn("mjx-container").count() == 0
        page.screenshot(path=artifacts / "study.png")
    page.close()
    folder = tmp_path_factory.mktemp("unzipped")
    [file] = lab.folder.rglob("capitals.study.zip")
    with zipfile.ZipFile(file) as unzipped:
        unzipped.extractall(folder)
    return folder / "index.html"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_reader_sees_cards_and_notes_and_nothing_is_loaded(
    made: Path, browser: Browser, artifacts: Path, scheme: str
) -> None:
    page: Page = browser.new_context(color_scheme=scheme, viewport={"width": 900, "height": 1200}).new_page()  # type: ignore[arg-type]
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    with no_complaints(page):
        page.goto(made.as_uri())
        expect(page.get_by_role("heading", name="capitals")).to_be_visible()
        expect(page.get_by_text("Where is *Paris*? <b>$a$</b>")).to_be_visible()
        expect(page.locator(".djinn")).to_have_count(2)
        page.get_by_role("link", name="HeadScores").click()
        assert page.url.endswith("#1")
        page.screenshot(path=artifacts / f"study-page-{scheme}.png", full_page=True)
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert {url.partition("#")[0] for url in asked} == {made.as_uri()}
    page.context.close()
