"""Tokens and layers in a row: a place in the text and a place in the network."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import groupby
from types import MappingProxyType
from typing import Final

from djinn_jupyter.api.names import labelled
from djinn_jupyter.widgets.html import Html, div, element, joined, small, span, unbroken
from djinn_jupyter.widgets.pictures import ABOVE, BELOW, background, share_colour
from djinn_jupyter.widgets.spelling import marked, percent, plural, quoted, share
from djinn_jupyter.wire.nouns import TopToken
from djinn_jupyter.wire.sites import Site

TOKENS_SHOWN = 96


def token_strip(
    texts: Sequence[str],
    tokens: Sequence[int],
    *,
    here: Collection[int] = (),
    new: Collection[int] = (),
    differs: Collection[int] = (),
    styles: Mapping[int, str] = MappingProxyType({}),
    said: Mapping[int, str] = MappingProxyType({}),
) -> Html:
    """Draw tokens as chips: those of the present pass underlined, generated ones tinted, others in `styles` of their
    own; of a long text only the end. The pointer shows what is `said` of a token, or its position."""
    start = max(0, len(texts) - TOKENS_SHOWN)
    chips = []
    for i in range(start, len(texts)):
        kinds = (("here", here), ("new", new), ("differs", differs))
        classes = " ".join(f"dj-{kind}" for kind, chosen in kinds if i in chosen)
        title = said.get(i, f"position {i}")
        chips.append(
            element("code", marked(texts[i], tokens[i]), class_=classes or None, style=styles.get(i), title=title)
        )
    before = span("dj-soft", f"{plural(start, 'earlier token')} \u2026 ") if start else None
    return div("dj-tokens", before, joined(chips, " "))


AHEAD: Final = "background:#8884"
LOW: Final = "line-height:12px"  # no higher than the strip
STRIP: Final = "display:grid;gap:2px;max-width:760px;padding:4px 0"


def layer_strip(site: Site, layer: int, layers: int) -> Html:
    """Draw the network as a row of layers: those before the mark, the stop, have run and are dark.

    `layer` layers have run. A stop inside layer n has run n whole layers and half of the next.
    """
    inside = site.layer == layer and site.point != "resid_pre"
    cells = [("1fr", element("s", title=f"layer {i}", style=AHEAD if i >= layer else None)) for i in range(layers)]
    mark = ("3px", element("b", title=str(site), style="margin:-4px 0"))
    if inside:
        title = f"layer {layer}"
        half, ahead = element("s", title=title), element("s", title=title, style=AHEAD)
        cells[layer : layer + 1] = [(".5fr", half), mark, (".5fr", ahead)]
    else:
        cells.insert(layer, mark)
    columns = " ".join(f"repeat({len([*run])},{width})" for width, run in groupby(width for width, _ in cells))
    label = f"{layer} of {layers} layers have run; the pass stands at {labelled(str(site))}"
    caption = small(f"\u00a0logits, {layer} of {layers} layers run", style=LOW)
    edge = small("embed\u00a0", style=LOW)
    drawn = joined(cell for _, cell in cells)
    style = f"{STRIP};grid:12px/auto {columns} auto"
    return element("div", edge, " ", drawn, " ", caption, role="img", aria_label=label, style=style)


def guess(top: TopToken) -> Html:
    """Return the table cell of a predicted token with its probability, tinted by it."""
    tint = background(BELOW, share(top.probability) * 0.45)
    token, chance = cell_token(top.text, top.token), small(unbroken(percent(top.probability)))
    return element("td", token, " ", chance, class_="dj-tint", style=tint)


def guesses_plain(top: Sequence[TopToken], count: int = 3) -> str:
    return ", ".join(f"{quoted(t.text, t.token)} {percent(t.probability)}" for t in top[:count]) or "-"


def cell_token(text: str, token: int | None = None) -> Html:
    """Return a token for use inside a table cell."""
    return element("code", marked(text, token))


STRENGTH: Final = 0.75  # of the full colour of signed values, so that letters stay readable on any page
DARK = 0.55  # a share below it has a dark colour, on which light letters stand


def share_style(part: float) -> str:
    """Return the style of a token with a share, such as its probability."""
    letters = "#fff" if part < DARK else "#000"
    return f"background:#{''.join(f'{one:02x}' for one in share_colour(share(part)))};color:{letters}"


def signed_style(part: float) -> str:
    """Return the style of a token with a signed number, as a part of the largest."""
    return background(ABOVE if part > 0 else BELOW, abs(part) ** 0.8 * STRENGTH)
