"""The progress of a large message that crosses a line in pieces. Values only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from djinn_jupyter.amounts import spell_bytes

Way = Literal["received", "sent"]
_WORDS: Final = {"received": ("receiving", "come"), "sent": ("sending", "gone")}


@dataclass(frozen=True, slots=True, kw_only=True)
class SoFar:
    """`done` of `total` bytes, as they are when they are unpacked; `carried` are those that crossed the line."""

    way: Way
    done: int
    total: int
    carried: int
    seconds: float

    @property
    def share(self) -> float:
        return self.done / self.total

    @property
    def ended(self) -> str:
        """The line that stays when it is over."""
        if self.done < self.total:
            return f"given up: {spell_bytes(self.done)} of {spell_bytes(self.total)} had {_WORDS[self.way][1]}"
        return f"{self.way} {spell_bytes(self.total)} in {self.seconds:.0f} s, {self._rate} over the line"

    @property
    def _rate(self) -> str:
        return f"{spell_bytes(self.carried / self.seconds)}/s"

    def __str__(self) -> str:
        said = f"{_WORDS[self.way][0]} {spell_bytes(self.done)} of {spell_bytes(self.total)}"
        if not self.done:
            return said
        left = self.seconds * (self.total - self.done) / self.done
        return f"{said}, {self._rate}, about {left:.0f} s left"
