"""The stop card: the pass's site and step, its tokens, and the value at the site."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from djinn_jupyter.api.arrays import to_numpy
from djinn_jupyter.api.influences import influence_lines
from djinn_jupyter.api.names import labelled, labelled_numbers
from djinn_jupyter.errors import UnknownSite
from djinn_jupyter.widgets import pictures
from djinn_jupyter.widgets.html import (
    GREY,
    SOFT,
    Html,
    card,
    div,
    dotted,
    element,
    joined,
    meter,
    named_site,
    part,
    piece,
    small,
    styled,
    table,
)
from djinn_jupyter.widgets.lens import effect_lines, effect_part, influence_parts
from djinn_jupyter.widgets.memory import transfer_line
from djinn_jupyter.widgets.spelling import at_positions, columns, figure, plural, quoted, rounded, shape, spans
from djinn_jupyter.widgets.tokens import cell_token, guess, guesses_plain, layer_strip, token_strip
from djinn_jupyter.widgets.view import View
from djinn_jupyter.wire.nouns import LensRow, StopIdentity, Transfer
from djinn_jupyter.wire.readings import EffectReading, Pooled
from djinn_jupyter.wire.replies import Paused
from djinn_jupyter.wire.sites import Site, parse_site
from djinn_jupyter.wire.texts import label

ROWS = 10
ROW_PIXELS = 22
STRIP_PIXELS = 160
MOVED_ON: Final = "The activation is not drawn: the session has moved on, or was edited since."


def stop_view(
    stop: Paused,
    *,
    pooled: Pooled | None = None,
    lens: Sequence[LensRow] = (),
    effect: EffectReading | None = None,
    restored: Transfer | None = None,
) -> View:
    """Return the card of a stop. `pooled` is its value, for the pictures; one of another stop is not drawn. `restored`
    is the transfer that the session waited for before it could move."""
    here = pooled is not None and pooled.stop == stop.stop
    strongest = strongest_features(stop.site, pooled if here else None)
    plain = _plain(stop, lens, effect, restored, strongest)
    html = _html(stop, pooled, lens, effect, restored, strongest)

    def since(words: str) -> View:
        beside = f'<span style="{SOFT}">{piece(_beside(stop, restored))}'
        said = element("span", words.partition(": ")[0], title=words)
        past = html.replace(dotted("paused"), dotted("past"), 1).replace(beside, f"{beside} \u00b7 {said}", 1)
        return View(plain=f"{plain}\n({words})", html=styled(past))

    return View(plain=plain, html=html, since=since)


def site_of(spelling: str) -> Site:
    """Return the site of a reply; a spelling that the grammar does not know is shown unchanged."""
    try:
        return parse_site(spelling)
    except UnknownSite:
        return Site(point=spelling)


LARGEST: Final = 5


def strongest_features(site: str, pooled: Pooled | None) -> str | None:
    """Spell the largest features at the last position, where a value read at an added module has that position."""
    if pooled is None or pooled.last is None:
        return None
    return largest(site_of(site), to_numpy(pooled.last)[-1])


def places_of_largest(row: NDArray[np.generic]) -> list[int]:
    """Return the places of the entries of largest magnitude of one position."""
    return list(map(int, np.argsort(-np.abs(row.reshape(-1).astype(np.float32)), kind="stable")[:LARGEST]))


def largest(site: Site, row: NDArray[np.generic]) -> str:
    """Spell the entries of largest magnitude of one position, by the model's own number (of a head, then within it)."""
    places = places_of_largest(row)
    numbers = labelled_numbers(str(site.whole()), [numbered(site, row.shape, place) for place in places])
    told = zip(numbers, row.reshape(-1)[places], strict=True)
    return ", ".join(f"{number}: {figure(float(value))}" for number, value in told)


def numbered(site: Site, shape: Sequence[int], place: int) -> str:
    """Spell the number of an entry as the model numbers it: a selected head or feature has its own number."""
    first, *inner = map(int, np.unravel_index(place, shape)) if shape else (0,)
    return ".".join(map(str, (first if site.selector is None else site.selector[first], *inner)))


REASONS: Final = {
    "step": "after a step",
    "interrupt": "interrupted",
    "back": "gone back",
    "fork": "forked here",
    "quota": "your running time of the day is used up",
}


def moment(stop: Paused) -> str:
    """Spell the step: `step 0, the prompt` or `step 3`."""
    return "step 0, the prompt" if stop.step == 0 else f"step {stop.step}"


def why(stop: Paused) -> str:
    """Spell the reason of a stop in a few words."""
    if stop.reason == "breakpoint" and stop.breakpoint is not None:
        met = f"breakpoint {stop.breakpoint.number}, hit {stop.breakpoint.hits}"
        if not stop.breakpoint.when:
            return met
        matched = "" if stop.matched is None else f", matched at position {stop.matched}"
        return f"{met}, when {stop.breakpoint.when}{matched}"
    return REASONS.get(stop.reason, stop.reason)


def ran(stop: Paused) -> str:
    return f"{stop.layer} of {plural(stop.layers, 'layer')} run"


def _plain(
    stop: Paused,
    lens: Sequence[LensRow],
    effect: EffectReading | None,
    restored: Transfer | None,
    strongest: str | None,
) -> str:
    looks = {row.position: guesses_plain(row.top) for row in lens}
    measure, numbers = measured(stop)
    shown = positions_shown(stop)
    head = ["position", "token", measure] + (["logit lens"] if looks else [])
    rows = [
        [str(p), quoted(stop.texts[p], stop.tokens[p]), figure(numbers[p])] + ([looks.get(p, "")] if looks else [])
        for p in shown
    ]
    told = f"{moment(stop)}; {ran(stop)}; {why(stop)}; session {label(stop.session)}"
    lines = [f"paused at {labelled(stop.site)} ({told})"]
    if stop.also:
        lines.append(f"also met here: {labelled(', '.join(stop.also))}")
    if restored is not None:
        lines.append(transfer_line(restored))
    if stop.new_text:
        lines.append(f"text so far: {stop.new_text!r}")
    lines.append(f"value: {stop.dtype} {shape(stop.shape)} ({stop.axes}), {at_positions(stop.positions)}")
    lines += influence_lines(stop.influences, stop.edits)
    lines.append(columns(rows, head))
    lines += [] if strongest is None else [f"largest at position {stop.positions[-1]}: {strongest}"]
    return "\n".join(lines + effect_lines(effect, edited=bool(stop.edits)))


def measured(stop: Paused) -> tuple[str, dict[int, float]]:
    """Return what a stop has of each position, and its name: the value where it is one number, else its norm."""
    name, numbers = ("norm", stop.norms) if stop.values is None else ("value", stop.values)
    return name, dict(zip(stop.positions, numbers, strict=True))


def positions_shown(stop: Paused) -> list[int]:
    """Return the last positions of the pass, and the one at which the breakpoint's condition held."""
    shown = list(stop.positions[-ROWS:])
    conditional = stop.breakpoint is not None and stop.breakpoint.when is not None
    if conditional and stop.matched in stop.positions and stop.matched not in shown:
        shown = [stop.matched, *shown[1:]]
    return shown


def _html(
    stop: Paused,
    pooled: Pooled | None,
    lens: Sequence[LensRow],
    effect: EffectReading | None,
    restored: Transfer | None,
    strongest: str | None,
) -> Html:
    new = range(stop.prompt_tokens, len(stop.texts))
    drawn = pooled if pooled is not None and pooled.stop == stop.stop else None
    return card(
        part(layer_strip(site_of(stop.site), stop.layer, stop.layers)),
        part(token_strip(stop.texts, stop.tokens, here=stop.positions, new=new), name=_reading(stop)),
        *influence_parts(stop.influences, stop.edits),
        part(MOVED_ON) if drawn is not pooled else None,
        _overview(stop, drawn) if drawn is not None and len(stop.positions) > ROWS else None,
        _positions(stop, drawn, lens),
        part(strongest, name=f"largest at position {stop.positions[-1]}") if strongest is not None else None,
        effect_part(effect, edited=bool(stop.edits)) if effect is not None else None,
        title=joined(["Paused at ", named_site(stop.site)]),
        beside=_beside(stop, restored),
        dot="paused",
        session=stop.session,
    )


def _beside(stop: Paused, restored: Transfer | None) -> str:
    parts = [moment(stop), why(stop)]
    if restored is not None:
        parts.append(transfer_line(restored))
    if stop.also:
        parts.append(f"also {labelled(', '.join(stop.also))}")
    if stop.history_index < stop.history_length - 1:
        parts.append(f"stop {stop.history_index + 1} of {stop.history_length}")
    return " \u00b7 ".join(parts)


def _reading(stop: Paused) -> str:
    count = len(stop.positions)
    return f"{plural(count, 'position')} in this pass ({spans(stop.positions)}), underlined"


def picture_of(site: Site, values: NDArray[np.generic], rows: int = 128) -> pictures.Picture:
    """Return a picture: attention weights as shares, other values as signed."""
    return pictures.shares(values, rows) if site.point == "pattern" else pictures.signed(values, rows)


def legend(picture: pictures.Picture, features: int, noun: str = "dimension", *, read: str | None = None) -> Html:
    """Return the legend: the range of the colours, and how many numbers are pooled in one pixel."""
    ends = ("0", "1") if picture.scale == "share" else (figure(-picture.limit, 2), figure(picture.limit, 2))
    blocks = [(picture.columns_per_cell, noun), (picture.rows_per_cell, "position")]
    block = " by ".join(plural(count, of) for count, of in blocks if count > 1)
    said = plural(features, noun) + (f"; a pixel is the largest of {block}" if block else "")
    line = pictures.scale_legend(said, *ends, picture.scale)
    return line if read is None else joined([line, element("div", small(read))])


def features_of(values: NDArray[np.generic]) -> int:
    return features_in(values.shape)


def features_in(shape: Sequence[int]) -> int:
    return math.prod(shape[1:])


def _overview(stop: Paused, pooled: Pooled) -> Html:
    """Draw the whole pass as one picture, for more positions than the table below has rows."""
    picture = pictures.whole_picture(pooled, site_of(stop.site))
    across = features_in(pooled.shape)
    height = min(256, max(64, 3 * picture.cells.shape[0]))
    alt = f"activation at {stop.site}: positions {spans(pooled.positions)} down, {plural(across, 'dimension')} across"
    return part(
        pictures.image(picture, width=640, height=height, alt=alt, most="100%"),
        legend(picture, across, read=pictures.read_of(pooled)),
        name=f"activation, {at_positions(pooled.positions)} downwards",
    )


def _positions(stop: Paused, pooled: Pooled | None, lens: Sequence[LensRow]) -> Html:
    shown = positions_shown(stop)
    measure, numbers = measured(stop)
    most = max((abs(rounded(numbers[p])) for p in shown), default=0.0) or 1.0
    looks = {row.position: row for row in lens}
    strip, below = _strip(stop, pooled, shown)
    head: list[object] = ["position", "token", measure, ""]
    depth = max((len(row.top) for row in lens), default=0)
    head += [element("th", "logit lens", scope="col", colspan=depth)] if depth else []
    rows = []
    for position in shown:
        number = rounded(numbers[position])
        row: list[object] = [position, cell_token(stop.texts[position], stop.tokens[position]), figure(number)]
        row.append(meter(abs(number) / most, GREY))
        guesses = [guess(top) for top in looks[position].top] if position in looks else []
        rows.append(row + guesses + [element("td") for _ in range(depth - len(guesses))])
    name = "the last positions of this pass" if len(stop.positions) > len(shown) else None
    return part(div("dj-rows", table(head, rows, numeric=(0, 2)), strip, style=BESIDE), below, name=name)


BESIDE: Final = "display:flex;flex-wrap:wrap;gap:4px 1em;align-items:end"


def _strip(stop: Paused, pooled: Pooled | None, shown: list[int]) -> tuple[Html | None, Html | None]:
    """Return one picture beside all rows, each row of pixels as high as a table row, or below them where the card is
    narrow; and its legend."""
    if pooled is None:
        return None, None
    picture = pictures.picture_alone(pooled, site_of(stop.site))
    across = features_in(pooled.shape)
    alt = f"activation at {stop.site}, one row a position, {plural(across, 'dimension')} across"
    height = ROW_PIXELS * len(shown)
    made = pictures.image(picture, width=STRIP_PIXELS, height=height, alt=alt, most="640px", grows=True)
    return made, legend(picture, across)


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """A snapshot with its values as numpy, positions first, and the tokens at every absolute position of the line.
    `pooled` is all of it for the pictures, where `values` are those of the last `positions` alone: none of a pattern.
    `end` is one past the last position of the pass, where that is not among `positions`; `stop` is what a pooled value
    was read from."""

    site: str
    values: NDArray[np.generic]
    axes: str
    positions: tuple[int, ...]
    dtype: str
    exactness: str
    texts: Mapping[int, str]
    session: str | None = None
    pooled: Pooled | None = None
    end: int | None = None
    stop: StopIdentity | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the whole value."""
        return self.values.shape if self.pooled is None else self.pooled.shape

    @property
    def is_pattern(self) -> bool:
        return site_of(self.site).point == "pattern" and len(self.shape) == 3

    @property
    def has_heads(self) -> bool:
        return self.axes == "T H D" and self.values.ndim == 3

    @property
    def heads(self) -> list[int]:
        """The numbers of the heads (or features) of the value: the selected ones, or all."""
        selector = site_of(self.site).selector
        return list(selector) if selector is not None else list(range(self.shape[1]))

    @property
    def line(self) -> str:
        value = f"{self.dtype} {shape(self.shape)} ({self.axes})"
        return f"{value}, {at_positions(self.all_positions)}, {self.exactness}"

    @property
    def all_positions(self) -> tuple[int, ...]:
        """The positions of the picture."""
        return self.positions if self.pooled is None else self.pooled.positions

    @property
    def key_positions(self) -> range:
        """The positions of the keys. They end at the last position of the pass; with windowed attention the first ones
        are missing."""
        end = self.all_positions[-1] + 1 if self.end is None else self.end
        return range(end - self.shape[-1], end)

    @property
    def attention(self) -> pictures.Attention:
        """The pattern as it is drawn."""
        return pictures.Attention.of(self.values) if self.pooled is None else pictures.Attention.pooled(self.pooled)
