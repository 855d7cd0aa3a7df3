"""Pictures hold the values they claim to: they are decoded and compared."""

from __future__ import annotations

import base64
import struct
import zlib

import numpy as np
import pytest

from djinn_jupyter.widgets import pictures
from djinn_jupyter.widgets.pictures import data_uri, encode


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


def test_a_few_huge_values_do_not_drown_the_rest() -> None:
    values = np.random.default_rng(0).normal(size=(20, 128)).astype(np.float32)
    values[0, 0] = 1000
    assert pictures.signed(values).limit < 10


def test_pooling_keeps_the_strongest_entry_with_its_sign() -> None:
    values = np.zeros((300, 700), np.float32)
    values[299, 699], values[0, 3] = -5, 2
    cells, rows, columns = pictures.pooled(values)
    assert cells.shape == (100, 117)
    assert (rows, columns) == (3, 6)
    assert cells[99, 116] == -5
    assert cells[0, 0] == 2


def test_small_values_are_not_pooled() -> None:
    values = np.arange(6, dtype=np.float32).reshape(2, 3)
    cells, rows, columns = pictures.pooled(values)
    assert (cells == values).all()
    assert rows == columns == 1


def test_shares_run_from_dark_to_bright() -> None:
    rows, palette = decode(pictures.shares(np.array([[0.0, 1.0]], np.float32)).image())
    assert tuple(palette[rows[0, 0]]) == (68, 1, 84, 255)
    assert tuple(palette[rows[0, 1]]) == (253, 231, 37, 255)


@pytest.mark.parametrize("shape", [(3,), (3, 4), (3, 2, 4)])
def test_positions_come_first_and_the_rest_lies_behind(shape: tuple[int, ...]) -> None:
    assert pictures.as_rows(np.ones(shape)).shape == (3, int(np.prod(shape[1:])))


def test_bfloat16_nan_and_constant_values_can_be_drawn() -> None:
    import ml_dtypes

    decode(pictures.signed(np.ones((2, 3)).astype(ml_dtypes.bfloat16)).image())
    decode(pictures.signed(np.zeros((2, 3), np.float32)).image())
    decode(pictures.signed(np.array([[np.nan, np.inf, 1.0]], np.float32)).image())


def test_a_picture_without_pixels_or_with_too_many_colours_is_refused() -> None:
    with pytest.raises(ValueError, match="rows of one length"):
        encode([b"\0\0", b"\0"], [(0, 0, 0, 0)])
    with pytest.raises(ValueError, match="1 to 256 colours"):
        encode([b"\0"], [(0, 0, 0, 0)] * 257)
    assert data_uri(b"").startswith("data:image/png;base64,")
