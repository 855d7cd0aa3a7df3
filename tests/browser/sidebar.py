"""The sidebar as a test sees it: its panels, its rows, and what its toolbar can do. Knows no engine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from playwright.sync_api import ConsoleMessage, Error, Locator, Page

TIMEOUT = 180_000

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
        """By the button in the notebook's toolbar, as a person does."""
        page.set_default_timeout(TIMEOUT)
        page.locator("[data-command='djinn:show']").first.click()
        page.locator(".djinn-Sidebar").wait_for()
        return Sidebar(page=page)

    @property
    def whole(self) -> Locator:
        return self.page.locator(".djinn-Sidebar")

    def engine(self, model: str) -> Locator:
        """The engine of that name with its sessions; those of other variants have longer names."""
        return self.whole.locator(".djinn-Engine", has=self.page.get_by_role("heading", name=model, exact=True))

    def session(self, label: str) -> Locator:
        return self.whole.locator(".djinn-Session", has_text=label)

    def stands(self, label: str, state: str) -> None:
        """Wait until the session says so."""
        self.session(label).locator(".djinn-Session-state", has_text=state).wait_for()

    def move(self, command: str) -> Locator:
        return self.whole.locator(f"[data-command='djinn:{command}']")

    def row(self, label: str) -> Locator:
        return self.whole.locator(".djinn-Row", has=self.page.get_by_text(label, exact=True))

    def breakpoints(self) -> list[str]:
        return self.whole.locator(".djinn-Breakpoint-site").all_inner_texts()

    def defects(self) -> list[str]:
        found: list[str] = self.whole.evaluate(_DEFECTS)
        return found


RESTARTED = "Could not restore the debugger state: Canceled future for debug_request message"


@contextmanager
def no_complaints(page: Page, of: str = "") -> Iterator[None]:
    """Nothing in the page throws, and no error is written to its console, while the block runs; looked at are those
    whose text or place has `of` in it. JupyterLab's own debugger complains, with or without Djinn, when a kernel is
    restarted before it has answered."""
    heard: list[str] = []

    def complain(message: ConsoleMessage) -> None:
        if message.type == "error" and not message.text.startswith(RESTARTED):
            heard.append(f"{message.text} ({message.location.get('url')})")

    def throw(error: Error) -> None:
        heard.append(f"{error} {error.stack}")

    page.on("console", complain)
    page.on("pageerror", throw)
    yield
    complaints = [text for text in heard if of in text]
    assert not complaints, "\n".join(complaints)
