"""Encode palette images as PNG, for static HTML. Deterministic for one version of zlib; no other dependency."""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Sequence

Colour = tuple[int, int, int, int]


def encode(rows: Sequence[bytes], palette: Sequence[Colour]) -> bytes:
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
