"""How positions are spelled for people, by the engine and by the views alike."""

from __future__ import annotations

from collections.abc import Sequence


def at_positions(positions: Sequence[int]) -> str:
    """Return `position 4`, `positions 0-4`"""
    return f"position{'' if len(positions) == 1 else 's'} {spans(positions)}"


def spans(numbers: Sequence[int]) -> str:
    """Return `0-4`, `3`, `0, 2, 5-7`: ascending runs are drawn together."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)
