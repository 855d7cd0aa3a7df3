"""The line to an engine of another machine is cut while its session is shown: the sidebar says so, disables what would
wait, and comes back by itself. Engine, keys, kernel and server are real; the line is one that a test cuts."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Page, expect

from djinn_jupyter.remote.addresses import entry_at, read_address
from tests.browser.lab_server import LabServer, environment
from tests.browser.sidebar import no_complaints
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


def relay_to(address: str) -> Relay:
    return Relay(entry_at(read_address(address), "ada"))


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
def afar(lab: LabServer, line_to: Callable[[str], Relay | RoughLine] = relay_to) -> Iterator[Line]:
    """An engine of the demo model at the end of a line."""
    beside = environment(lab.folder.parent) | {"JUPYTER_RUNTIME_DIR": str(lab.folder.parent / "box")}  # not found here
    subprocess.run([sys.executable, "-c", KEYS], env=beside, check=True)
    address = f"tcp://127.0.0.1:{free_port()}"
    words = [sys.executable, "-m", "djinn_jupyter.cli.main", "serve", "demo", "--listen", address]
    engine = subprocess.Popen(words, env=beside, stdout=subprocess.PIPE, text=True)
    line = Line(line_to(address))
    try:
        assert "listens on" in engine.stdout.readline()
        yield line
    finally:
        line.end()
        engine.terminate()
        engine.communicate()


def test_a_line_that_is_down_is_named_and_comes_back_by_itself(lab: LabServer, page: Page, artifacts: Path) -> None:
    with afar(lab) as line, no_complaints(page):
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
