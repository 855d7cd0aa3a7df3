"""Stop cards in a column as narrow as that of a notebook beside another: nothing is scrolled out of sight."""

from __future__ import annotations

import itertools
from urllib.parse import unquote

import pytest
from msgspec.structs import replace
from playwright.sync_api import Page

from djinn_jupyter.widgets import views
from djinn_jupyter.wire.nouns import Progress
from tests.widgets import cards, samples
from tests.widgets.pooled import pooled

SCROLLED = "() => [...document.querySelectorAll('.dj-scroll')].filter(box => box.scrollWidth > box.clientWidth).length"
SEEN = """() => [...document.querySelectorAll('.dj-guess, .dj-tall img')].map(node => node.getBoundingClientRect())
    .every(box => box.width > 0 && box.right <= document.querySelector('.djinn').getBoundingClientRect().right)"""

ROWS = samples.lens_rows(tuple(range(5)), count=3)
# No two cells of a row overlap, to half a pixel.
APART = """() => [...document.querySelectorAll('tbody tr')].every(row => {
    const boxes = [...row.querySelectorAll('td:not(.dj-tall) > *')].map(node => node.getBoundingClientRect())
        .filter(box => box.width > 0);
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
ALL = {
    **cards.all_cards(),
    "many doses": views.dose_response_view(
        DOSES, MANY, dose="coefficient of add [64] at resid_post.4", response="y", title=""
    ),
    "layers": views.dose_response_view(range(48), {"p": [1.0] * 48}, dose="layer", response="probability", title=""),
}
CHARTS = [name for name, view in ALL.items() if "%40media" in view.html]
DRAWN = pooled(samples.values(5, samples.WIDTH))
LONG = ("<|endoftext|>", " Italian", "interpretability")


def in_column(page: Page, width: int, html: str) -> None:
    page.set_content(f'<div style="width:{width}px">{html}</div>')


@pytest.mark.parametrize("width", [250, 390, 510, 690, 750, 850])
def test_three_long_guesses_of_long_tokens_are_in_sight_with_their_probabilities(page: Page, width: int) -> None:
    guesses = [[replace(top, text=text) for top, text in zip(row.top, LONG, strict=True)] for row in ROWS]
    rows = [replace(row, top=tuple(top)) for row, top in zip(ROWS, guesses, strict=True)]
    texts = ("The", *(" interpretability",) * 4)
    card = views.stop_view(replace(samples.paused(), texts=texts), pooled=DRAWN, lens=rows)
    in_column(page, width, card.html)
    assert page.evaluate(SCROLLED) == 0
    assert width == 250 or page.evaluate(SEEN)  # where one guess of each row is left
    assert page.evaluate(APART)


@pytest.mark.parametrize("width", [250, 390, 510, 690])
@pytest.mark.parametrize("name", CHARTS)
def test_all_of_a_chart_is_in_sight_with_letters_apart_that_can_be_read(page: Page, name: str, width: int) -> None:
    in_column(page, width, ALL[name].html)
    assert page.evaluate("() => document.querySelector('.dj-scroll:has(img)').scrollWidth") <= width
    source, wide = page.locator("img[src^='data:image/svg']").evaluate("node => [node.src, node.clientWidth]")
    drawing = unquote(source.partition(",")[2]).replace("<svg ", '<svg style="width:100%;height:auto" ')
    page.set_viewport_size({"width": wide, "height": 900})  # that of the picture is the size at which it is drawn
    page.set_content(f'<body style="margin:0">{drawing}</body>')
    boxes = page.evaluate(LETTERS)
    assert boxes
    assert min(size for *_, size in boxes) >= (8 if width >= 390 else 5 if name == "tree" else 7)
    assert all(left >= 0 and right <= wide and top >= 0 for left, right, top, *_ in boxes)
    for one, other in itertools.combinations(boxes, 2):
        assert one[1] <= other[0] or other[1] <= one[0] or one[3] <= other[2] or other[3] <= one[2], (one, other)


def test_the_sessions_with_their_holders_are_in_sight_beside_another_notebook(page: Page) -> None:
    away = samples.session("work/quickstart.ipynb", state="idle", stopped_at=None, holder=None)
    here = samples.session("two.ipynb", state="paused", stopped_at="resid_post.2", step=0, host_bytes=141 * 2**10)
    in_column(page, 510, views.sessions_view([away, here], present="two.ipynb", mine={"two.ipynb"}).html)
    assert page.evaluate(SCROLLED) == 0


@pytest.mark.parametrize("width", [510, 690, 900])  # the middle one: between both sidebars, on a screen of 1360 pixels
def test_holders_are_in_sight_beside_work_under_way_and_long_names(page: Page, width: int) -> None:
    path = "work/07_indirect_object_identification.ipynb"
    held = {"holder": "kernel-2", "notebook": path}
    far = samples.session(
        path, state="paused", stopped_at="attn_scores.10[11]", step=12, exactness="recomputed", **held
    )
    far = replace(far, tokens=1204, device_bytes=2**21, host_bytes=141 * 2**10)
    sweeping = samples.session(
        "sweep 1", progress=Progress(doing="sweeping", done=1040, total=19_200, counted="cells"), **held
    )
    in_column(page, width, views.sessions_view([far, sweeping], present=None, mine={"two.ipynb"}).html)
    assert page.evaluate(SCROLLED) == 0


@pytest.mark.parametrize("width", [510, 690, 800])
def test_where_the_rows_of_a_batch_ended_is_in_sight(page: Page, width: int) -> None:
    words = "The Colosseum stands in the middle of Rome, the capital of Italy"
    paused = samples.paused(site="attn_scores.10[11]", step=12, prompt_text=words, new_text=words * 2)
    in_column(page, width, views.rows_view("work/07_indirect_object_identification.ipynb", [paused, None]).html)
    assert page.evaluate(SCROLLED) == 0


@pytest.mark.parametrize("width", [390, 510, 900])
def test_the_guesses_and_the_picture_of_a_stop_are_in_sight(page: Page, width: int) -> None:
    stop = samples.paused()
    lens = samples.lens_rows(tuple(range(5)), count=3)
    card = views.stop_view(stop, pooled=DRAWN, lens=lens)
    page.set_content(f'<div style="width:{width}px">{card.html}</div>')
    assert page.locator(".dj-guess").count() == 15
    assert page.evaluate(SCROLLED) == 0
    assert page.evaluate(SEEN)
