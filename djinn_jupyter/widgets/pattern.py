"""Attention as a picture: heads side by side, queries down, keys across; and each query's strongest keys in a table."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from djinn_jupyter.widgets.look import Look
from djinn_jupyter.widgets.markup import Html, div, element, folded, joined, table
from djinn_jupyter.widgets.pictures import Picture, as_rows, image, share_colour, shares
from djinn_jupyter.widgets.spelling import columns, marked, percent, plural, share, spans
from djinn_jupyter.widgets.stop import legend
from djinn_jupyter.widgets.theme import card, mono, part
from djinn_jupyter.widgets.tokens import cell_token

HEADS_SHOWN = 16
STRONGEST = 3
QUERIES = 16
CELLS_LABELLED = 400  # up to here: a table cell for each weight
CELLS_NAMED, SIDE_NAMED = 4096, 32  # up to here: pictures with their tokens along two sides
CELL, CELL_ALONE = 13, 22


def pattern(look: Look) -> tuple[str, Html]:
    """Return the plain text and the markup of a pattern [queries, heads, keys]."""
    heads, keys, last = look.heads, look.key_positions, look.positions[-1]
    strongest = [_strongest(look, -1, i) for i in range(len(heads))]
    plain = [[str(h), ", ".join(_plain(look, p, w) for p, w in row)] for h, row in zip(heads, strongest, strict=True)]
    made = [[h, *(_made(look, p, w) for p, w in row)] for h, row in zip(heads, strongest, strict=True)]
    note = f"the first {HEADS_SHOWN} of {plural(len(heads), 'head')}" if len(heads) > HEADS_SHOWN else None
    html = card(
        part(div("dj-pair", *_pictures(look)), legend(shares(look.values[:, 0]), len(keys), "key"), name=note),
        part(
            table(["head", "most", "", ""], made, numeric=(0,)), _every_query(look), name=f"where position {last} looks"
        ),
        title=mono(look.site),
        beside=look.line,
        session=look.session,
    )
    return f"{look.site}: {look.line}\nwhere position {last} looks\n{columns(plain, ['head', 'most'])}", html


def _strongest(look: Look, query: int, head: int, count: int = STRONGEST) -> list[tuple[int, float]]:
    """Return (position of the key, weight) of the largest weights, the largest first."""
    weights = np.asarray(look.values[query, head], dtype=np.float32)
    order = np.argsort(-weights, kind="stable")[:count]
    return [(look.key_positions[int(k)], float(weights[k])) for k in order]


def _plain(look: Look, position: int, weight: float) -> str:
    return f"{position} {look.texts.get(position, '')!r} {percent(weight)}"


def _made(look: Look, position: int, weight: float) -> Html:
    return joined([f"{position} ", cell_token(look.texts.get(position, "")), f" {percent(weight)}"])


def _every_query(look: Look) -> Html:
    """Return a table of the key with the largest weight, for each of the last queries and each head."""
    shown = range(max(0, len(look.positions) - QUERIES), len(look.positions))
    heads = list(enumerate(look.heads))[:HEADS_SHOWN]
    rows = [
        [
            joined([look.positions[q], " ", cell_token(look.texts.get(look.positions[q], ""))]),
            *(_made(look, *_strongest(look, q, i, 1)[0]) for i, _ in heads),
        ]
        for q in shown
    ]
    return folded(
        table(["query", *(f"head {h}" for _, h in heads)], rows), "the key that each query weighs most, as a table"
    )


def _pictures(look: Look) -> list[Html]:
    """Draw each head: with its tokens along two sides where they are few, as a bare picture where they are many."""
    heads = list(enumerate(look.heads))[:HEADS_SHOWN]
    queries, keys = len(look.positions), len(look.key_positions)
    if queries * keys * len(heads) <= CELLS_LABELLED:
        return [_labelled(look, i, h, first=i == 0) for i, h in heads]
    if queries * keys * len(heads) <= CELLS_NAMED and max(queries, keys) <= SIDE_NAMED:
        cell = CELL_ALONE if len(heads) == 1 and keys <= SIDE_NAMED // 2 else CELL
        return [_beside(look, cell), *(_named(look, i, h, cell) for i, h in heads)]
    return [_head_picture(look, i, h) for i, h in heads]


def _labelled(look: Look, index: int, head: int, *, first: bool) -> Html:
    """Draw a head as table cells, queries down, keys across; the queries are named beside the first head only."""
    keys = look.key_positions
    titles = (
        element("th", element("span", marked(look.texts.get(p, "")), class_="dj-mono"), scope="col", class_="dj-key")
        for p in keys
    )
    rows = []
    for position, weights in zip(look.positions, as_rows(look.values[:, index]), strict=True):
        name = [cell_token(look.texts.get(position, ""))] if first else []
        rows.append([*name, *(_weight(float(weight), keys[i], position) for i, weight in enumerate(weights))])
    made = table([*(["query"] if first else []), *titles], rows)
    label = f"attention of head {head}: queries {spans(look.positions)} down, keys {spans(keys)} across"
    return element("div", made, div("dj-name", f"head {head}"), role="group", aria_label=label)


def _weight(weight: float, key: int, query: int) -> Html:
    if key > query:
        return element("td", "", class_="dj-cell")
    red, green, blue = share_colour(share(weight))
    style = f"background:rgb({red},{green},{blue})"
    return element("td", "", class_="dj-cell", style=style, title=f"{query} to {key}: {percent(weight)}")


def _named(look: Look, index: int, head: int, cell: int) -> Html:
    """Draw a head's picture with the keys named below it."""
    made = _drawn(look, shares(look.values[:, index]), head, cell)
    return element("div", made, _names(look, look.key_positions, cell, "vertical-lr"), div("dj-name", f"head {head}"))


def _beside(look: Look, cell: int) -> Html:
    """Write the names of the queries, at the height of the pictures to the right."""
    return _names(look, look.positions, cell, "horizontal-tb")


def _names(look: Look, positions: Sequence[int], cell: int, direction: str) -> Html:
    """Write tokens in lines of `cell` pixels, from the top down, or written downwards from left to right."""
    style = f"display:grid;grid-auto-rows:{cell}px;line-height:{cell}px;font-size:10px;padding:1px;align-content:start"
    names = (element("span", marked(look.texts.get(p, ""))) for p in positions)
    return div("dj-mono", *names, style=f"{style};writing-mode:{direction}", aria_hidden="true")


def _head_picture(look: Look, index: int, head: int) -> Html:
    picture = shares(look.values[:, index])
    cell = max(1, min(24, (320 if look.values.shape[1] == 1 else 128) // max(picture.cells.shape)))
    return element("div", _drawn(look, picture, head, cell), div("dj-name", f"head {head}"))


def _drawn(look: Look, picture: Picture, head: int, cell: int) -> Html:
    """Draw a head with queries down, keys across and square cells."""
    rows, across = picture.cells.shape
    alt = f"attention of head {head}: queries {spans(look.positions)} down, keys {spans(look.key_positions)} across"
    return image(picture, width=cell * across, height=cell * rows, alt=alt)
