"""The logit lens: what the model's own epilogue would say of a value, by position or by layer and position."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from djinn_jupyter.widgets.markup import Html, element, span, table
from djinn_jupyter.widgets.spelling import columns, marked, percent, plural, quoted, share
from djinn_jupyter.widgets.theme import card, mono, part
from djinn_jupyter.widgets.tokens import cell_token, guess, guesses_plain
from djinn_jupyter.widgets.view import View
from djinn_jupyter.wire.nouns import LensRow

LAYERS_SHOWN = 96
GRID_POSITIONS = 16


def lens_view(site: str, rows: Sequence[LensRow]) -> View:
    """The head of the lens's distribution at each position of one site."""
    depth = max((len(row.top) for row in rows), default=0)
    plain = [[str(r.position), quoted(r.text, r.token), guesses_plain(r.top, depth)] for r in rows]
    made = [[r.position, cell_token(r.text, r.token), *(guess(top) for top in r.top)] for r in rows]
    head = ["position", "token", *(str(i + 1) for i in range(depth))]
    html = card(
        part(table(head, made, numeric=(0,))),
        title=_title(mono(site)),
        beside=f"top {depth} at {plural(len(rows), 'position')}",
    )
    text = f"logit lens at {site}\n{columns(plain, ['position', 'token', 'lens'])}"
    return View(plain=text, html=html)


def lens_grid_view(layers: Mapping[str, Sequence[LensRow]]) -> View:
    """The lens's first token by site (the deepest first) and position, tinted by its probability."""
    deepest_first = list(layers.items())[::-1][:LAYERS_SHOWN]
    first = deepest_first[0][1][-GRID_POSITIONS:]
    tokens = (span("dj-mono", marked(row.text, row.token)) for row in first)
    head = ["", *(element("th", token, scope="col", class_="dj-tint") for token in tokens)]
    made = [[mono(site), *(_tinted(row) for row in rows[-GRID_POSITIONS:])] for site, rows in deepest_first]
    html = card(
        part(table(head, made)),
        title="Logit lens by layer",
        beside=f"top token at positions {first[0].position} to {first[-1].position}, the stop's layer first",
    )
    plain = [
        [site, *(quoted(r.top[0].text, r.top[0].token) for r in rows[-GRID_POSITIONS:])] for site, rows in deepest_first
    ]
    titles = ["site", *(quoted(row.text, row.token) for row in first)]
    return View(plain=f"logit lens by layer, top token at each position\n{columns(plain, titles)}", html=html)


def _title(site: Html) -> Html:
    return Html("Logit lens at " + site)


def _tinted(row: LensRow) -> Html:
    top = row.top[0]
    style = f"background:rgba(46,122,214,{share(top.probability) * 0.5:.2f})"
    token = span("dj-mono", marked(top.text, top.token))
    return element("td", token, class_="dj-tint", style=style, title=percent(top.probability))
