"""Stop cards in a column as narrow as that of a notebook beside another: nothing is scrolled out of sight.
Nor does anything stick out of the table of a graph's edges in a sidebar of 250 pixels."""

from __future__ import annotations

import itertools
from pathlib import Path
from urllib.parse import unquote

import pytest
from msgspec.structs import replace
from playwright.sync_api import Page

from djinn_jupyter.methods.features.card import page_view as feature_page_view
from djinn_jupyter.methods.graphs.card import attribution_graph_view
from djinn_jupyter.methods.heads.api import HeadPatterns, HeadScores
from djinn_jupyter.methods.heads.card import page_view as head_page_view
from djinn_jupyter.methods.heads.card import patterns_view, scores_view
from djinn_jupyter.methods.text.card import lens_view as text_lens_view
from djinn_jupyter.methods.text.card import text_view
from djinn_jupyter.methods.why.card import score_view
from djinn_jupyter.widgets import views
from djinn_jupyter.wire.nouns import Progress
from tests.browser.lab_page import HEIGHT, WIDTH
from tests.magics.methods import head_read, heads_read
from tests.widgets import cards, graphed, samples, test_features, test_head_page, test_text, test_why
from tests.widgets.pooled import pooled

SCROLLED = (
    "() => [...document.querySelectorAll('[style^=overflow]')].filter(box => box.scrollWidth > box.clientWidth).length"
)
SEEN = """() => [...document.querySelectorAll('.dj-rows .dj-tint, .dj-rows img')]
    .map(node => node.getBoundingClientRect()).every(box => box.width > 0 &&
    box.right <= document.querySelector('.djinn').getBoundingClientRect().right)"""

ROWS = samples.lens_rows(tuple(range(5)), count=3)
# No two cells of a row overlap, to half a pixel.
APART = """() => [...document.querySelectorAll('tbody tr')].every(row => {
    const inside = cell => { const range = document.createRange(); range.selectNodeContents(cell);
        return range.getBoundingClientRect(); };
    const boxes = [...row.cells].map(inside).filter(box => box.width > 0);
    return boxes.every((box, i) => i === 0 || box.left >= boxes[i - 1].right - 0.5);
})"""
# The left, the right, the top and the bottom of each label's ink, and the size of its letters.
LETTERS = """() => [...document.querySelectorAll('text')].filter(node => node.getClientRects().length).map(node => {
    const box = node.getBoundingClientRect(), drawn = node.ownerSVGElement.clientWidth / 640;
    const size = parseFloat(getComputedStyle(node).fontSize) * drawn, foot = node.getAttribute('y') * drawn;
    return [box.left, box.right, foot - 0.73 * size, foot, size];
})"""
DOSES = [round(0.25 * number - 2, 2) for number in range(20)]
MANY = {"one": [-0.00123 * dose for dose in DOSES], "two": [2.5e-4] * 20}
WORDS = ("<|endoftext|>", " interpretability", " of", " a", " Colosseum,", "\n", " capital") * 4
EXAMPLES = [
    test_features.example(WORDS[:19], at=9, value=4.0 - n / 10, prompt=n, interval=n % 3 if n > 5 else None)
    for n in range(9)
]
HEADS = HeadPatterns(heads_read(patterns=True, length=20), "on this line")
ALL = {
    **cards.all_cards(),
    "text": text_view(test_text.measures(WORDS, by=test_text.METRIC), "work/07_indirect_object_identification.ipynb"),
    "lens of a text": text_lens_view(test_text.lens(48, WORDS), "paris"),
    "feature page": feature_page_view(test_features.page(test_features.values(*EXAMPLES, notes=("A note on them.",)))),
    "head page": head_page_view(test_head_page.page_of(head_read(WORDS[:12]))),
    "head scores": scores_view(HeadScores(heads_read(patterns=True, layers=12, heads=12), "over 8 lines")),
    "patterns": patterns_view(HEADS),
    "a head's pattern": patterns_view(HEADS.choose("1.2")),
    "why": score_view(test_why.parts(WORDS[:12]), "paris"),
    "attribution graph": attribution_graph_view(graphed.found()),
    "graph with a group": attribution_graph_view(
        graphed.found().group("the capital of a country, in any language", ["embed @0", "embed @1"])
    ),
    "many doses": views.dose_response_view(
        DOSES, MANY, dose="coefficient of add [64] at resid_post.4", response="y", title=""
    ),
    "layers": views.dose_response_view(range(48), {"p": [1.0] * 48}, dose="layer", response="probability", title=""),
}
CHARTS = [name for name, view in ALL.items() if "%40media" in view.html]
DRAWN = pooled(samples.values(5, samples.WIDTH))
LONG = ("<|endoftext|>", " Italian", "interpretability")


def in_column(page: Page, width: int, html: str) -> None:
    page.set_content(f'<!doctype html><div style="width:{width}px">{html}</div>')


def test_three_long_guesses_of_long_tokens_are_in_sight_with_their_probabilities(page: Page) -> None:
    guesses = [[replace(top, text=text) for top, text in zip(row.top, LONG, strict=True)] for row in ROWS]
    rows = [replace(row, top=tuple(top)) for row, top in zip(ROWS, guesses, strict=True)]
    texts = ("The", *(" interpretability",) * 4)
    card = views.stop_view(replace(samples.paused(), texts=texts), pooled=DRAWN, lens=rows)
    for width in (250, 390, 510, 690, 750, 850):
        in_column(page, width, card.html)
        assert page.evaluate(SCROLLED) == 0, width
        assert width == 250 or page.evaluate(SEEN), width  # where one guess of each row is left
        assert page.evaluate(APART), width


@pytest.mark.parametrize("width", [250, 390, 510, 690])
def test_all_of_a_chart_is_in_sight_with_letters_apart_that_can_be_read(page: Page, width: int) -> None:
    for name in CHARTS:
        _is_in_sight(page, name, width)


def _is_in_sight(page: Page, name: str, width: int) -> None:
    page.set_viewport_size({"width": WIDTH, "height": HEIGHT})
    in_column(page, width, ALL[name].html)
    assert page.evaluate("() => document.querySelector('[style^=overflow]:has(img)').scrollWidth") <= width
    source, wide = page.locator("img[src^='data:image/svg']").evaluate("node => [node.src, node.clientWidth]")
    drawing = unquote(source.partition(",")[2]).replace("<svg ", '<svg style="width:100%;height:auto" ')
    page.set_viewport_size({"width": wide, "height": 900})  # that of the picture is the size at which it is drawn
    page.set_content(f'<body style="margin:0">{drawing}</body>')
    boxes = page.evaluate(LETTERS)
    assert boxes, name
    assert min(size for *_, size in boxes) >= (8 if width >= 390 else 5 if name == "tree" else 7), name
    assert all(left >= 0 and right <= wide and top >= 0 for left, right, top, *_ in boxes), name
    for one, other in itertools.combinations(boxes, 2):
        assert one[1] <= other[0] or other[1] <= one[0] or one[3] <= other[2] or other[3] <= one[2], (one, other)


def test_holders_are_in_sight_beside_work_under_way_and_long_names(page: Page) -> None:
    path = "work/07_indirect_object_identification.ipynb"
    held = {"holder": "kernel-2", "notebook": path}
    far = samples.session(
        path, state="paused", stopped_at="attn_scores.10[11]", step=12, exactness="recomputed", **held
    )
    far = replace(far, tokens=1204, device_bytes=2**21, host_bytes=141 * 2**10)
    sweeping = samples.session(
        "sweep 1", progress=Progress(doing="sweeping", done=1040, total=19_200, counted="cells"), **held
    )
    away = samples.session("work/quickstart.ipynb", state="idle", stopped_at=None, holder=None)
    for width in (510, 690, 900):  # the middle one: between both sidebars, on a screen of 1360 pixels
        in_column(page, width, views.sessions_view([far, sweeping, away], present=None, mine={"two.ipynb"}).html)
        assert page.evaluate(SCROLLED) == 0, width


def test_where_the_rows_of_a_batch_ended_is_in_sight(page: Page) -> None:
    words = "The Colosseum stands in the middle of Rome, the capital of Italy"
    paused = samples.paused(site="attn_scores.10[11]", step=12, prompt_text=words, new_text=words * 2)
    for width in (510, 690, 800):
        in_column(page, width, views.rows_view("work/07_indirect_object_identification.ipynb", [paused, None]).html)
        assert page.evaluate(SCROLLED) == 0, width


def test_the_guesses_and_the_picture_of_a_stop_are_in_sight(page: Page) -> None:
    card = views.stop_view(samples.paused(), pooled=DRAWN, lens=ROWS)
    for width in (390, 510, 900):
        in_column(page, width, card.html)
        assert page.locator(".dj-rows .dj-tint").count() == 15
        assert page.evaluate(SCROLLED) == 0, width
        assert page.evaluate(SEEN), width


STYLE = Path(__file__).parents[2] / "labextension" / "style"
SHEETS = [STYLE / name for name in ("panels.css", "graph.css")]
EDGES = ("", "resid_pre_of_attention.11[3]", "mlp_out_post.11[1204]", "-0.0000123", "-0.0000124")
SAID = "Read from logit('Paris')-logit('Rome')+0.5*(logit('Berlin')-logit('Madrid'))."
OUT = """() => {
    const edge = document.querySelector('.djinn-Sidebar').getBoundingClientRect().right;
    const boxes = [...document.querySelectorAll('td, th, p')];
    const ends = box => { const range = document.createRange(); range.selectNodeContents(box);
        return Math.max(range.getBoundingClientRect().right, box.getBoundingClientRect().right); };
    return boxes.filter(box => ends(box) > edge).map(box => box.textContent);
}"""


def test_nothing_of_the_table_sticks_out_of_a_sidebar(page: Page) -> None:
    heads = "".join(f"<th>{name}</th>" for name in ("", "writer", "reader", "score", "exact"))
    cells = "".join(
        f'<td class="{"djinn-mono" if n in (1, 2) else "djinn-Graph-score"}">{text}</td>'
        for n, text in enumerate(EDGES)
    )
    table = f'<table class="djinn-Graph-table"><tr>{heads}</tr><tr>{cells}</tr></table>'
    picture = '<div class="djinn-Graph-picture"><svg width="600" height="40"></svg></div>'
    graph = f'<div class="djinn-Graph"><div class="djinn-Graph-both">{picture}{table}</div>'
    said = f'<p class="djinn-Graph-said">{SAID}</p></div>'
    style = f"<style>{''.join(sheet.read_text() for sheet in SHEETS)}</style>"
    for width in (250, 400):
        page.set_content(f'{style}<div class="djinn-Sidebar" style="width:{width}px">{graph}{said}</div>')
        assert page.evaluate(OUT) == [], width
