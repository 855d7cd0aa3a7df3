"""A feature's page in JupyterLab: its examples, what it writes, and nothing of it cut."""

from __future__ import annotations

from pathlib import Path

from playwright.sync_api import Page, expect

from tests.browser.lab_page import DARK, LabPage
from tests.browser.lab_server import LabServer
from tests.browser.sidebar import no_complaints
from tests.browser.test_lab import write

LOAD = "%load_ext djinn_jupyter\n%djinn_load demo --stops-kept 12"
READ = """import json
from djinn_jupyter.demo import DOCUMENTS_PATH, SAE_PATH
read = json.loads(DOCUMENTS_PATH.read_text())["ids"][:60]
%djinn_add_module sae $SAE_PATH --at resid_post.4
%djinn_collect resid_post.4 --prompts read --to acts"""
SHOWN = "%djinn_feature sae.4[436] --over acts"
END = "%djinn_stop --forget --force"
CUT = """one => [...one.querySelectorAll('*')]
.filter(e => e.clientWidth && e.scrollWidth > e.clientWidth + 3).map(e => e.outerHTML.slice(0, 200))"""


def test_a_features_page_is_whole_on_wide_and_narrow_pages(lab: LabServer, page: Page, artifacts: Path) -> None:
    notebook = write(lab, "feature.ipynb", LOAD, READ, SHOWN, END)
    with no_complaints(page):
        opened = LabPage.open(page, lab.address(notebook))
        opened.wait_for_kernel()
        for source in (LOAD, READ, SHOWN):
            opened.run_cell(source)
        card = opened.drawn(".djinn").filter(has_text="Feature sae.4[436]")
        expect(card).to_contain_text("where it is largest")
        coloured = card.locator(".dj-tokens .dj-here[style]").first
        assert "position" in str(coloured.get_attribute("title"))
        for name, width in (("feature", 1360), ("feature-narrow", 900)):
            page.set_viewport_size({"width": width, "height": 1400})
            card.scroll_into_view_if_needed()
            page.screenshot(path=artifacts / f"{name}.png")
            assert card.evaluate(CUT) == []
        opened.use_theme(DARK)
        card.locator("summary").last.click()
        page.screenshot(path=artifacts / "feature-dark.png")
        opened.run_cell(END)
