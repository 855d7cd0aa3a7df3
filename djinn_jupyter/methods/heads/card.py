"""Heads as pictures: the scores of every head, and the patterns of all of them, small, side by side."""

from __future__ import annotations

import numpy as np

from djinn_jupyter.errors import UsageError
from djinn_jupyter.methods.heads.api import HeadPatterns, HeadScores
from djinn_jupyter.methods.heads.request import KINDS, Kind
from djinn_jupyter.widgets.chart import Chart, Heatmap, token_labels
from djinn_jupyter.widgets.html import Html, card, div, element, folded, over, part, span, table
from djinn_jupyter.widgets.pictures import image, share_colour, shares
from djinn_jupyter.widgets.spelling import columns, ends, ends_note, figure, plural, share
from djinn_jupyter.widgets.view import View

NAMES = {"previous": "previous token", "duplicate": "duplicate token", "induction": "induction"}
LOOKS = {
    "previous": "to the token before",
    "duplicate": "to earlier places with the same token",
    "induction": "to what followed these",
}
BEST = 4
LAYERS, HEADS = 48, 32  # drawn
WIDTH = 640  # of all patterns of a layer, in pixels
SMALLEST, LARGEST = 18, 72  # sides of a pattern
CELL = 14
MEAN = "mean attention; layers down, heads across"
PANELS = 64  # of a figure
ROWS = 1024  # of the table of figures


def scores_view(scores: HeadScores) -> View:
    """Return a picture of each score, layers down and heads across, and the highest heads."""
    best = [[NAMES[kind], _looks(scores, kind), _best(scores, kind)] for kind in KINDS]
    notes = _cut(len(scores.layers), scores.heads)
    html = card(
        part(div("dj-pair", *(_map(scores, kind) for kind in KINDS)), _ramp(MEAN)),
        part(table(["", "a position looks", "the most"], best)),
        part(folded(_figures(scores))),
        part(*(div("dj-note", note) for note in notes)) if notes else None,
        title="Heads",
        beside=scores.over,
    )
    plain = "\n".join([repr(scores), columns(best), *notes])
    return View(plain=plain, html=html, chart=lambda: Chart(panels=[_scored(scores, kind) for kind in KINDS]))


def _scored(scores: HeadScores, kind: Kind) -> Heatmap:
    return Heatmap(title=NAMES[kind], cells=getattr(scores, kind), rows=scores.layers, columns=range(scores.heads),
                   down="layer", across="head", measure="mean attention", signed=False)  # fmt: skip


def patterns_view(patterns: HeadPatterns, session: str | None = None) -> View:
    """Return all patterns of a token sequence: a row for each layer, a picture for each head."""
    layers = ends(len(patterns.layers), LAYERS)
    heads = min(patterns.heads, HEADS)
    side = max(SMALLEST, min(LARGEST, WIDTH // heads - 4))
    rows = [
        [f"layer {patterns.layers[at]}", *(_pattern(patterns, at, head, side) for head in range(heads))]
        for at in layers
    ]
    best = [[NAMES[kind], _best(patterns.scores, kind)] for kind in KINDS]
    length = len(patterns.texts)
    notes = _cut(len(patterns.layers), patterns.heads)
    beside = (
        f"{plural(len(patterns.layers), 'layer')}, {plural(patterns.heads, 'head')} each, {plural(length, 'token')}"
    )
    html = card(
        part(
            table(["", *(str(head) for head in range(heads))], rows),
            _ramp(_said(patterns)),
            name="queries down, keys across",
        ),
        part(table(["on this line", "the most"], best)),
        part(*(div("dj-note", note) for note in notes)) if notes else None,
        title="Patterns of all heads",
        beside=beside,
        session=session,
    )
    plain = "\n".join([repr(patterns), columns(best), *notes])
    return View(plain=plain, html=html, chart=lambda: _patterns(patterns))


def _patterns(patterns: HeadPatterns) -> Chart:
    """Return a picture for each head. Raises UsageError where they are too many."""
    layers, heads, *_ = patterns.values.shape
    if layers * heads > PANELS:
        raise UsageError(
            f"A figure of {layers * heads:,} patterns cannot be read, and {PANELS} are drawn at most: "
            "session.inspect('pattern.5') has those of a layer."
        )
    at = range(0, len(patterns.texts), patterns.pooled)
    labels = token_labels([patterns.texts[position] for position in at], at)
    there = [(layer, head) for layer in range(layers) for head in range(heads)]
    return Chart(panels=[
        Heatmap(title=f"pattern.{patterns.layers[layer]}[{head}]", cells=patterns.values[layer, head], rows=labels,
                columns=labels, down="query", across="key", measure="attention", signed=False)
        for layer, head in there if not np.isnan(patterns.values[layer, head]).any()
    ])  # fmt: skip


def _cut(layers: int, heads: int) -> list[str]:
    """Return a note on the layers and heads drawn, if not all are."""
    of_heads = [f"the first {HEADS} of {heads} heads"] if heads > HEADS else []
    return [*of_heads, *ends_note("layers", ends(layers, LAYERS), layers)]


def _looks(scores: HeadScores, kind: Kind) -> str:
    counted = scores.counted[kind]
    return f"{LOOKS[kind]} ({plural(counted, 'position')})"


def _best(scores: HeadScores, kind: Kind) -> str:
    found = scores.top(BEST, kind)
    return ", ".join(f"{layer}.{head} ({figure(score, 2)})" for layer, head, score in found) or "no such position"


def _map(scores: HeadScores, kind: Kind) -> Html:
    """Draw one score, layers down and heads across."""
    values = getattr(scores, kind)
    layers, heads = ends(len(scores.layers), LAYERS), min(scores.heads, HEADS)
    rows = [
        [
            element("td", scores.layers[at], class_="dj-soft dj-tight"),
            *(_cell(float(values[at, head]), f"{scores.layers[at]}.{head}") for head in range(heads)),
        ]
        for at in layers
    ]
    return div("dj-map", div("dj-name", NAMES[kind]), table(["", *map(over, range(heads))], rows))


def _cell(value: float, name: str) -> Html:
    if np.isnan(value):
        return element("td", "", title=f"{name}: none", style=f"min-width:{CELL}px;padding:0")
    red, green, blue = share_colour(share(value))
    style = f"background:rgb({red},{green},{blue});min-width:{CELL}px;height:{CELL}px;line-height:{CELL}px;padding:0"
    return element("td", "", title=f"{name}: {figure(value)}", style=style)


def _figures(scores: HeadScores) -> Html:
    found = scores.columns()
    rows = [
        [f"{layer}.{head}", *(figure(one, 2) for one in values)]
        for layer, head, *values in zip(*found.values(), strict=True)
    ]
    return table(["layer.head", *(NAMES[kind] for kind in KINDS)], rows[:ROWS], numeric=(1, 2, 3))


def _pattern(patterns: HeadPatterns, at: int, head: int, side: int) -> Html:
    values = patterns.values[at, head]
    if np.isnan(values).any():  # this layer has fewer heads
        return element("td", "", class_="dj-tight")
    alt = f"layer {patterns.layers[at]}, head {head}"
    picture = shares(values, side, side)
    return element("td", image(picture, width=side, height=side, alt=alt), class_="dj-tight", title=alt)


def _said(patterns: HeadPatterns) -> str:
    pooled = f"; blocks of {patterns.pooled} positions have their largest weight" if patterns.pooled > 1 else ""
    return f"attention of a query to a key{pooled}"


def _ramp(said: str) -> Html:
    return div("dj-legend", span("", "0"), " ", span("dj-ramp dj-share", ""), span("", "1"), " \u00b7 ", span("", said))
