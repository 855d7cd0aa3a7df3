"""Encode palette images as PNG, for static HTML. Deterministic for one version of zlib; no other dependency."""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from djinn_jupyter.api.arrays import shared_numpy
from djinn_jupyter.api.stops import PatternCells
from djinn_jupyter.widgets.html import Html, element, small
from djinn_jupyter.widgets.spelling import figure, shape
from djinn_jupyter.wire.arrays import Array
from djinn_jupyter.wire.readings import Pooled, PooledHeads
from djinn_jupyter.wire.sites import Site

Colour = tuple[int, int, int]


def encode(rows: Sequence[bytes], palette: Sequence[tuple[int, int, int, int]]) -> bytes:
    """Encode an 8-bit palette image: each row is a bytes of indices, each colour red, green, blue, alpha. ValueError
    for rows that are empty or of unequal length."""
    width = len(rows[0]) if rows else 0
    if width == 0 or any(len(row) != width for row in rows):
        raise ValueError("a picture needs rows of one length, at least one pixel")
    if not 0 < len(palette) <= 256:
        raise ValueError("a palette has 1 to 256 colours")
    header = struct.pack(">IIBBBBB", width, len(rows), 8, 3, 0, 0, 0)
    colours = b"".join(bytes(c[:3]) for c in palette)
    alphas = bytes(c[3] for c in palette)
    pixels = zlib.compress(b"".join(b"\0" + row for row in rows), 9)
    parts = ((b"IHDR", header), (b"PLTE", colours), (b"tRNS", alphas), (b"IDAT", pixels), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(name, content) for name, content in parts)


def data_uri(image: bytes) -> str:
    return "data:image/png;base64," + base64.b64encode(image).decode()


def _chunk(name: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))


# Values as pictures: pooled to at most 128 x 128, with colours for both themes and for colour-blind readers. Signed
# values: orange above zero, blue below, and zero is transparent, so it takes the colour of the page. Shares in [0, 1]:
# viridis. Both scales are readable with every common colour blindness.

MAX_SIDE: Final = 128
LEVELS: Final = 63  # odd: zero has a level of its own
CLIP_PERCENTILE: Final = 99.5
ABOVE: Final = (224, 108, 40)
BELOW: Final = (46, 122, 214)
VIRIDIS: Final = (
    (68, 1, 84),
    (71, 44, 122),
    (59, 81, 139),
    (44, 113, 142),
    (33, 144, 141),
    (39, 173, 129),
    (92, 200, 99),
    (170, 220, 50),
    (253, 231, 37),
)
RAMPS: Final = {"signed": "#2e7ad6,#0000,#e06c28", "share": "#440154,#3b518b,#21908d,#5cc863,#fde725"}
Pixels = NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """A pooled picture: `cells` as drawn, the value `limit` at full colour, and the rows and columns pooled in a
    cell."""

    cells: Pixels
    limit: float
    rows_per_cell: int
    columns_per_cell: int
    scale: Literal["signed", "share"]

    def image(self) -> str:
        """Return the picture as a data URI."""
        if self.scale == "signed":
            levels = np.rint((self.cells / self.limit).clip(-1, 1) * (LEVELS // 2)) + LEVELS // 2
            middle = LEVELS // 2
            sides = ((i - middle) / middle for i in range(LEVELS))
            palette = [(*(ABOVE if side > 0 else BELOW), round(255 * abs(side) ** 0.8)) for side in sides]
        else:
            levels = np.rint((self.cells / self.limit).clip(0, 1) * (LEVELS - 1))
            palette = [(*share_colour(i / (LEVELS - 1)), 255) for i in range(LEVELS)]
        return data_uri(encode([row.tobytes() for row in levels.astype(np.uint8)], palette))


def as_rows(values: NDArray[np.generic]) -> Pixels:
    """Return float32 [positions, all other axes flattened], with NaN as 0 and infinities clipped to finite values."""
    flat: Pixels = np.asarray(values).astype(np.float32).reshape(values.shape[0] if values.ndim else 1, -1)
    largest = np.finfo(np.float32).max
    return np.where(np.isnan(flat), np.float32(0), flat).clip(-largest, largest)


def pooled(values: Pixels, rows: int = MAX_SIDE, columns: int = MAX_SIDE) -> tuple[Pixels, int, int]:
    """Pool equal blocks to their entry of largest magnitude, of a number and its opposite the positive one, as the
    engine does; return it with the rows and columns of a block."""
    row_block = -(-values.shape[0] // rows)
    column_block = -(-values.shape[1] // columns)
    if row_block == column_block == 1:
        return values, 1, 1
    padding = ((0, -values.shape[0] % row_block), (0, -values.shape[1] % column_block))
    padded = np.pad(values, padding)
    blocks = padded.reshape(padded.shape[0] // row_block, row_block, padded.shape[1] // column_block, column_block)
    high, low = blocks.max(axis=(1, 3)), blocks.min(axis=(1, 3))
    return np.where(high >= -low, high, low), row_block, column_block


def signed(values: NDArray[np.generic], rows: int = MAX_SIDE, columns: int = MAX_SIDE) -> Picture:
    """Return a picture of signed values, at full colour from the 99.5th percentile of magnitudes on."""
    return signed_cells(*pooled(as_rows(values), rows, columns))


def signed_cells(cells: Pixels, row_block: int, column_block: int) -> Picture:
    """Return the same picture of cells that are pooled already."""
    limit = float(np.percentile(np.abs(cells), CLIP_PERCENTILE)) or float(np.abs(cells).max()) or 1.0
    return Picture(cells=cells, limit=limit, rows_per_cell=row_block, columns_per_cell=column_block, scale="signed")


def shares(values: NDArray[np.generic], rows: int = MAX_SIDE, columns: int = MAX_SIDE) -> Picture:
    """Return a picture of values between 0 and 1, such as attention weights."""
    return share_cells(*pooled(as_rows(values), rows, columns))


def share_cells(cells: Pixels, row_block: int, column_block: int) -> Picture:
    """Return the same picture of cells that are pooled already."""
    return Picture(cells=cells, limit=1.0, rows_per_cell=row_block, columns_per_cell=column_block, scale="share")


def share_colour(share: float) -> Colour:
    """Return the colour of a value between 0 and 1."""
    place = share * (len(VIRIDIS) - 1)
    low = min(int(place), len(VIRIDIS) - 2)
    red, green, blue = (round(a + (b - a) * (place - low)) for a, b in zip(VIRIDIS[low], VIRIDIS[low + 1], strict=True))
    return red, green, blue


def background(colour: Colour, opacity: float) -> str:
    """Return the style of a text or a cell on this colour."""
    return f"background:#{bytes((*colour, round(255 * opacity))).hex()}"


SHARP: Final = "outline:1px solid #8885;image-rendering:pixelated;"


def image(picture: Picture, *, width: int, height: int, alt: str, most: str = "none", grows: bool = False) -> Html:
    """Return the picture as an <img> of a size in CSS pixels, its cells kept sharp. It is at `most` that wide, and
    as wide as there is room where it `grows`."""
    size = f"max-width:{most};{'flex:1 0' if grows else 'width:'} {width}px;height:{height}px"
    return element("img", src=picture.image(), width=width, height=height, alt=alt, style=f"{SHARP}{size}")


def scale_legend(of: str, low: str = "0", high: str = "1", scale: Literal["signed", "share"] = "share") -> Html:
    """Draw a scale of colours with its ends, and what it is `of`."""
    ramp = element("u", style=f"background:linear-gradient(90deg,{RAMPS[scale]})")
    return element("div", small(low), " ", ramp, " ", small(f"{high} \u00b7 {of}"))


def whole_picture(pooled: Pooled, site: Site) -> Picture:
    """Return the picture of all positions that were read."""
    return _drawn(pooled, site, pooled.cells, pooled.rows_per_cell)


def signed_picture(pooled: Pooled) -> Picture:
    """Return the same picture in colours of signed numbers, whatever the site is."""
    return signed_cells(as_rows(shared_numpy(pooled.cells)), pooled.rows_per_cell, pooled.columns_per_cell)


def picture_alone(pooled: Pooled, site: Site) -> Picture:
    """Return the picture of the positions that were asked for alone; of all where each has a row already."""
    return whole_picture(pooled, site) if pooled.alone is None else _drawn(pooled, site, pooled.alone, 1)


def _drawn(pooled: Pooled, site: Site, cells: Array, rows_per_cell: int) -> Picture:
    of_cells = share_cells if site.point == "pattern" else signed_cells
    return of_cells(as_rows(shared_numpy(cells)), rows_per_cell, pooled.columns_per_cell)


def read_of(pooled: Pooled | None) -> str | None:
    """Spell what a pooled picture was read from: the value, its range, and how the pixels differ from it. None where
    each number has a pixel."""
    return None if pooled is None else _read_of(pooled, pooled)


def read_of_heads(pooled: Pooled | None) -> str | None:
    """Spell the same for the pictures of single heads."""
    return None if pooled is None or pooled.heads is None else _read_of(pooled, pooled.heads)


def _read_of(pooled: Pooled, drawn: Pooled | PooledHeads) -> str | None:
    if drawn.rows_per_cell == drawn.columns_per_cell == 1:
        return None
    read = f"read from {pooled.dtype} {shape(pooled.shape)}"
    if pooled.lowest is not None and pooled.highest is not None:
        read += f" between {figure(pooled.lowest)} and {figure(pooled.highest)}"
    if pooled.not_finite:
        read += f", {pooled.not_finite:,} not finite"
    return read if drawn.cells.dtype == pooled.dtype else f"{read}; pixels rounded to {drawn.cells.dtype}"


HEADS_SHOWN: Final = 16
STRONGEST: Final = 3
QUERIES: Final = 16
CELLS: Final = 2**17  # 8 heads have 128 a side, as many as a picture has pixels
PATTERN_CELLS: Final = PatternCells(heads=HEADS_SHOWN, cells=CELLS, strongest=STRONGEST, queries=QUERIES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """`cells` are [heads, rows, columns] of the first heads, each pooled alone. `places` are the indices of the keys
    with the largest weights, `weights` those, both [queries, heads, entries] of the last queries; the largest are
    first."""

    cells: Pixels
    rows_per_cell: int
    columns_per_cell: int
    places: NDArray[np.generic]
    weights: NDArray[np.generic]

    @classmethod
    def of(cls, values: NDArray[np.generic]) -> Attention:
        """Return the drawing of a whole pattern [queries, heads, keys]."""
        heads = [pooled(as_rows(values[:, head])) for head in range(min(values.shape[1], HEADS_SHOWN))]
        late = np.asarray(values[-QUERIES:], dtype=np.float32)
        places = np.argsort(-late, axis=-1, kind="stable")[..., :STRONGEST]
        return cls(
            cells=np.stack([cells for cells, _, _ in heads]),
            rows_per_cell=heads[0][1],
            columns_per_cell=heads[0][2],
            places=places,
            weights=np.take_along_axis(late, places, axis=-1),
        )

    @classmethod
    def pooled(cls, read: Pooled) -> Attention:
        """Return the drawing of what the engine pooled."""
        assert read.heads is not None
        assert read.strongest is not None
        cells = shared_numpy(read.heads.cells)
        return cls(
            cells=as_rows(cells).reshape(cells.shape),
            rows_per_cell=read.heads.rows_per_cell,
            columns_per_cell=read.heads.columns_per_cell,
            places=shared_numpy(read.strongest.places),
            weights=shared_numpy(read.strongest.values),
        )

    @property
    def is_whole(self) -> bool:
        """True where each weight has a cell of its own."""
        return self.rows_per_cell == self.columns_per_cell == 1

    def picture(self, index: int) -> Picture:
        """Return the picture of a head."""
        return share_cells(self.cells[index], self.rows_per_cell, self.columns_per_cell)

    def strongest(self, query: int, index: int) -> list[tuple[int, float]]:
        """Return (index of the key, weight) of a head at one of the last queries, the largest weight first."""
        found = zip(self.places[query, index], self.weights[query, index], strict=True)
        return [(int(place), float(weight)) for place, weight in found]
