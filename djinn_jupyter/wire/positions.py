"""The spelling of positions for people, by the engine and by the views alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Protocol

from djinn_jupyter.wire.nouns import PassesMeant

PASSES: Final[Mapping[PassesMeant, str]] = {"prompt": "in the prompt", "new": "at new tokens"}


def at_positions(positions: Sequence[int]) -> str:
    """Return `position 4`, `positions 0-4`"""
    return f"position{'' if len(positions) == 1 else 's'} {spans(positions)}"


class Limited(Protocol):
    """A steering rule on either side of the wire."""

    @property
    def positions(self) -> tuple[int, ...] | None: ...
    @property
    def onward(self) -> int | None: ...
    @property
    def on(self) -> PassesMeant | None: ...
    @property
    def when(self) -> str | None: ...


def limits_of(rule: Limited) -> tuple[str, ...]:
    """Spell where and when a rule applies: `position 4`, `from position 5 on`, `in the prompt`, `when norm > 40`."""
    said = [] if rule.positions is None else [at_positions(rule.positions)]
    said += [] if rule.onward is None else [f"from position {rule.onward} on"]
    said += [] if rule.on is None else [PASSES[rule.on]]
    said += [] if rule.when is None else [f"when {rule.when}"]
    return tuple(said)


def spans(numbers: Sequence[int]) -> str:
    """Return `0-4`, `3`, `0, 2, 5-7`: ascending runs are drawn together."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)
