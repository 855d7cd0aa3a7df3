"""What one entry into a pass may leave on the device."""

from __future__ import annotations

from djinn_jupyter.engine.memory.budget import Budget


class PassRoom:
    """Bytes that one entry into a pass is to have for what it leaves: `always` for what every pass does, `expected` for
    what one keeps that stops, until it has been found to keep more. `refused`: what was asked for last was not
    there."""

    def __init__(self, budget: Budget, owner: object, always: int, expected: int) -> None:
        self._budget, self._owner, self._always = budget, owner, always
        self.need, self.refused = always + expected, False

    def open(self) -> None:
        """Set it aside. Raises SlabFull."""
        self.refused = True
        self._budget.set_aside(self.need, by=None)
        self.refused = False

    def admit(self, kept: int) -> None:
        """Let a pass that is left keep so many bytes. The working copy that it reads stays. Raises SlabFull."""
        self.need, self.refused = max(self.need, self._always + kept), True
        self._budget.set_aside(self._always + kept, by=self._owner)
        self.refused = False
