"""A line to an engine of another machine, in the sidebar and in cells: what is said, disabled and drawn while it is
cut or slow, and that it comes back by itself. Engine, keys, kernel and server are real; the line is one that a test
cuts."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from djinn_jupyter.remote.addresses import entry_at, read_address
from tests.browser.lab_page import DARK, LabPage
from tests.browser.lab_server import LabServer, environment
from tests.browser.sidebar import Sidebar, no_complaints
from tests.browser.test_sidebar import RUN_NEXT, opened, write
from tests.ports import free_port
from tests.process.relay import Relay
from tests.process.rough_line import RoughLine

KEYS = """from djinn_jupyter.remote import addresses as own
own.draw_own("ada")
folder = own.key_folder()
folder.allow(folder.own("ada").public, "ada")
folder.trust("127.0.0.1", own.of_engines_here().public)"""
STOP = "%djinn_break 4\n%djinn_run --max-tokens 2 The capital of France is"


class Line:
    """A relay in a thread of its own."""

    def __init__(self, relay: Relay | RoughLine) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self._relay = relay
        self.mend()
        self.place = relay.entry.place if isinstance(relay, Relay) else f"127.0.0.1:{relay.port}"

    def mend(self) -> None:
        asyncio.run_coroutine_threadsafe(self._relay.mend(), self._loop).result()

    def cut(self) -> None:
        async def cut() -> None:
            self._relay.cut()

        asyncio.run_coroutine_threadsafe(cut(), self._loop).result()

    def end(self) -> None:
        self.cut()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


@contextmanager
def line_by(relay: Relay | RoughLine) -> Iterator[Line]:
    line = Line(relay)
    try:
        yield line
    finally:
        line.end()


@pytest.fixture(scope="module")
def box(lab: LabServer) -> Iterator[str]:
    """The address of an engine of the demo model that is not found here."""
    beside = environment(lab.folder.parent) | {"JUPYTER_RUNTIME_DIR": str(lab.folder.parent / "box")}
    subprocess.run([sys.executable, "-c", KEYS], env=beside, check=True)
    address = f"tcp://127.0.0.1:{free_port()}"
    words = [sys.executable, "-m", "djinn_jupyter.cli.main", "serve", "demo", "--listen", address]
    engine = subprocess.Popen(words, env=beside, stdout=subprocess.PIPE, text=True)
    try:
        assert "listens on" in engine.stdout.readline()
        yield address
    finally:
        engine.terminate()
        engine.communicate()


BYTES_PER_SECOND = 5e4
LONG_STOP = f"%djinn_break resid_post.4\n%djinn_run --max-tokens 1 {'The capital of France is Paris. ' * 130}"
EDIT = "%%djinn_edit\nh[:] = h[::-1] * 2"

RUN_EDIT = """() => {
  const { content } = window.jupyterapp.shell.currentWidget;
  content.activeCellIndex = 2;
  void window.jupyterapp.commands.execute('notebook:run-cell');
}"""


def test_a_cell_shows_what_arrives_and_what_leaves_and_its_card_that_the_line_is_down(
    lab: LabServer, box: str, page: Page, artifacts: Path
) -> None:
    engine = read_address(box)
    slow = RoughLine(
        engine=(engine.host, engine.port), delay_seconds=0.025, lost_share=0.0, bytes_per_second=BYTES_PER_SECOND
    )
    with line_by(slow) as line, no_complaints(page):
        load = f"%load_ext djinn_jupyter\n%djinn_load demo --at {line.place}"
        lab_page = LabPage.open(page, lab.address(write(lab, "slow", load, LONG_STOP, EDIT)))
        lab_page.wait_for_kernel()
        outputs = page.locator(".jp-OutputArea")
        for source in (load, LONG_STOP):
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


def test_a_line_that_is_down_is_named_and_comes_back_by_itself(
    lab: LabServer, box: str, page: Page, artifacts: Path
) -> None:
    with line_by(Relay(entry_at(read_address(box), "ada"))) as line, no_complaints(page):
        load = f"%load_ext djinn_jupyter\n%djinn_load demo --at {line.place}"
        _, sidebar = opened(page, lab.address(write(lab, "afar", load, STOP)))
        page.evaluate(RUN_NEXT)
        sidebar.stands("afar", "idle")
        page.evaluate(RUN_NEXT)
        sidebar.stands("afar", "at resid_post.4")
        line.cut()
        notice = sidebar.whole.get_by_text(re.compile(rf"^The line to {line.place} is down since \d\d:\d\d"))
        expect(notice).to_be_visible()
        close = sidebar.whole.get_by_role("button", name=re.compile("^Close afar"))
        expect(close).to_be_disabled()
        assert sidebar.defects() == []
        page.screenshot(path=artifacts / "sidebar-line-down.png")
        sidebar.whole.screenshot(path=artifacts / "sidebar-line-down-panel.png")
        line.mend()
        expect(notice).to_be_hidden()
        expect(close).to_be_enabled()
        page.keyboard.press("F10")
        sidebar.stands("afar", "at resid_post.5")
