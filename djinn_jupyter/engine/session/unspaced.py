"""Notes on tokens named without their leading space, where the text with one is another token. The engine cannot know
which was meant and reports both; it changes nothing that was asked for."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from djinn_jupyter.engine.model.loading.tokenizer import TokenText

CLEARLY = 10.0  # times as probable


def note_of(texts: TokenText, names: Iterable[str]) -> str | None:
    """Return a sentence about the first of these tokens that is more frequent with a space before it, if any."""
    for name in names:
        token, spaced = texts.token_id(name), texts.spaced(name)
        if spaced is not None and spaced < token:  # byte-pair vocabularies are ordered by frequency
            return f"{name!r} is the token without a space before it; within a text the word is mostly {' ' + name!r}."
    return None


class Unspaced:
    """Checks rows of the lens for tokens that were asked for by text."""

    def __init__(self, texts: TokenText, asked: Iterable[int | str]) -> None:
        names = [name for name in asked if isinstance(name, str)]
        pairs = [(name, texts.token_id(name), texts.spaced(name)) for name in names]
        self._pairs = [(name, token, spaced) for name, token, spaced in pairs if spaced is not None]
        self._told: dict[str, str] = {}

    def see(self, logits_TV: Tensor, positions: list[int]) -> None:
        """Note tokens whose form with a space is more than CLEARLY times as probable at the last position."""
        if not self._pairs or not positions:
            return
        chances_V = torch.softmax(logits_TV[-1].to(torch.float32), dim=-1)
        for name, token, spaced in self._pairs:
            plain, other = float(chances_V[token]), float(chances_V[spaced])
            if other > CLEARLY * plain:
                self._told[name] = (
                    f"{name!r} is the token without a space before it, with a probability of {plain:.2g} at position "
                    f"{positions[-1]}; {' ' + name!r} has {other:.2g}."
                )
            else:
                self._told.pop(name, None)

    @property
    def notes(self) -> tuple[str, ...]:
        return tuple(self._told.values())
