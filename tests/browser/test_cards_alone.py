"""Each output by itself on a page, as it stands in a saved notebook: it looks as with all rules together, and nothing
of it is cut, at 900 pixels, in split panes and at a zoom of 200 %."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.sync_api import Page

from tests.browser.lab_page import HEIGHT, WIDTH
from tests.browser.test_narrow_cards import ALL, STYLE

ALL_RULES = f"<style>{(STYLE / 'cards.css').read_text()}</style>"
# The sheets of all other outputs, as they stand behind one in a notebook.
SHEETS = "".join(view.html.partition("</style>")[0] + "</style>" for view in ALL.values())
# JupyterLab's own rules of what a cell shows, as far as they touch what cards are made of.
AROUND = """<style>
.jp-RenderedHTMLCommon table{border-collapse:collapse;table-layout:fixed;margin-left:auto;margin-bottom:1em;border:none}
.jp-RenderedHTMLCommon td,.jp-RenderedHTMLCommon th,.jp-RenderedHTMLCommon tr{vertical-align:middle;padding:.5em;
line-height:normal;white-space:normal;max-width:none;border:none;text-align:right}
.jp-RenderedHTMLCommon thead{border-bottom:1px solid;vertical-align:bottom}
.jp-RenderedHTMLCommon th{font-weight:bold}
.jp-RenderedHTMLCommon tbody tr:nth-child(odd){background:#eee}
.jp-RenderedHTMLCommon :not(pre)>code{background:#ddd;padding:1px 5px;color:#333}
.jp-RenderedHTMLCommon img{max-width:100%;height:auto}
</style>"""
LOOKS = """() => {
    const read = ['display', 'position', 'color', 'background-color', 'background-image', 'font', 'text-align',
        'white-space', 'vertical-align', 'overflow', 'text-overflow', 'padding', 'margin', 'border',
        'border-radius', 'direction'];
    return [...document.querySelectorAll('.djinn, .djinn *')].map(node => {
        const style = getComputedStyle(node), box = node.getBoundingClientRect();
        return [node.tagName, node.getAttribute('class'), box.x, box.y, box.width, box.height,
            ...read.map(name => `${name}: ${style.getPropertyValue(name)}`)].join('; ');
    });
}"""
# What sticks out of its card, but for what can be scrolled to, and texts that end in an ellipsis.
CUT = """() => [...document.querySelectorAll('.djinn')].flatMap(card => {
    const edge = card.getBoundingClientRect();
    const leaves = [...card.querySelectorAll('*')].filter(node => node.childElementCount === 0);
    const shown = leaves.filter(node => node.checkVisibility() && node.getBoundingClientRect().width > 0);
    const boxes = [...card.querySelectorAll('[style^=overflow]')].filter(box => box.checkVisibility()
        && !box.parentElement.closest('[style^=overflow]'));
    const free = [...boxes, ...shown.filter(node => !node.closest('[style^=overflow], svg, style'))];
    const out = free.filter(node => node.getBoundingClientRect().right > edge.right + 0.5
        || node.getBoundingClientRect().left < edge.left - 0.5);
    const lost = boxes.filter(box => box.scrollWidth > box.clientWidth
        && getComputedStyle(box).overflowX !== 'auto');
    return [...out, ...lost].map(node => node.outerHTML.slice(0, 120));
})"""
PANES = (250, 390, 510, 690, 900)  # beside both sidebars, split, split wide, between the sidebars, a small screen


def alone(page: Page, width: int, html: str, zoom: int = 1) -> None:
    page.set_viewport_size({"width": WIDTH, "height": HEIGHT})
    cell = f'<div class="jp-RenderedHTMLCommon" style="width:{width // zoom}px">{html}</div>'
    page.set_content(f'<!doctype html>{AROUND}<body style="zoom:{zoom}">{cell}</body>')


def looks(page: Page, width: int, html: str) -> Any:
    alone(page, width, html)
    return page.evaluate(LOOKS)


@pytest.mark.parametrize("name", ALL)
def test_an_output_looks_alone_as_with_all_rules(page: Page, name: str) -> None:
    html = ALL[name].html
    assert html.count("<style>") == 1
    bare = html.partition("</style>")[2]
    for width in PANES if "dj-rows" in bare else (690, WIDTH):
        shown, whole = looks(page, width, html), looks(page, width, ALL_RULES + bare)
        assert len(shown) > 1
        assert shown == whole, width
        assert shown == looks(page, width, html + SHEETS), width


@pytest.mark.parametrize("width", PANES)
def test_nothing_of_an_output_is_cut(page: Page, width: int) -> None:
    for name, view in ALL.items():
        alone(page, width, view.html)
        assert page.evaluate(CUT) == [], name


def test_nothing_of_an_output_is_cut_at_a_zoom_of_200_percent(page: Page) -> None:
    for width in (900, WIDTH):
        for name, view in ALL.items():
            alone(page, width, view.html, zoom=2)
            assert page.evaluate(CUT) == [], (name, width)
