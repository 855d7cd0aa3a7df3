"""What a cell shows over a line that is slow: a bar while an array arrives, one while an edit leaves; and the card of a
stop that the line is down. Engine, keys and kernel are real; the line carries 50 kB/s and is one that a test cuts."""

from __future__ import annotations

import re
from pathlib import Path

from playwright.sync_api import Page, expect

from djinn_jupyter.remote.addresses import read_address
from tests.browser.lab_page import DARK, LabPage
from tests.browser.lab_server import LabServer
from tests.browser.sidebar import Sidebar, no_complaints
from tests.browser.test_lost_line import afar
from tests.browser.test_sidebar import write
from tests.process.rough_line import RoughLine

BYTES_PER_SECOND = 5e4
STOP = f"%djinn_break resid_post.4\n%djinn_run --max-tokens 1 {'The capital of France is Paris. ' * 130}"
EDIT = "%%djinn_edit\nh[:] = h[::-1] * 2"

RUN_EDIT = """() => {
  const { content } = window.jupyterapp.shell.currentWidget;
  content.activeCellIndex = 2;
  void window.jupyterapp.commands.execute('notebook:run-cell');
}"""


def slow_line_to(address: str) -> RoughLine:
    engine = read_address(address)
    return RoughLine(
        engine=(engine.host, engine.port), delay_seconds=0.025, lost_share=0.0, bytes_per_second=BYTES_PER_SECOND
    )


def test_a_cell_shows_what_arrives_and_what_leaves_and_its_card_that_the_line_is_down(
    lab: LabServer, page: Page, artifacts: Path
) -> None:
    with afar(lab, slow_line_to) as line, no_complaints(page):
        load = f"%load_ext djinn_jupyter\n%djinn_load demo --at {line.place}"
        lab_page = LabPage.open(page, lab.address(write(lab, "slow", load, STOP, EDIT)))
        lab_page.wait_for_kernel()
        outputs = page.locator(".jp-OutputArea")
        for source in (load, STOP):
            lab_page.run_cell(source)
        page.screenshot(path=artifacts / "slow-line-stop.png")
        made = outputs.get_by_text(
            re.compile(r"^read from float32 \[910, 128\] between .+; pixels rounded to bfloat16$")
        )
        made.scroll_into_view_if_needed()
        page.screenshot(path=artifacts / "slow-line-picture.png")
        sidebar = Sidebar.show(page)
        caption = sidebar.whole.locator(".djinn-Thumbnail figcaption")
        expect(caption).to_contain_text("10 positions a row \u00b7 the largest of them drawn")
        caption.scroll_into_view_if_needed()
        assert sidebar.defects() == []
        page.screenshot(path=artifacts / "slow-line-sidebar.png")
        down = outputs.get_by_text(re.compile("the line to the engine is down since"))
        line.cut()
        expect(down.first).to_be_visible()
        page.screenshot(path=artifacts / "slow-line-down.png")
        line.mend()
        expect(down.first).to_be_hidden()
        page.screenshot(path=artifacts / "slow-line-back.png")
        lab_page.use_theme(DARK)
        page.evaluate(RUN_EDIT)
        for way in ("receiving", "sending"):
            bar = outputs.get_by_text(re.compile(f"^{way} .+; interrupt the kernel to end it"))
            expect(bar).to_be_visible()
            bar.evaluate("bar => bar.scrollIntoView()")  # it is drawn anew all the time, so never stable
            page.screenshot(path=artifacts / f"slow-line-{way}.png")
        done = outputs.last.get_by_text(re.compile(r"^(received|sent) .+ over the line$"))
        expect(done).to_have_text([re.compile("^received"), re.compile("^sent")])
        page.screenshot(path=artifacts / "slow-line-edited.png")
