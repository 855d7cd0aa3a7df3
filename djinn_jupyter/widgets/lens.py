"""The logit lens: the model's own epilogue applied to a value, by position or by layer and position."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from djinn_jupyter.widgets.markup import Html, element, folded, span, table
from djinn_jupyter.widgets.spelling import at_positions, columns, marked, percent, plural, quoted, share
from djinn_jupyter.widgets.svg import keys, series_chart
from djinn_jupyter.widgets.theme import card, mono, part
from djinn_jupyter.widgets.tokens import cell_token, guess, guesses_plain
from djinn_jupyter.widgets.view import View
from djinn_jupyter.wire.nouns import LensRow, TopToken

LAYERS_SHOWN = 96
GRID_POSITIONS = 12  # the number that fits a notebook's column; the last position is always visible
FEW, LETTERS_OF_FEW, LETTERS = 8, 13, 7


def lens_view(site: str, rows: Sequence[LensRow], *, session: str | None = None) -> View:
    """Show the most probable tokens of the lens at each position of one site."""
    depth = max((len(row.top) for row in rows), default=0)
    plain = [[str(r.position), quoted(r.text, r.token), guesses_plain(r.top, depth)] for r in rows]
    made = [[r.position, cell_token(r.text, r.token), *([guess(top) for top in r.top] or "-")] for r in rows]
    head = ["position", "token", *(str(i + 1) for i in range(depth))]
    html = card(
        part(table(head, made, numeric=(0,))),
        title=Html("Logit lens at " + mono(site)),
        beside=f"top {depth} at {plural(len(rows), 'position')}",
        session=session,
    )
    text = f"logit lens at {site}\n{columns(plain, ['position', 'token', 'lens'])}"
    return View(plain=text, html=html)


def lens_grid_view(layers: Mapping[str, Sequence[LensRow]], *, session: str | None = None) -> View:
    """Show the lens's top token by site (the deepest first) and position, tinted by its probability; and the
    probability of each requested token at the last position, layer by layer."""
    deepest_first = list(layers.items())[::-1][:LAYERS_SHOWN]
    first = deepest_first[0][1][-GRID_POSITIONS:]
    letters = LETTERS_OF_FEW if len(first) <= FEW else LETTERS
    head = ["", *(_over(marked(row.text, row.token), letters) for row in first)]
    made = [[mono(site), *(_tinted(row, letters) for row in rows[-GRID_POSITIONS:])] for site, rows in deepest_first]
    chosen = _by_layer(layers)
    html = card(
        part(table(head, made, last=True)),
        _chosen_part(chosen, first[-1].position) if chosen else None,
        title="Logit lens by layer",
        beside=f"top token at {at_positions([row.position for row in first])}, the stop's layer first",
        session=session,
    )
    plain = [
        [site, *(quoted(r.top[0].text, r.top[0].token) for r in rows[-GRID_POSITIONS:])] for site, rows in deepest_first
    ]
    titles = ["site", *(quoted(row.text, row.token) for row in first)]
    text = f"logit lens by layer, top token at each position\n{columns(plain, titles)}"
    return View(plain=text + _chosen_plain(chosen, first[-1].position), html=html)


def _by_layer(layers: Mapping[str, Sequence[LensRow]]) -> list[tuple[int, tuple[TopToken, ...]]]:
    """Return (layer, the requested tokens) at the last position, the first layer first."""
    last = [(site, rows[-1].chosen) for site, rows in list(layers.items())[-LAYERS_SHOWN:]]
    return [(int(site.rpartition(".")[2]), chosen) for site, chosen in last if chosen]


def _chosen_part(chosen: Sequence[tuple[int, tuple[TopToken, ...]]], position: int) -> Html:
    names = [marked(t.text, t.token) for t in chosen[0][1]]
    series = [[tokens[i].probability for _, tokens in chosen] for i in range(len(names))]
    rows = [[layer, *(percent(t.probability) for t in tokens)] for layer, tokens in chosen]
    alt = f"probability of {', '.join(names)} at position {position} after each layer"
    chart = series_chart([layer for layer, _ in chosen], series, name="layer", alt=alt, most=1.0, spelled=percent)
    listed = folded(table(["layer", *names], rows, numeric=range(len(names) + 1)))
    return part(chart, keys(names), listed, name=f"probability at position {position} by layer")


def _chosen_plain(chosen: Sequence[tuple[int, tuple[TopToken, ...]]], position: int) -> str:
    if not chosen:
        return ""
    rows = [[str(layer), *(percent(t.probability) for t in tokens)] for layer, tokens in chosen]
    names = [quoted(t.text, t.token) for t in chosen[0][1]]
    return f"\nprobability at position {position} by layer\n{columns(rows, ['layer', *names])}"


def _tinted(row: LensRow, letters: int) -> Html:
    top = row.top[0]
    style = f"background:rgba(46,122,214,{share(top.probability) * 0.5:.2f})"
    name, chance = marked(top.text, top.token), percent(top.probability)
    title = chance if len(name) <= letters else f"{name} {chance}"
    return element("td", span("dj-mono", _cut(name, letters)), class_="dj-tint", style=style, title=title)


def _over(name: str, letters: int) -> Html:
    """Return a column's header cell."""
    title = name if len(name) > letters else None
    return element("th", span("dj-mono", _cut(name, letters)), scope="col", class_="dj-tint", title=title)


def _cut(name: str, letters: int) -> str:
    return name if len(name) <= letters else f"{name[: letters - 1]}\u2026"
