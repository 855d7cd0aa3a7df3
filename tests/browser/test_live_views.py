"""Views while something runs: the memory chart on its canvas, frozen in its place; and how soon cards are painted."""

from __future__ import annotations

import shutil
import statistics
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.browser import painting
from tests.browser.lab_page import DARK, LIGHT, LabPage
from tests.browser.lab_server import LabServer
from tests.browser.test_lab import write

CANVAS = ".djinn-memory canvas[data-draws]"
LOAD = "%load_ext djinn_jupyter\nimport djinn_jupyter as dj"
WORK = """
for name in ("paris", "rome", "oslo"):
    with_name = engine.session(name, fresh=True)
    _ = with_name.run("The capital of France is", max_new_tokens=60, ignore_eos=True)
    _ = with_name.swap_out()
_ = engine.session("rome").swap_in()
"""
CLOSE = "for name in ('paris', 'rome', 'oslo'):\n    _ = engine.session(name).close()"


def pages_errors(page: Page) -> list[str]:
    found: list[str] = []
    page.on("pageerror", lambda error: found.append(str(error)))
    return found


def test_memory_is_drawn_live_and_frozen_by_its_button_in_light_and_dark(
    lab: LabServer, kernelless_lab: LabServer, page: Page, artifacts: Path
) -> None:
    errors = pages_errors(page)
    cells = [LOAD, "%djinn_load demo --fresh -o engine", "%djinn_vram -o trace", WORK]
    opened = LabPage.open(page, lab.address(write(lab, "vram.ipynb", *cells)))
    opened.run_all()
    assert opened.errors() == []
    opened.show_everything()
    canvas = opened.drawn(CANVAS)
    page.wait_for_function("selector => Number(document.querySelector(selector)?.dataset.draws) >= 8", arg=CANVAS)
    for theme in (LIGHT, DARK):
        opened.use_theme(theme)
        page.wait_for_function("() => new Promise(after => requestAnimationFrame(() => after(true)))")
        opened.drawn(".djinn-memory").screenshot(path=artifacts / f"vram-live-{theme.split()[1].lower()}.png")
    assert "weights" in (canvas.get_attribute("aria-label") or "")
    expect(opened.drawn(".djinn:has-text('Memory of demo')")).to_be_hidden()
    opened.save()
    kept = Path(lab.folder, "vram.ipynb").read_text(encoding="utf-8")
    assert "data:image/svg+xml,%3Csvg" in kept
    shutil.copy(lab.folder / "vram.ipynb", lab.folder / "vram-running.ipynb")
    opened.drawn(".djinn-memory button").click()
    frozen = opened.drawn(".djinn:has-text('Memory of demo')")
    frozen.wait_for()
    expect(opened.drawn(CANVAS)).to_have_count(0)
    expect(frozen).to_contain_text("moved")
    for theme in (DARK, LIGHT):
        opened.use_theme(theme)
        frozen.screenshot(path=artifacts / f"vram-frozen-{theme.split()[1].lower()}.png")
    kept = [output for output in opened.cells()[2]["outputs"] if "data" in output]  # of %djinn_vram
    assert [sorted(output["data"]) for output in kept[-1:]] == [["text/html", "text/plain"]]
    opened.save()
    reader = LabPage.open(page, kernelless_lab.address("vram.ipynb"))
    reader.without_kernel()
    reader.show_everything()
    expect(reader.drawn(".djinn:has-text('Memory of demo') img")).to_be_visible()
    running = LabPage.open(page, kernelless_lab.address("vram-running.ipynb"))
    running.without_kernel()
    running.show_everything()
    expect(running.drawn(".djinn:has-text('Memory of demo') img")).to_be_visible()
    running.drawn(".djinn:has-text('Memory of demo')").screenshot(path=artifacts / "vram-saved-while-it-ran.png")
    assert errors == []


@pytest.mark.alone
def test_a_stop_card_is_painted_at_once_and_an_update_in_a_few_frames(lab: LabServer, page: Page) -> None:
    """The bar is a bare line of HTML in the same notebook; the benchmark `paint` measures against the design's bars."""
    cells = [
        LOAD + "\nfrom IPython.display import HTML",
        "%djinn_load demo --fresh -o engine",
        "%djinn_break 4",
        *["%djinn_run The capital of France is", "display(HTML('<b class=\"bare\">bare</b>'))"] * 5,
        painting.updates_of_a_line(12),
        painting.updates_of_a_card(12),
    ]
    opened = LabPage.open(page, lab.address(write(lab, "paint.ipynb", *cells)))
    opened.wait_for_kernel()
    for cell in cells[:3]:
        opened.run_cell(cell)
    cards, bare = [], []
    for index in range(3, 13, 2):  # in turn, so that what else the machine does meets both
        cards.append(painting.painted(page, index, ".djinn [aria-hidden]"))
        bare.append(painting.painted(page, index + 1, "b.bare"))
    plain, updates = (painting.updated(page, index) for index in (13, 14))
    assert len(plain) == len(updates) == 12
    assert statistics.median(c.arrived for c in cards) < 8 * statistics.median(c.arrived for c in bare)
    assert statistics.median(updates) < 8 * statistics.median(plain)
