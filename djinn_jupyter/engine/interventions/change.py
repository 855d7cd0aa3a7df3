"""What was done to a value, noted where it happens."""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What an edit (`rule` is None) or a rule did to a value, as a person would say it. `size` is |after - before| /
    |before| of the part it touched, NaN or infinite where that was zero; a tensor while a pass is under way, so that
    nothing waits for the device, and a number once it stands still."""

    what: str
    size: Tensor | float
    rule: int | None = None

    def read(self) -> Change:
        """The same with its size as a number; waits for the device where it still is there."""
        return self if isinstance(self.size, float) else replace(self, size=float(self.size))
