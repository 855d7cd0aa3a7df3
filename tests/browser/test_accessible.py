"""Cards and sidebar for everyone: axe-core finds nothing serious in them, in light and dark; the keyboard alone reaches
what can be pressed, and its focus is seen."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
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


def saved(lab: LabServer, name: str, outputs: Sequence[str | dict[str, Any]]) -> str:
    """Write a trusted notebook with an output a cell, of HTML or of forms by MIME type."""
    forms = [{"text/html": one} if isinstance(one, str) else one for one in outputs]
    shown = [new_output("display_data", data=one) for one in forms]
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


# What a pointer can press, each marked by a number; those that are off are left out, and edges of a graph, each of which
# has a button in the table beside it.
_PRESSABLE = """bar => {
    const known = 'button, jp-button, input, select, textarea, summary, a[href], [role=button], [role=treeitem], [tabindex="0"]';
    const shown = node => node.checkVisibility({ visibilityProperty: true }) && node.getBoundingClientRect().width > 0;
    const pointed = node => getComputedStyle(node).cursor === 'pointer' && !node.closest(known) && !node.querySelector(known);
    const off = node => node.matches(':disabled, [aria-disabled=true], [aria-disabled=true] *, .djinn-Way, .djinn-Way *');
    const inner = node => node.parentElement.closest('jp-button, button');
    const all = [...bar.querySelectorAll('*')].filter(node => node !== bar && shown(node) && !off(node)
        && (node.matches(known) || pointed(node)) && !inner(node));
    all.forEach((node, at) => node.setAttribute('data-reach', at));
    return all.map(node => [node.outerHTML.slice(0, 120), node.matches('[role=treeitem], [role=treeitem] *')]);
}"""
# Keep clicks in the sidebar from having an effect, and say which keys were taken.
_HEARD = """bar => {
    window.heard = [];
    bar.addEventListener('click', event => {
        event.stopImmediatePropagation();
        event.preventDefault();
        window.heard.push(event.target.closest('[data-reach]')?.dataset.reach);
    }, true);
    window.addEventListener('keydown', event => { window.pressed = event; }, true);
}"""
_AT = """() => {
    let node = document.activeElement;
    const host = node.closest('[data-reach]');
    while (node.shadowRoot?.activeElement) node = node.shadowRoot.activeElement;
    const { outlineStyle, boxShadow } = getComputedStyle(node);
    const { top, bottom, left, right } = node.getBoundingClientRect();
    return [host?.dataset.reach ?? null, !!node.closest('.djinn-Sidebar') || !!host, node.matches(':focus-visible')
        && (outlineStyle !== 'none' || boxShadow !== 'none') && top < innerHeight && bottom > 0 && left < innerWidth && right > 0,
        node.matches('input, select, textarea')];
}"""


def pressable(page: Page, sidebar: Sidebar) -> list[str]:
    """Go through the sidebar by Tab, and through its tree by arrows: what can be pressed is reached, seen to have the
    focus, named, and pressed by Enter and by the space bar. Returns the markup of what was reached."""
    expected = sidebar.whole.evaluate(_PRESSABLE)
    devtools = page.context.new_cdp_session(page)
    reached: dict[str, list[str]] = {}
    sidebar.whole.evaluate("bar => { bar.tabIndex = -1; bar.focus(); }")
    for _ in range(2 * len(expected) + 10):
        page.keyboard.press("Tab")
        at, is_inside, is_seen, is_field = page.evaluate(_AT)
        if not is_inside:
            break
        assert at is not None, page.evaluate("() => document.activeElement.outerHTML.slice(0, 200)")
        wrong = [] if is_seen else ["its focus is not seen"]
        focused = devtools.send("Runtime.evaluate", {"expression": "document.activeElement"})["result"]["objectId"]
        nodes = devtools.send("Accessibility.getPartialAXTree", {"objectId": focused, "fetchRelatives": False})["nodes"]
        wrong += [] if nodes[0]["name"]["value"].strip() else ["it has no name"]
        for key in () if is_field else ("Enter", " "):
            page.evaluate("() => { window.heard = []; window.pressed = undefined; }")
            page.keyboard.press(key)
            did = page.evaluate("at => window.heard.includes(at) || window.pressed.defaultPrevented", at)
            wrong += [] if did else [f"{key!r} does nothing"]
        reached[at] = wrong
    else:
        raise AssertionError("Tab does not leave the sidebar")
    found = {markup: reached.get(str(n), ["Tab does not come there"]) for n, (markup, in_tree) in enumerate(expected)
             if not in_tree or str(n) in reached}  # fmt: skip
    assert {markup: wrong for markup, wrong in found.items() if wrong} == {}
    return list(found)


SITES = ("%djinn_break 6 --when step > 0", "%djinn_steer resid_post.5 scale 0.9", "%djinn_edit zero --positions -1")
FORK = "%djinn_fork other --fresh"


def test_all_that_can_be_pressed_in_the_sidebar_is_pressed_by_keys(lab: LabServer, page: Page) -> None:
    cells = (LOAD.replace("13", "14"), BREAK, RUN, *SITES, FORK)
    notebook = write(lab, "pressed.ipynb", *cells, END)
    opened = LabPage.open(page, lab.address(notebook))
    opened.wait_for_kernel()
    sidebar = Sidebar.show(page)
    for source in cells:
        opened.run_cell(source)
    sidebar.stands("other", "at resid_post.4")
    folded = sidebar.whole.locator(".jp-AccordionPanel-title[aria-expanded=false]")
    while folded.count():
        folded.first.click()
    sidebar.session("pressed").locator(".djinn-Session-main").click(timeout=30000)
    print(
        sidebar.whole.evaluate(
            "bar => [...bar.querySelectorAll('[aria-expanded=false]')].map(n => n.outerHTML.slice(0,150))"
        )
    )
    sidebar.whole.evaluate(_HEARD)
    for one in pressable(page, sidebar):
        print(one)
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
    const press = one => one.dispatchEvent(new MouseEvent('click', { bubbles: true }));
    const menu = round => { press(node); press(document.querySelectorAll('.updatemenu-dropdown-button')[round + 1]); };
    const acts = { menu, summary: () => node.click(), focus: () => { document.activeElement.blur(); node.focus(); },
        ArrowRight: () => document.activeElement.dispatchEvent(
            new KeyboardEvent('keydown', { key: 'ArrowRight', bubbles: true, cancelable: true })) };
    const echo = [], ours = [], states = [];
    for (let round = 0; round < rounds; round += 1) {
        echo.push(await took(() => button.click()));
        ours.push(await took(() => acts[event](round)));
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


@pytest.mark.alone
def test_a_head_that_a_menu_chooses_is_painted_within_six_echoes(kernelless_lab: LabServer, page: Page) -> None:
    patterns = HeadPatterns(heads_read(patterns=True, length=64, layers=8, heads=8), "on this line")
    figure = patterns_view(patterns).figure()._repr_mimebundle_()  # as many heads and positions as one may have
    opened = LabPage.open(page, kernelless_lab.address(saved(kernelless_lab, "menu.ipynb", [figure])))
    opened.without_kernel()
    opened.drawn(".updatemenu-header").wait_for()
    echo, ours, states = page.evaluate(_TOOK, [".updatemenu-header", "menu", ".gtitle", ROUNDS])
    assert len(set(states)) == len(states)
    assert statistics.median(ours) < FRAMES * statistics.median(echo)
