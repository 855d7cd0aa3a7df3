"""Pictures of values: their pixels and their legends."""

from __future__ import annotations

import base64
import dataclasses
import struct
import zlib

import numpy as np
import pytest

from djinn_jupyter.widgets import pictures, views
from djinn_jupyter.widgets.pictures import data_uri, encode, signed
from djinn_jupyter.widgets.spelling import figure
from djinn_jupyter.widgets.stop import MOVED_ON, legend
from djinn_jupyter.wire.arrays import Array
from djinn_jupyter.wire.nouns import StopIdentity
from tests.widgets import cards, samples
from tests.widgets.pooled import pooled


def decode(uri: str) -> tuple[np.ndarray, np.ndarray]:
    """(indices, palette with alpha) of a palette PNG, checking every chunk's sum."""
    data = base64.b64decode(uri.removeprefix("data:image/png;base64,"))
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    chunks: dict[bytes, bytes] = {}
    at = 8
    while at < len(data):
        (length,) = struct.unpack(">I", data[at : at + 4])
        name, content = data[at + 4 : at + 8], data[at + 8 : at + 8 + length]
        assert struct.unpack(">I", data[at + 8 + length : at + 12 + length])[0] == zlib.crc32(name + content)
        chunks[name] = content
        at += 12 + length
    width, height = struct.unpack(">II", chunks[b"IHDR"][:8])
    rows = np.frombuffer(zlib.decompress(chunks[b"IDAT"]), np.uint8).reshape(height, width + 1)[:, 1:]
    colours = np.frombuffer(chunks[b"PLTE"], np.uint8).reshape(-1, 3)
    alphas = np.frombuffer(chunks[b"tRNS"], np.uint8)
    return rows, np.concatenate([colours, alphas[:, None]], axis=1)


def test_zero_takes_the_colour_of_the_page_and_signs_have_their_own() -> None:
    picture = pictures.signed(np.array([[-2.0, 0.0, 2.0]], np.float32))
    rows, palette = decode(picture.image())
    below, zero, above = (palette[i] for i in rows[0])
    assert zero[3] == 0
    assert tuple(below[:3]) == pictures.BELOW
    assert tuple(above[:3]) == pictures.ABOVE
    assert below[3] == above[3] == 255
    values = np.random.default_rng(0).normal(size=(20, 128)).astype(np.float32)
    values[0, 0] = 1000
    assert pictures.signed(values).limit < 10
    rows, palette = decode(pictures.shares(np.array([[0.0, 1.0]], np.float32)).image())
    assert tuple(palette[rows[0, 0]]) == (68, 1, 84, 255)
    assert tuple(palette[rows[0, 1]]) == (253, 231, 37, 255)
    import ml_dtypes

    decode(pictures.signed(np.ones((2, 3)).astype(ml_dtypes.bfloat16)).image())
    decode(pictures.signed(np.zeros((2, 3), np.float32)).image())
    decode(pictures.signed(np.array([[np.nan, np.inf, 1.0]], np.float32)).image())


def test_pooling_keeps_the_strongest_entry_with_its_sign() -> None:
    values = np.zeros((300, 700), np.float32)
    values[299, 699], values[0, 3] = -5, 2
    cells, rows, columns = pictures.pooled(values)
    assert cells.shape == (100, 117)
    assert (rows, columns) == (3, 6)
    assert cells[99, 116] == -5
    assert cells[0, 0] == 2
    values = np.arange(6, dtype=np.float32).reshape(2, 3)
    cells, rows, columns = pictures.pooled(values)
    assert (cells == values).all()
    assert rows == columns == 1
    for shape in [(3,), (3, 4), (3, 2, 4)]:
        assert pictures.as_rows(np.ones(shape)).shape == (3, int(np.prod(shape[1:])))


def test_a_picture_without_pixels_or_with_too_many_colours_is_refused() -> None:
    with pytest.raises(ValueError, match="rows of one length"):
        encode([b"\0\0", b"\0"], [(0, 0, 0, 0)])
    with pytest.raises(ValueError, match="1 to 256 colours"):
        encode([b"\0"], [(0, 0, 0, 0)] * 257)
    assert data_uri(b"").startswith("data:image/png;base64,")


def long_card(**changes: object) -> str:
    """The card of a stop of 300 positions."""
    texts = tuple(f" {number}" for number in range(300))
    stop = samples.paused(texts=texts)
    drawn = pooled(samples.values(300, samples.WIDTH), alone=range(290, 300), **changes)
    return views.stop_view(stop, pooled=drawn).html


def test_a_pooled_picture_says_what_it_was_read_from_and_what_a_pixel_is() -> None:
    html = long_card(lowest=-12.34, highest=23.45)
    assert "activation, positions 0-299 downwards" in html
    assert "256 dimensions; a pixel is the largest of 2 dimensions by 3 positions" in html
    assert "read from float32 [300, 256] between -12.3 and 23.4<" in html
    drawn = pooled(samples.values(300, samples.WIDTH)).cells
    half = Array(dtype="bfloat16", shape=drawn.shape, data=bytes(len(drawn.data) // 2))
    html = long_card(cells=half, lowest=None, highest=None, not_finite=3)
    assert "read from float32 [300, 256], 3 not finite; pixels rounded to bfloat16<" in html
    html = views.stop_view(samples.paused(), pooled=pooled(samples.values(5, 100))).html
    assert "read from" not in html
    assert "a pixel is" not in html
    html = long_card(stop=StopIdentity(session="work/paris.ipynb", number=1, edition=2))
    assert MOVED_ON in html
    assert "<img" not in html
    for across, said in [(1, " 1 dimension<"), (2, " 2 dimensions<")]:
        values = np.ones((3, across), np.float32)
        assert said in str(legend(signed(values, 128), across))


def test_the_card_of_an_inspection_says_of_how_many_positions_its_rows_are_the_last() -> None:
    values = samples.values(300, samples.WIDTH)
    drawn = pooled(values)
    look = dataclasses.replace(
        cards.look("mlp_out.2", values[-16:]), positions=tuple(range(284, 300)), texts={}, pooled=drawn
    )
    view = views.snapshot_view(look)
    assert "the last 16 of 300 positions" in view.html
    assert f"read from float32 [300, 256] between {figure(drawn.lowest)} and {figure(drawn.highest)}" in view.html
    assert "mlp_out.2: float32 [300, 256] (T D), positions 0-299, exact" in view.plain
    assert view.html.count("<img") == 1
