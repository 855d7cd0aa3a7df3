"""Cards and sidebar for everyone: axe-core finds nothing serious in them, in light and dark; the keyboard alone reaches
what can be pressed, and its focus is seen."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbformat.sign import NotebookNotary
from nbformat.v4 import new_code_cell, new_notebook, new_output
from playwright.sync_api import Page, expect

from djinn_jupyter.methods.heads.api import HeadPatterns
from djinn_jupyter.methods.heads.card import patterns_view
from djinn_jupyter.methods.text.api import TokenMeasures
from djinn_jupyter.methods.text.card import text_view
from tests.browser.lab_page import DARK, LIGHT, LabPage
from tests.browser.lab_server import LabServer
from tests.browser.sidebar import Sidebar, no_complaints
from tests.browser.test_lab import write
from tests.browser.test_narrow_cards import ALL
from tests.magics.methods import heads_read
from tests.widgets.test_text import measures

AXE = Path(__file__).parents[2] / "labextension" / "node_modules" / "axe-core" / "axe.min.js"
# What axe finds in the elements that a selector matches, of each the rule and the element; and if it compared colours.
_FOUND = """async selector => {
    const { violations, passes } = await axe.run([...document.querySelectorAll(selector)]);
    const grave = violations.filter(({ impact }) => impact === 'serious' || impact === 'critical');
    const found = grave.flatMap(one => one.nodes.map(node => [one.id, node.html.slice(0, 160), node.failureSummary]));
    return [found, [...violations, ...passes].filter(({ id }) => id === 'color-contrast').length];
}"""
CARDS = ".jp-NotebookPanel:not(.lm-mod-hidden) .djinn"
A_NOTEBOOK = 15  # cards that a window of the tallest size has room for


def faults(page: Page, selector: str) -> list[Any]:
    """Return what axe finds serious or critical; it must have compared colours."""
    page.evaluate("() => { document.body.style.height = '100vh'; }")  # or axe takes all of JupyterLab for cut off
    if not page.evaluate("() => 'axe' in window"):
        page.evaluate(AXE.read_text(encoding="utf-8"))
    found, compared = page.evaluate(_FOUND, selector)
    assert compared > 0
    return found


def saved(lab: LabServer, name: str, outputs: list[str]) -> str:
    """Write a trusted notebook with an output a cell."""
    shown = [new_output("display_data", data={"text/html": html}) for html in outputs]
    nbformat.write(new_notebook(cells=[new_code_cell("", outputs=[one]) for one in shown]), lab.folder / name)
    NotebookNotary().sign(nbformat.read(lab.folder / name, as_version=4))
    return name


def test_axe_finds_nothing_serious_in_any_card(kernelless_lab: LabServer, page: Page) -> None:
    views = list(ALL.values())
    for first in range(0, len(views), A_NOTEBOOK):
        shown = [view.html for view in views[first : first + A_NOTEBOOK]]
        opened = LabPage.open(page, kernelless_lab.address(saved(kernelless_lab, f"cards-{first}.ipynb", shown)))
        opened.without_kernel()
        opened.show_everything()
        expect(page.locator(f"{CARDS}:visible")).to_have_count(len(shown))
        for theme in (LIGHT, DARK):
            opened.use_theme(theme)
            assert faults(page, CARDS) == [], theme


# Of settings that no other test asks for, so that the engine is this notebook's alone.
LOAD = "%load_ext djinn_jupyter\n%djinn_load demo --stops-kept 13"
BREAK = "%djinn_break 4"
RUN = "%djinn_run The capital of France is"
TEXT = "%djinn_text"
PATTERNS = "%djinn_inspect pattern.2"
END = "%djinn_stop --forget --force"
# What has the focus, and if that is seen: its name, `:focus-visible`, and an outline or a shadow.
_FOCUSED = """() => {
    let node = document.activeElement;
    while (node.shadowRoot?.activeElement) node = node.shadowRoot.activeElement;
    const { outlineStyle, boxShadow } = getComputedStyle(node);
    return [node.getAttribute('aria-label') ?? node.textContent, node.matches(':focus-visible'),
        outlineStyle !== 'none' || boxShadow !== 'none'];
}"""
STOPS = 30  # at most so many presses of Tab, from the text to the buttons of the sidebar's first row


def reach(page: Page, name: str) -> None:
    """Press Tab until the focus is on what has this name, and is seen there."""
    passed = []
    for _ in range(STOPS):
        page.keyboard.press("Tab")
        label, is_visible, is_drawn = page.evaluate(_FOCUSED)
        passed.append(label)
        if label.startswith(name):
            assert is_visible, label
            assert is_drawn, label
            return
    raise AssertionError(f"{name!r} was not reached by Tab, but {passed}")


def test_the_bench_by_keyboard_alone(lab: LabServer, page: Page, artifacts: Path) -> None:
    notebook = write(lab, "keyboard.ipynb", LOAD, BREAK, RUN, TEXT, PATTERNS, END)
    with no_complaints(page):
        opened = LabPage.open(page, lab.address(notebook))
        opened.wait_for_kernel()
        sidebar = Sidebar.show(page)
        for source in (LOAD, BREAK, RUN, TEXT, PATTERNS):
            opened.run_cell(source)
        sidebar.stands("keyboard", "at resid_post.4")
        for theme in (LIGHT, DARK):
            opened.use_theme(theme)
            assert faults(page, ".djinn-Sidebar") == [], theme
        opened.drawn(".dj-tokens[tabindex]").scroll_into_view_if_needed()
        opened.drawn(".jp-CodeCell").nth(3).focus()
        reach(page, "The, position 0")
        for key in ("ArrowRight", "ArrowRight", "ArrowLeft", "ArrowRight"):
            page.keyboard.press(key)
        expect(page.locator(":focus")).to_have_attribute("data-djinn-at", "2")
        expect(page.locator(".djinn-Token-numbers")).to_contain_text("predicted here:")
        page.screenshot(path=artifacts / "keyboard.png")
        there = sidebar.whole.locator(".djinn-Breakpoints")
        page.keyboard.press("Enter")
        expect(there).to_contain_text("when position == 2")
        page.keyboard.press(" ")
        expect(there).not_to_contain_text("position == 2")
        reach(page, "the key that each query weighs most")
        page.keyboard.press("Enter")
        expect(opened.drawn("details[open]")).to_have_count(1)
        page.keyboard.press(" ")
        expect(opened.drawn("details[open]")).to_have_count(0)
        reach(page, "Session keyboard")
        reach(page, "Fork keyboard")
        page.keyboard.press("Enter")
        expect(page.locator(".jp-Dialog input")).to_be_focused()
        page.keyboard.press("Enter")
        expect(sidebar.whole.locator(".djinn-Session")).to_have_count(2)
        opened.run_cell(END)


# How long it takes from an event to the paint after it: that of an echo, a button that says its number, and ours, in
# turn, so that what else the machine does meets both.
_TOOK = """async ([selector, event, changed, rounds]) => {
    const button = document.body.appendChild(document.createElement('button'));
    button.onclick = () => { button.textContent = Number(button.textContent) + 1; };
    const node = document.querySelector(selector);
    const painted = () => new Promise(after => requestAnimationFrame(() => setTimeout(after)));
    const took = async act => {
        await painted();
        const begun = performance.now();
        act();
        await painted();
        return performance.now() - begun;
    };
    const acts = { summary: () => node.click(), focus: () => { document.activeElement.blur(); node.focus(); },
        ArrowRight: () => document.activeElement.dispatchEvent(
            new KeyboardEvent('keydown', { key: 'ArrowRight', bubbles: true, cancelable: true })) };
    const echo = [], ours = [], states = [];
    for (let round = 0; round < rounds; round += 1) {
        echo.push(await took(() => button.click()));
        ours.push(await took(acts[event]));
        states.push(document.querySelector(changed)?.textContent ?? null);
    }
    button.remove();
    return [echo, ours, states];
}"""
ROUNDS = 11
FRAMES = 6  # 100 ms, where the echo takes a frame of 16.7 ms


@pytest.mark.alone
def test_a_change_is_painted_within_six_echoes(kernelless_lab: LabServer, page: Page) -> None:
    one = measures(tuple(f" w{n}" for n in range(400)))
    engine = ("1", "session", "resid_post.4")
    text = text_view(TokenMeasures(one.reply, one.request, by=one.by, engine=engine))
    heads = patterns_view(HeadPatterns(heads_read(patterns=True, length=48), "on this line").choose("1.2"))
    shown = [text.html, heads.html, ALL["pattern"].html]
    opened = LabPage.open(page, kernelless_lab.address(saved(kernelless_lab, "echo.ipynb", shown)))
    opened.without_kernel()
    opened.show_everything()
    opened.drawn(".dj-tokens[tabindex]").focus()
    for selector, event, changed in (
        (".dj-tokens", "ArrowRight", ".djinn-Token-numbers"),
        (".dj-query:last-child", "focus", ".dj-query:focus .dj-keys"),
        (".djinn summary", "summary", "details[open] th"),
    ):
        echo, ours, states = page.evaluate(_TOOK, [selector, event, changed, ROUNDS])
        assert any(states), event
        assert statistics.median(ours) < FRAMES * statistics.median(echo), event
