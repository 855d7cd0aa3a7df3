"""The rows and columns of a value that an edit touches: taken out, put back, named. Knows neither sessions nor frames.

Shapes: part of a value [n, m, ...]: n selected positions, m selected heads or features (all without a selector).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from djinn_jupyter.errors import InvalidEdit
from djinn_jupyter.wire.positions import at_positions
from djinn_jupyter.wire.sites import Site


def rows_of(positions: Sequence[int] | None, available: range) -> list[int] | None:
    """Return the rows of absolute `positions` (negative ones count from the end of the pass); None for all rows."""
    if positions is None:
        return None
    if len(positions) > len(available):
        raise InvalidEdit(f"The stopped pass holds {_spell(available)}, and not {len(positions):,} of them.")
    rows = []
    for position in positions:
        absolute = available.stop + position if position < 0 else position
        if absolute not in available:
            raise InvalidEdit(
                f"Position {position} is not in the stopped pass, which holds "
                f"{_spell(available)}; positions before it are committed. A fork can have their keys or values edited: "
                "%djinn_fork NAME EDIT --site v.N --positions P."
            )
        rows.append(available.index(absolute))
    return rows


def _spell(positions: range) -> str:
    return f"position {positions[0]}" if len(positions) == 1 else f"positions {positions[0]} to {positions[-1]}"


def take(value: Tensor, rows: list[int] | None, selector: tuple[int, ...] | None) -> Tensor:
    """Return a copy of the selected part of a value, [n, m, ...]."""
    part = value if rows is None else value[rows]
    part = part if selector is None else part[:, list(selector)]
    return part.clone() if part.data_ptr() == value.data_ptr() else part


def put(value: Tensor, part: Tensor, rows: list[int] | None, selector: tuple[int, ...] | None) -> Tensor:
    """Return a copy of the value with the selected part replaced."""
    changed = value.clone()
    if selector is None:
        changed[slice(None) if rows is None else rows] = part
    elif rows is None:
        changed[:, list(selector)] = part
    else:
        row_index = torch.tensor(rows, device=value.device)[:, None]
        changed[row_index, torch.tensor(selector, device=value.device)[None, :]] = part
    return changed


@dataclass(frozen=True, slots=True)
class ChangeSizes:
    """|after - before| and |before| in fp32, on the device. As a float it is their quotient, NaN or infinite where
    `before` is zero; that waits for the device."""

    absolute: Tensor
    before: Tensor

    @property
    def relative(self) -> Tensor:
        return self.absolute / self.before

    def __float__(self) -> float:
        return float(self.relative)


def sizes(before: Tensor, after: Tensor) -> ChangeSizes:
    """Measure a change, without waiting for the device."""
    x, y = before.float(), after.float()  # a third of what `to(torch.float32)` takes to find nothing to do
    norm = torch.linalg.vector_norm  # Tensor.norm takes three times as long to get there
    return ChangeSizes(norm(y - x), norm(x))


def all_of(sizes: Sequence[ChangeSizes]) -> tuple[list[float], list[float]]:
    """Return the absolute and the relative sizes of several changes; waits for the device once for each of the two."""
    if not sizes:
        return [], []
    absolute, before = (
        torch.stack(several) for several in zip(*((one.absolute, one.before) for one in sizes), strict=True)
    )
    return absolute.tolist(), (absolute / before).tolist()


def spell_at(words: str, site: Site, positions: Sequence[int] | None) -> str:
    """Return the words of an edit with its place: `zero at z.5[6], position 4`; without positions it applies to every
    one of a pass."""
    where = "" if positions is None else f", {at_positions(positions)}"
    return f"{words} at {site}{where}"
