"""A text: its tokens coloured by a measure, the predictions in the place of each on hover, and a table of those that
stand out. Static: it needs no kernel."""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from djinn_jupyter.api.names import labelled
from djinn_jupyter.methods.text.api import ENTROPY, NEXT, PROBABILITY, TextLens, TokenMeasures
from djinn_jupyter.widgets.chart import Chart
from djinn_jupyter.widgets.html import Html, card, div, element, joined, part, span, table
from djinn_jupyter.widgets.lens import GRID_POSITIONS, LAYERS_SHOWN, lens_grid_view
from djinn_jupyter.widgets.panels import Heatmap
from djinn_jupyter.widgets.pictures import CLIP_PERCENTILE, image, scale_legend, shares
from djinn_jupyter.widgets.spelling import columns, ends, ends_note, figure, marked, percent, plural, quoted, truncated
from djinn_jupyter.widgets.tokens import cell_token, guess, guesses_plain, share_style, signed_style
from djinn_jupyter.widgets.view import View
from djinn_jupyter.wire.nouns import LensRow, TopToken

ACROSS: Final = 12  # tokens of a row of the figure
SHOWN: Final = 512  # tokens; each takes some 250 bytes
STRONGEST, STRONGEST_PLAIN = 10, 5
LONGEST: Final = 40  # characters of a token
LONG_HEAD: Final = 12


def text_view(read: TokenMeasures, session: str | None = None) -> View:
    """Show a text, its tokens coloured by the measure `read.by`."""
    length, shown = len(read.texts), ends(len(read.texts), SHOWN)
    notes = ends_note("tokens", shown, length)
    scale = _Scale(read)
    gap = [span("dj-soft", f"\u2026 {plural(length - SHOWN, 'token')} \u2026")] if notes else []
    half = SHOWN // 2 if notes else length
    chips = [_chip(read, at, scale) for at in shown]
    html = card(
        part(_tokens(read, joined([*chips[:half], *gap, *chips[half:], _next(read)], " ")), scale.legend()),
        part(_table(read), name=_named(read)),
        part(*(div("dj-note", note) for note in notes)) if notes else None,
        title="Text",
        beside=_beside(read),
        session=session,
    )
    plain = "\n".join([repr(read), *_plain(read), *notes])
    return View(plain=plain, html=html, chart=lambda: Chart(panels=[_wrapped(read, scale)]))


def _wrapped(read: TokenMeasures, scale: _Scale) -> Heatmap:
    """Return the text as rows of cells, a token each."""
    texts = [_short(marked(text)) for text in read.texts]
    across = min(ACROSS, len(texts))
    rows = -(-len(texts) // across)
    cells = np.full(rows * across, np.nan)
    cells[: len(texts)] = scale.values[: len(texts)]
    words = [*texts, *[""] * (rows * across - len(texts))]
    return Heatmap(
        title=f"text, coloured by {labelled(read.by)}",
        cells=cells.reshape(rows, across),
        words=[words[at : at + across] for at in range(0, len(words), across)],
        rows=range(0, rows * across, across),
        columns=range(across),
        down="position",
        across="behind it",
        measure=labelled(read.by),
        signed=not scale.is_share,
        limit=scale.limit,
    )


def _tokens(read: TokenMeasures, chips: Html) -> Html:
    """Return the tokens; where the labextension runs, a click on one, or Enter, sets a breakpoint there."""
    engine, session, site = read.engine or (None, None, None)
    reached = None if engine is None else 0
    return div("dj-tokens", chips, data_djinn_engine=engine, data_djinn_session=session, data_djinn_site=site,
               tabindex=reached)  # fmt: skip


def _beside(read: TokenMeasures) -> str:
    chosen = sum(end - start for start, end in read.generated)
    generated = f", {chosen:,} of them generated" if chosen else ""
    return f"{plural(len(read.texts), 'token')}{generated}, coloured by {labelled(read.by)}"


class _Scale:
    """The colours of a measure: of shares between 0 and its largest number, or of signed numbers about zero."""

    def __init__(self, read: TokenMeasures) -> None:
        self.by, self.values = read.by, read.of(read.by)
        known = np.abs(self.values[np.isfinite(self.values)])
        self.is_share = read.by in (PROBABILITY, ENTROPY) or read.by.startswith("top ")
        clipped = float(np.percentile(known, CLIP_PERCENTILE)) if len(known) else 0.0
        most = float(known.max()) if len(known) and self.is_share else clipped
        self.limit = 1.0 if read.by != ENTROPY and self.is_share else most or 1.0

    def style(self, at: int) -> str | None:
        """Return the style of the token at a position; None without a number there."""
        value = float(self.values[at])
        if math.isnan(value):
            return None
        part = max(-1.0, min(1.0, value / self.limit))
        return share_style(part) if self.is_share else signed_style(part)

    def legend(self) -> Html:
        """Draw the scale with its ends."""
        said = f"{labelled(self.by)}; generated tokens are underlined"
        if self.is_share:
            return scale_legend(said, high=f"{figure(self.limit)} nats" if self.by == ENTROPY else "1")
        return scale_legend(said, figure(-self.limit), figure(self.limit), "signed")


def _chip(read: TokenMeasures, at: int, scale: _Scale) -> Html:
    """Draw a token; a line ends behind one that ends a line."""
    text = read.texts[at]
    new = any(start <= at < end for start, end in read.generated)
    made = element(
        "code",
        _short(marked(text, read.tokens[0][at])),
        class_="dj-made" if new else None,
        style=scale.style(at),
        title=_said(read, at),
        data_djinn_at=None if read.engine is None else at,
    )
    return joined([made, element("br")]) if "\n" in text else made


def _next(read: TokenMeasures) -> Html:
    """Draw the place of the next token."""
    return span("dj-soft", "next", title=_said(read, len(read.texts)))


def _said(read: TokenMeasures, at: int) -> str:
    """Spell the numbers of a token, and the predictions in its place, one a line."""
    numbers = [f"{labelled(name)} {_spelled(name, float(read.of(name)[at]))}" for name in _told(read, at)]
    top = [f"{_short(marked(one.text, one.token))} {percent(one.probability)}" for one in read.predicted(at)]
    return "\n".join([f"position {at}", *numbers, *(["predicted here:"] if top else []), *top])


def _told(read: TokenMeasures, at: int) -> list[str]:
    return [name for name in read.measures if not name.startswith("top ") and not np.isnan(read.of(name)[at])]


def _spelled(name: str, value: float) -> str:
    return percent(value) if name == PROBABILITY else f"{figure(value)}{' nats' if name == ENTROPY else ''}"


def _short(text: str) -> str:
    return truncated(text, LONGEST)


def _head(read: TokenMeasures) -> str:
    """Return the head of the column of the measure: its name, unless that is longer than its numbers."""
    return read.by if len(read.by) <= LONG_HEAD else "value"


def _named(read: TokenMeasures) -> str:
    return "the least probable tokens" if read.by == PROBABILITY else f"the largest of {labelled(read.by)}"


def _table(read: TokenMeasures) -> Html:
    """Return the tokens that stand out, with what was predicted in their places; and the next token."""
    rows = [[at, cell_token(_short(text)), _spelled(read.by, value), *_guesses(read, at)] for at, text, value in
            read.top(STRONGEST)]  # fmt: skip
    last = len(read.texts)
    rows.append([last, span("dj-soft", "next"), "", *_guesses(read, last)])
    count = len(read.predicted(last))
    return table(["position", "token", _head(read), "predicted here", *[""] * (count - 1)], rows, numeric=(0, 2))


def _guesses(read: TokenMeasures, at: int) -> list[Html]:
    found = [guess(one) for one in read.predicted(at)]
    return found or [element("td", "") for _ in read.predicted(len(read.texts))]


def _plain(read: TokenMeasures) -> list[str]:
    """Return the same table in plain text."""
    rows = [
        [str(at), quoted(_short(text)), _spelled(read.by, value), guesses_plain(read.predicted(at))]
        for at, text, value in read.top(STRONGEST_PLAIN)
    ]
    last = len(read.texts)
    rows.append([str(last), "next", "", guesses_plain(read.predicted(last), 5)])
    return [_named(read), columns(rows, ["position", "token", _head(read), "predicted here"])]


# The lens over a text: a picture of all of it, and the top tokens of its end.

CELLS: Final = 768  # of the table; each takes some 130 bytes
CELLS_PLAIN: Final = 64
WIDTH, LARGEST = 900, 12  # of the picture, and of its cells, in pixels
OWN: Final = "probability of the text's own next token: the first layer on top, positions across"


def lens_view(read: TextLens, session: str | None = None) -> View:
    """Show the lens over a text: how probable its own next token is by layer and position, and the top tokens."""
    layers = {site: _rows(read, number) for number, site in enumerate(read.sites)}
    shown = max(GRID_POSITIONS, CELLS // len(read.sites))
    view = lens_grid_view(
        layers, session=session, positions=shown, title="Lens of the text", whole=part(_picture(read))
    )
    few = lens_grid_view(layers, positions=max(1, CELLS_PLAIN // min(len(read.sites), LAYERS_SHOWN)))
    return View(plain="\n".join([repr(read), _own(read), few.plain]), html=view.html, chart=view.chart)


def _rows(read: TextLens, site: int) -> list[LensRow]:
    """Return the lens of a site, position by position."""
    chosen = read.reply.chosen_tokens
    asked = [
        [
            TopToken(token=token, text=read.spelled[token], probability=float(chance), logit=math.nan)
            for token, chance in zip(chosen, chances, strict=True)
        ]
        for chances in read.values[len(read.measures) - len(chosen) :, site].T
    ]
    return [
        LensRow(position=at, token=token, text=text, top=read.predicted(site, at), chosen=tuple(asked[at]))
        for at, (token, text) in enumerate(zip(read.tokens[0], read.texts, strict=True))
    ]


def _picture(read: TextLens) -> Html:
    own = read.of(NEXT)
    sites, length = own.shape
    width, height = (size * max(1, min(LARGEST, WIDTH // size)) for size in (length, sites))
    alt = f"probability of the own next token, {plural(sites, 'site')} by {plural(length, 'position')}"
    drawn = image(shares(own), width=width, height=height, alt=alt, most="100%")
    return joined([drawn, scale_legend(OWN)])


def _own(read: TextLens) -> str:
    """Spell how probable the text's own tokens are by site: the mean of each, the deepest last."""
    if len(read.texts) < 2:
        return "the text has one token, so that none is next"
    sites = ends(len(read.sites), 2 * STRONGEST)
    means = [f"{read.sites[at]} {percent(float(np.nanmean(read.of(NEXT)[at])))}" for at in sites]
    return f"mean probability of the text's own next token: {', '.join(means)}"
