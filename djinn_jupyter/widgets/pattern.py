"""Attention as a picture: heads side by side, queries down, keys across; and each query's strongest keys in a table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from djinn_jupyter.widgets.html import Html, card, div, element, folded, joined, mono, named, part, table
from djinn_jupyter.widgets.pictures import HEADS_SHOWN, Attention, image, read_of_heads, share_colour
from djinn_jupyter.widgets.spelling import columns, marked, percent, plural, share, spans
from djinn_jupyter.widgets.stop import Look, legend
from djinn_jupyter.widgets.tokens import cell_token

CELLS_LABELLED = 400  # up to here: a table cell for each weight
CELLS_NAMED, SIDE_NAMED = 4096, 32  # up to here: pictures with their tokens along two sides
CELL, CELL_ALONE = 13, 22
Direction = Literal["horizontal-tb", "vertical-lr"]


def pattern(look: Look) -> tuple[str, Html]:
    """Return the plain text and the markup of a pattern [queries, heads, keys]."""
    drawn, heads, keys, last = look.attention, look.heads, look.key_positions, look.all_positions[-1]
    strongest = [drawn.strongest(-1, i) for i in range(len(heads))]
    plain = [[str(h), ", ".join(_plain(look, k, w) for k, w in row)] for h, row in zip(heads, strongest, strict=True)]
    made = [[h, *(_made(look, k, w) for k, w in row)] for h, row in zip(heads, strongest, strict=True)]
    note = f"the first {HEADS_SHOWN} of {plural(len(heads), 'head')}" if len(heads) > HEADS_SHOWN else None
    legend_line = legend(drawn.picture(0), len(keys), "key", read=read_of_heads(look.pooled))
    html = card(
        part(div("dj-pair", *_pictures(look, drawn)), legend_line, name=note),
        part(
            table(["head", "most", "", ""], made, numeric=(0,)),
            _every_query(look, drawn),
            name=f"where position {last} looks",
        ),
        title=mono(look.site),
        beside=look.line,
        session=look.session,
    )
    return f"{look.site}: {look.line}\nwhere position {last} looks\n{columns(plain, ['head', 'most'])}", html


def _plain(look: Look, key: int, weight: float) -> str:
    position = look.key_positions[key]
    return f"{position} {look.texts.get(position, '')!r} {percent(weight)}"


def _made(look: Look, key: int, weight: float) -> Html:
    position = look.key_positions[key]
    return joined([f"{position} ", cell_token(look.texts.get(position, "")), f" {percent(weight)}"])


def _every_query(look: Look, drawn: Attention) -> Html:
    """Return a table of the key with the largest weight, for each of the last queries and each head."""
    shown = look.all_positions[-len(drawn.places) :]
    heads = look.heads[:HEADS_SHOWN]
    rows = [
        [
            joined([position, " ", cell_token(look.texts.get(position, ""))]),
            *(_made(look, *drawn.strongest(query, i)[0]) for i in range(len(heads))),
        ]
        for query, position in enumerate(shown)
    ]
    return folded(
        table(["query", *(f"head {h}" for h in heads)], rows), "the key that each query weighs most, as a table"
    )


def _pictures(look: Look, drawn: Attention) -> list[Html]:
    """Draw each head: with its tokens along two sides where they are few, as a bare picture where they are many."""
    heads = list(enumerate(look.heads))[:HEADS_SHOWN]
    queries, keys = len(look.all_positions), len(look.key_positions)
    if queries * keys * len(heads) <= CELLS_LABELLED and drawn.is_whole:
        return [_labelled(look, drawn, i, h, first=i == 0) for i, h in heads]
    if queries * keys * len(heads) <= CELLS_NAMED and max(queries, keys) <= SIDE_NAMED:
        cell = CELL_ALONE if len(heads) == 1 and keys <= SIDE_NAMED // 2 else CELL
        return [_beside(look, cell), *(_named(look, drawn, i, h, cell) for i, h in heads)]
    return [_head_picture(look, drawn, i, h) for i, h in heads]


def _labelled(look: Look, drawn: Attention, index: int, head: int, *, first: bool) -> Html:
    """Draw a head as table cells, queries down, keys across; the queries are named beside the first head only."""
    keys = look.key_positions
    titles = (element("th", cell_token(look.texts.get(p, "")), scope="col", class_="dj-key") for p in keys)
    rows = []
    for position, weights in zip(look.all_positions, drawn.cells[index], strict=True):
        name = [cell_token(look.texts.get(position, ""))] if first else []
        rows.append([*name, *(_weight(float(weight), keys[i], position) for i, weight in enumerate(weights))])
    made = table([*(["query"] if first else []), *titles], rows)
    label = f"attention of head {head}: queries {spans(look.all_positions)} down, keys {spans(keys)} across"
    return element("div", made, named(f"head {head}"), role="group", aria_label=label)


def _weight(weight: float, key: int, query: int) -> Html:
    if key > query:
        return element("td", "", class_="dj-cell")
    red, green, blue = share_colour(share(weight))
    style = f"background:rgb({red},{green},{blue})"
    return element("td", "", class_="dj-cell", style=style, title=f"{query} to {key}: {percent(weight)}")


def _named(look: Look, drawn: Attention, index: int, head: int, cell: int) -> Html:
    """Draw a head's picture with the keys named below it."""
    made = _drawn(look, drawn, index, head, cell)
    keys = _names(look, look.key_positions, cell, "vertical-lr")
    return element("div", made, keys, named(f"head {head}"))


def _beside(look: Look, cell: int) -> Html:
    """Write the names of the queries, at the height of the pictures to the right."""
    return _names(look, look.all_positions, cell, "horizontal-tb")


def _names(look: Look, positions: Sequence[int], cell: int, direction: Direction) -> Html:
    return token_names([look.texts.get(position, "") for position in positions], cell, direction)


def token_names(texts: Sequence[str], cell: int, direction: Direction) -> Html:
    """Write tokens along a picture, in lines of `cell` pixels: downwards, or each written down from left to right."""
    style = f"display:grid;grid-auto-rows:{cell}px;line-height:{cell}px;font-size:10px;padding:1px;align-content:start"
    names = (element("span", marked(text)) for text in texts)
    return element("code", *names, style=f"{style};writing-mode:{direction}", aria_hidden="true")


def _head_picture(look: Look, drawn: Attention, index: int, head: int) -> Html:
    cell = max(1, min(24, (320 if len(look.heads) == 1 else 128) // max(drawn.cells.shape[1:])))
    return element("div", _drawn(look, drawn, index, head, cell), named(f"head {head}"))


def _drawn(look: Look, drawn: Attention, index: int, head: int, cell: int) -> Html:
    """Draw a head with queries down, keys across and square cells."""
    _, rows, across = drawn.cells.shape
    alt = f"attention of head {head}: queries {spans(look.all_positions)} down, keys {spans(look.key_positions)} across"
    return image(drawn.picture(index), width=cell * across, height=cell * rows, alt=alt)
