"""The sidebar as a test sees it: its panels, its rows, and the moves of its toolbar. Knows no engine.

A click may be dropped: a toolbar is drawn again, a button is not enabled yet, JupyterLab still starts. So a move is
clicked once it is enabled, and an action that may be repeated is repeated until its result is seen.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from playwright.sync_api import ConsoleMessage, Error, Locator, Page, TimeoutError

TIMEOUT = 180_000
ATTEMPTS, ATTEMPT_MILLISECONDS = 9, 20_000

# Texts that their box cuts off without saying so, and boxes that stick out of the sidebar.
_DEFECTS = """bar => {
    const edge = bar.getBoundingClientRect().right + 1;
    const unseen = 'svg, .djinn-spoken';
    const seen = [...bar.querySelectorAll('*')].filter(node => node.checkVisibility() && !node.closest(unseen));
    const texts = seen.filter(node => node.childElementCount === 0 && node.textContent.trim());
    const style = node => getComputedStyle(node);
    const hides = node => style(node).overflowX === 'hidden' && style(node).textOverflow !== 'ellipsis';
    const cut = texts.filter(node => hides(node) && node.scrollWidth > node.clientWidth + 1);
    const out = texts.filter(node => node.getBoundingClientRect().right > edge);
    return [...cut.map(node => `cut off: ${node.textContent}`), ...out.map(node => `sticks out: ${node.textContent}`)];
}"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Sidebar:
    """Djinn's sidebar in an open page."""

    page: Page

    @staticmethod
    def show(page: Page) -> Sidebar:
        """Open the sidebar by the button in the notebook's toolbar, as a user does."""
        page.set_default_timeout(TIMEOUT)
        sidebar = Sidebar(page=page)
        button = page.locator("[data-command='djinn:show']").first
        sidebar.attempt(button.click, sidebar.whole)
        return sidebar

    def attempt(self, act: Callable[[], object], shown: Locator) -> None:
        """Do something that may be done twice, until `shown` is seen."""
        for _ in range(ATTEMPTS):
            act()
            with suppress(TimeoutError):
                return shown.wait_for(timeout=ATTEMPT_MILLISECONDS)
        raise AssertionError(f"{shown} was not seen after {ATTEMPTS} attempts")

    @property
    def whole(self) -> Locator:
        return self.page.locator(".djinn-Sidebar")

    def engine(self, model: str) -> Locator:
        """The engine of that name with its sessions; those of other variants have longer names."""
        return self.whole.locator(".djinn-Engine", has=self.page.get_by_role("heading", name=model, exact=True))

    def session(self, label: str) -> Locator:
        """The row of the session with exactly this label."""
        named = self.page.locator(".djinn-Session-label", has_text=whole(label))
        return self.whole.locator(".djinn-Session", has=named)

    def stands(self, label: str, state: str) -> None:
        """Wait until the session says so."""
        self.session(label).locator(".djinn-Session-state", has_text=whole(state)).wait_for()

    def move(self, command: str) -> Locator:
        return self.whole.locator(f"[data-command='djinn:{command}']")

    def press(self, command: str, timeout: float = TIMEOUT) -> None:
        """Click a move once it is enabled. Playwright takes JupyterLab's buttons for enabled at all times."""
        self.move(command).and_(self.page.locator("[aria-disabled='false']")).click(timeout=timeout)

    def fold(self, title: str) -> None:
        """Fold the panel, or open it."""
        self.whole.locator(".jp-AccordionPanel-title", has_text=title).click()

    def row(self, label: str) -> Locator:
        return self.whole.locator(".djinn-Row", has=self.page.get_by_text(label, exact=True))

    def breakpoints(self) -> list[str]:
        return self.whole.locator(".djinn-Breakpoint-site").all_inner_texts()

    def defects(self) -> list[str]:
        """List the elements still cut off or sticking out when the layout has settled."""
        with suppress(TimeoutError):
            self.page.wait_for_function(f"bar => ({_DEFECTS})(bar).length === 0", arg=self.whole.element_handle())
        return self.whole.evaluate(_DEFECTS)


def whole(text: str) -> re.Pattern[str]:
    """Match this text and nothing more: `at resid_post.1` is not `at resid_post.10`."""
    return re.compile(rf"^\s*{re.escape(text)}\s*$")


@contextmanager
def no_complaints(page: Page) -> Iterator[None]:
    """Fail if an error whose text, trace or address names Djinn is thrown in the page or written to its console while
    the block runs. JupyterLab and Notebook have complaints of their own, with or without Djinn, as when a kernel is
    restarted before the debugger has answered."""
    heard: list[str] = []

    def complain(message: ConsoleMessage) -> None:
        if message.type == "error":
            heard.append(f"{message.text} ({message.location.get('url')})")

    def throw(error: Error) -> None:
        heard.append(f"{error} {error.stack}")

    page.on("console", complain)
    page.on("pageerror", throw)
    yield
    complaints = [text for text in heard if "djinn" in text.lower()]
    assert not complaints, "\n".join(complaints)
