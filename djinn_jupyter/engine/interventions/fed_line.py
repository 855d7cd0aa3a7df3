"""The line of a run as it was fed, pass by pass: from it the same values can be computed again."""

from __future__ import annotations

from dataclasses import dataclass

from djinn_jupyter.engine.interventions.steering import Rule


@dataclass(frozen=True, slots=True, kw_only=True)
class FedPasses:
    """Positions [start, end) of a line that were fed `each` at a time under these rules."""

    start: int
    end: int
    each: int
    rules: tuple[Rule, ...] = ()

    def has_pass(self, positions: tuple[int, ...]) -> bool:
        """True where these are the last positions of one of the passes: a site may have no others."""
        last = positions[-1] + 1
        begins = self.start + (last - 1 - self.start) // self.each * self.each
        return self.start < last <= self.end and last == min(begins + self.each, self.end) and positions[0] >= begins


@dataclass(frozen=True, slots=True, kw_only=True)
class FedLine:
    """The `tokens` of a line that were fed, in these passes. `unmade` says why feeding them again makes other values;
    it is empty where it makes the same."""

    tokens: tuple[int, ...]
    passes: tuple[FedPasses, ...]
    unmade: str = ""

    def has_pass(self, positions: tuple[int, ...]) -> bool:
        """True where a pass of the line had these positions, or these as its last."""
        return any(one.has_pass(positions) for one in self.passes)
