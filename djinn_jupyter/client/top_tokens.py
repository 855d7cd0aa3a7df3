"""The top of a distribution over the next token, spelled."""

from __future__ import annotations

from djinn_jupyter.wire.nouns import TopToken


def spell_top(top: tuple[TopToken, ...]) -> str:
    return "  ".join(f"{entry.text!r} {entry.probability:.3f}" for entry in top) or "-"
