"""What an inspection shows: the values of a site as a picture, with the figures that matter; attention as a pattern."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from djinn_jupyter.widgets.markup import Html, div, element, joined, table
from djinn_jupyter.widgets.pictures import as_rows, image, share_colour, shares
from djinn_jupyter.widgets.spelling import at_positions, columns, figure, marked, percent, plural, shape, share, spans
from djinn_jupyter.widgets.stop import features_of, legend, picture_of, site_of
from djinn_jupyter.widgets.theme import card, mono, part
from djinn_jupyter.widgets.tokens import cell_token
from djinn_jupyter.widgets.view import View

ROWS = 16
HEADS_SHOWN = 16
LARGEST = 5
LABELLED = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """A snapshot with its values as numpy, positions first, and the tokens at every absolute position of the line."""

    site: str
    values: NDArray[np.generic]
    axes: str
    positions: tuple[int, ...]
    dtype: str
    exactness: str
    texts: Mapping[int, str]

    @property
    def is_pattern(self) -> bool:
        return site_of(self.site).point == "pattern" and self.values.ndim == 3

    @property
    def line(self) -> str:
        value = f"{self.dtype} {shape(self.values.shape)} ({self.axes})"
        return f"{value}, {at_positions(self.positions)}, {self.exactness}"

    @property
    def key_positions(self) -> range:
        """Keys end with the last position of the pass; behind a window the first ones are missing."""
        return range(self.positions[-1] + 1 - self.values.shape[-1], self.positions[-1] + 1)


def snapshot_view(look: Look, *, hover: bool = False) -> View:
    """A card of the values. With `hover` a plotly figure comes along."""

    def drawn() -> object:
        from djinn_jupyter.widgets import figures

        labels = [f"{p} {marked(look.texts.get(p, ''))}" for p in look.positions]
        if look.is_pattern:
            keys = [f"{p} {marked(look.texts.get(p, ''))}" for p in look.key_positions]
            return figures.attention(look.values, labels, keys, title=look.site)
        return figures.activation(look.values, labels, title=look.site)

    plain, html = _pattern(look) if look.is_pattern else _values(look)
    return View(plain=plain, html=html, hover=drawn if hover else None)


def _values(look: Look) -> tuple[str, Html]:
    rows = as_rows(look.values)
    shown = list(range(max(0, len(rows) - ROWS), len(rows)))
    figures = [[figure(float(v)) for v in (_norm(rows[i]), rows[i].min(), rows[i].max())] for i in shown]
    positions = [look.positions[i] for i in shown]
    texts = [look.texts.get(p, "") for p in positions]
    head = ["position", "token", "norm", "min", "max"]
    plain_rows = [[str(p), repr(t), *f] for p, t, f in zip(positions, texts, figures, strict=True)]
    made = [[p, cell_token(t), *f] for p, t, f in zip(positions, texts, figures, strict=True)]
    picture = picture_of(site_of(look.site), look.values)
    alt = f"values at {look.site}: positions {spans(look.positions)} down, {features_of(look.values)} values across"
    height = min(320, max(22, picture.cells.shape[0] * (22 if len(rows) <= ROWS else 3)))
    largest = _largest(look, rows[-1])
    html = card(
        part(image(picture, width=640, height=height, alt=alt), legend(picture, features_of(look.values), "values")),
        part(table(head, made, numeric=(0, 2, 3, 4)), name=_rows_name(len(shown), len(rows))),
        part(largest, name=f"largest at position {look.positions[-1]}"),
        title=mono(look.site),
        beside=look.line,
    )
    return f"{look.site}: {look.line}\n{columns(plain_rows, head)}\nlargest at the last position: {largest}", html


def _norm(row: NDArray[np.float32]) -> float:
    return float(np.linalg.norm(row.astype(np.float64)))


def _rows_name(shown: int, count: int) -> str | None:
    return f"the last {shown} of {plural(count, 'position')}" if shown < count else None


def _largest(look: Look, row: NDArray[np.float32]) -> str:
    """The entries of largest magnitude of one position, by their index (and head)."""
    order = np.argsort(-np.abs(row), kind="stable")[:LARGEST]
    inner = look.values.shape[1:]
    names = (".".join(str(int(i)) for i in np.unravel_index(int(place), inner)) if inner else "0" for place in order)
    return ", ".join(f"{name}: {figure(float(row[place]))}" for name, place in zip(names, order, strict=True))


def _pattern(look: Look) -> tuple[str, Html]:
    heads = _head_numbers(look)
    keys = look.key_positions
    last = as_rows(look.values[-1])
    rows = []
    for head, weights in list(zip(heads, last, strict=True)):
        order = np.argsort(-weights, kind="stable")[:3]
        rows.append((head, [(keys[int(k)], float(weights[k])) for k in order]))
    plain = [
        [str(h), ", ".join(f"{p} {look.texts.get(p, '')!r} {percent(w)}" for p, w in strongest)]
        for h, strongest in rows
    ]
    made = [
        [h, *(joined([f"{p} ", cell_token(look.texts.get(p, "")), f" {percent(w)}"]) for p, w in strongest)]
        for h, strongest in rows
    ]
    alone = len(heads) == 1 and max(len(keys), len(look.positions)) <= LABELLED
    pictures = [_labelled(look)] if alone else [_head_picture(look, i, h) for i, h in enumerate(heads[:HEADS_SHOWN])]
    note = f"the first {HEADS_SHOWN} of {len(heads)} heads" if len(heads) > HEADS_SHOWN else None
    picture = shares(look.values[:, 0])
    html = card(
        part(div("dj-pair", *pictures), legend(picture, len(keys), "keys"), name=note),
        part(table(["head", "most", "", ""], made, numeric=(0,)), name=f"where position {look.positions[-1]} looks"),
        title=mono(look.site),
        beside=look.line,
    )
    text = f"{look.site}: {look.line}\nwhere position {look.positions[-1]} looks\n{columns(plain, ['head', 'most'])}"
    return text, html


def _head_numbers(look: Look) -> list[int]:
    selector = site_of(look.site).selector
    return list(selector) if selector is not None else list(range(look.values.shape[1]))


def _labelled(look: Look) -> Html:
    """One head with its tokens written at both sides: queries down, keys across."""
    keys = look.key_positions
    tokens = (element("span", marked(look.texts.get(p, "")), class_="dj-mono") for p in keys)
    head = ["query", *(element("th", token, scope="col", class_="dj-key") for token in tokens)]
    rows = []
    for position, weights in zip(look.positions, as_rows(look.values), strict=True):
        cells = (_weight(float(weight), keys[i], position) for i, weight in enumerate(weights))
        rows.append([cell_token(look.texts.get(position, "")), *cells])
    return table(head, rows)


def _weight(weight: float, key: int, query: int) -> Html:
    if key > query:
        return element("td", "", class_="dj-cell")
    red, green, blue = share_colour(share(weight))
    style = f"background:rgb({red},{green},{blue})"
    return element("td", "", class_="dj-cell", style=style, title=f"{query} to {key}: {percent(weight)}")


def _head_picture(look: Look, index: int, head: int) -> Html:
    """Queries down, keys across, square cells."""
    picture = shares(look.values[:, index])
    rows, across = picture.cells.shape
    cell = max(1, min(24, (320 if look.values.shape[1] == 1 else 128) // max(rows, across)))
    alt = f"attention of head {head}: queries {spans(look.positions)} down, keys {spans(look.key_positions)} across"
    made = image(picture, width=cell * across, height=cell * rows, alt=alt)
    return element("div", made, div("dj-name", f"head {head}"))
