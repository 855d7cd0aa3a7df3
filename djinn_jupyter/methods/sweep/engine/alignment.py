"""The positions of a line that a sweep edits, and those of the clean line that correspond to them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from djinn_jupyter.engine.model.loading.tokenizer import TokenText
from djinn_jupyter.errors import UsageError
from djinn_jupyter.methods.sweep.request import NamedPosition

TOLD = 24


@dataclass(frozen=True, kw_only=True)
class SweptLine:
    """The tokens of a line, under the name that refusals give it."""

    name: str
    tokens: tuple[int, ...]
    tokenizer: TokenText

    def positions_of(self, named: NamedPosition) -> tuple[int, ...]:
        """Return the position of this number (negative ones count from the end), or of all tokens that read this text,
        but for surrounding spaces where none is exactly so. Raises UsageError where there is none."""
        length = len(self.tokens)
        if isinstance(named, int):
            if not -length <= named < length:
                raise UsageError(f"Position {named} is not in the {self.name}, which has {length} tokens.")
            return (named % length,)
        found = self._at_text.get(named) or self._at_bare_text.get(named.strip())
        if found is None:
            there = ", ".join(map(repr, self.texts[-TOLD:]))
            raise UsageError(f"No token of the {self.name} reads {named!r}. Its tokens are: {there}.")
        return found

    @cached_property
    def texts(self) -> tuple[str, ...]:
        return tuple(self.tokenizer.text_of(token) for token in self.tokens)

    @cached_property
    def _at_text(self) -> dict[str, tuple[int, ...]]:
        return _positions_by(self.texts)

    @cached_property
    def _at_bare_text(self) -> dict[str, tuple[int, ...]]:
        return _positions_by(text.strip() for text in self.texts)


def _positions_by(texts: Iterable[str]) -> dict[str, tuple[int, ...]]:
    """Return the positions at which each text stands."""
    found: dict[str, list[int]] = defaultdict(list)
    for at, text in enumerate(texts):
        found[text].append(at)
    return {text: tuple(positions) for text, positions in found.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Alignment:
    """`rows` are the positions of the corrupted line that are edited, None for all; `others` those of the clean line
    that correspond to them."""

    rows: tuple[int, ...] | None = None
    others: tuple[int, ...] | None = None

    def of_clean(self, rows: tuple[int, ...] | None) -> tuple[int, ...] | None:
        """Return the positions of the clean line that correspond to some of the corrupted line's."""
        if rows is None or self.rows is None or self.others is None:
            return rows
        corresponding = dict(zip(self.rows, self.others, strict=True))
        return tuple(corresponding[row] for row in rows)


def chosen_positions(line: SweptLine, named: Sequence[NamedPosition]) -> Alignment:
    """Return the positions that are named, each once, in the order of the line; all where none is."""
    if not named:
        return Alignment()
    return Alignment(rows=tuple(sorted({at for one in dict.fromkeys(named) for at in line.positions_of(one)})))


def aligned(corrupted: SweptLine, clean: SweptLine, named: Sequence[tuple[NamedPosition, NamedPosition]]) -> Alignment:
    """Return the positions that correspond by these names, in the order of the corrupted line. Raises UsageError."""
    found: dict[int, int] = {}
    for one, other in dict.fromkeys(named):
        rows, others = corrupted.positions_of(one), clean.positions_of(other)
        if len(rows) != len(others):
            raise UsageError(
                f"{one!r} stands at {len(rows)} positions of the corrupted line, and {other!r} at {len(others)} of the "
                "clean one; name them by number."
            )
        for row, at in zip(rows, others, strict=True):
            if found.setdefault(row, at) != at:
                raise UsageError(f"Position {row} of the corrupted line is aligned with {found[row]} and with {at}.")
    rows = tuple(sorted(found))
    return Alignment(rows=rows, others=tuple(found[row] for row in rows))
