"""Notebook and sidebar side by side, under a base URL: two sessions stopped at once, and an engine that ends and comes
back."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.browser.lab_page import LabPage
from tests.browser.lab_server import LabServer, lab_server
from tests.browser.sidebar import Sidebar, no_complaints
from tests.browser.test_lab import write

LOAD = "%load_ext djinn_jupyter\n%djinn_load demo"
STOP = ("%djinn_break 4 --once", "%djinn_run --max-tokens 6 The capital of {} is")


@pytest.fixture(scope="module")
def lab_elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LabServer]:
    place = tmp_path_factory.mktemp("elsewhere")
    (place / "notebooks").mkdir()
    with lab_server(place / "notebooks", log=place / "lab.log", base_url="/some/where/") as server:
        yield server


def stopping(lab: LabServer, name: str, country: str) -> str:
    return write(lab, f"{name}.ipynb", LOAD, *(source.format(country) for source in STOP))


def test_two_notebooks_stand_at_once_and_one_goes_on(lab_elsewhere: LabServer, page: Page, artifacts: Path) -> None:
    lab = lab_elsewhere
    first, second = stopping(lab, "first", "France"), stopping(lab, "second", "Italy")
    with no_complaints(page):
        opened = LabPage.open(page, lab.address(first))
        assert "/some/where/lab" in page.url
        sidebar = Sidebar.show(page)
        opened.command("application:toggle-left-area")
        opened.run_all()
        opened.open_beside(second)
        opened.run_all()
        for name in ("first", "second"):
            sidebar.stands(name, "at resid_post.4")
        expect(sidebar.whole.locator(".djinn-Lens")).to_contain_text("Rome")
        page.screenshot(path=artifacts / "two-notebooks.png")
        sidebar.session("first").locator(".djinn-Session-main").click()
        expect(sidebar.whole.locator(".djinn-Lens")).to_contain_text("Paris")
        sidebar.press("resume")
        sidebar.stands("first", "idle")
        expect(sidebar.session("second").locator(".djinn-Session-state")).to_have_text("at resid_post.4")
    assert opened.errors() == []


def test_an_engine_that_ended_is_started_again_under_the_open_sidebar_with_its_sessions(
    lab_elsewhere: LabServer, page: Page
) -> None:
    opened = LabPage.open(page, lab_elsewhere.address(stopping(lab_elsewhere, "revived", "France")))
    sidebar = Sidebar.show(page)
    opened.run_all()
    sidebar.stands("revived", "at resid_post.4")
    engine = sidebar.engine("demo")
    before = process_of(engine)
    os.kill(before, signal.SIGKILL)
    expect(sidebar.whole.get_by_role("alert").first).to_contain_text("ended")
    expect(engine).to_have_count(0)
    expect(sidebar.session("revived")).to_have_count(0)
    opened.run_cell(LOAD)
    sidebar.stands("revived", "at resid_post.4")
    assert process_of(engine) != before
    sidebar.press("resume")
    sidebar.stands("revived", "idle")
    assert opened.errors() == []


def process_of(engine: Locator) -> int:
    """Return the engine's process number, as the sidebar shows it."""
    described = engine.locator(".djinn-Engine-name").get_attribute("title") or ""
    found = re.search(r"Process (\d+)", described.replace(",", ""))
    assert found, described
    return int(found[1])
