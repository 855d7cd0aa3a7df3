"""The table of a graph's edges in a sidebar of 250 pixels: nothing sticks out of it, and no name is cut off."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Page

STYLE = Path(__file__).parents[2] / "labextension" / "style"
SHEETS = [STYLE / name for name in ("panels.css", "graph.css")]
CELLS = ("", "resid_pre_of_attention.11[3]", "mlp_out_post.11[1204]", "-0.0000123", "-0.0000124")
SAID = "Read from logit('Paris')-logit('Rome')+0.5*(logit('Berlin')-logit('Madrid'))."
OUT = """() => {
    const edge = document.querySelector('.djinn-Sidebar').getBoundingClientRect().right;
    const boxes = [...document.querySelectorAll('td, th, p')];
    const ends = box => { const range = document.createRange(); range.selectNodeContents(box);
        return Math.max(range.getBoundingClientRect().right, box.getBoundingClientRect().right); };
    return boxes.filter(box => ends(box) > edge).map(box => box.textContent);
}"""


@pytest.mark.parametrize("width", [250, 400])
def test_nothing_of_the_table_sticks_out_of_a_sidebar(page: Page, width: int) -> None:
    heads = "".join(f"<th>{name}</th>" for name in ("", "writer", "reader", "score", "exact"))
    cells = "".join(
        f'<td class="{"djinn-mono" if n in (1, 2) else "djinn-Graph-score"}">{text}</td>'
        for n, text in enumerate(CELLS)
    )
    table = f'<table class="djinn-Graph-table"><tr>{heads}</tr><tr>{cells}</tr></table>'
    picture = '<div class="djinn-Graph-picture"><svg width="600" height="40"></svg></div>'
    graph = f'<div class="djinn-Graph"><div class="djinn-Graph-both">{picture}{table}</div>'
    said = f'<p class="djinn-Graph-said">{SAID}</p></div>'
    body = f'<div class="djinn-Sidebar" style="width:{width}px">{graph}{said}</div>'
    page.set_content(f"<style>{''.join(sheet.read_text() for sheet in SHEETS)}</style>{body}")
    assert page.evaluate(OUT) == []
