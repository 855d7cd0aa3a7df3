"""The record of one change to a value, made where the change happens."""

from __future__ import annotations

from dataclasses import dataclass, replace

from djinn_jupyter.engine.interventions.edits import ChangeSizes


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """The change of a value by an edit (`rule` is None) or a rule; `what` says it in words. `size` is |after - before|
    / |before| of the part it touched, NaN or infinite where |before| was zero: on the device while a pass is running,
    so that nothing waits for it, and a float once the pass has stopped."""

    what: str
    size: ChangeSizes | float
    rule: int | None = None

    def read(self) -> Change:
        """Return the change with its size as a float; waits for the device where the size is still there."""
        return self if isinstance(self.size, float) else replace(self, size=float(self.size))
