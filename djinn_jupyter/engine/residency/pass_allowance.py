"""The bytes that one entry into a pass may leave on the device."""

from __future__ import annotations

from djinn_jupyter.engine.memory.budget import Budget


class PassRoom:
    """Bytes set aside for the tensors that one entry into a pass leaves: `always` for those of every pass, `expected`
    for those of a pass that stops, until it is found to keep more. `refused`: the last request for bytes failed;
    `keeps_more`: the pass was entered with room for less than it is known to keep now."""

    def __init__(self, budget: Budget, owner: object, always: int, expected: int) -> None:
        self._budget, self._owner, self._always = budget, owner, always
        self.need, self.refused = always + expected, False
        self._entered_with = self.need

    def open(self) -> None:
        """Set the bytes aside. Raises SlabFull."""
        self.refused, self._entered_with = True, self.need
        self._budget.set_aside(self.need, by=None)
        self.refused = False

    @property
    def keeps_more(self) -> bool:
        return self.need > self._entered_with

    def admit(self, kept: int) -> None:
        """Let a pass keep `kept` bytes when it is left. The working copy that it reads stays. Raises SlabFull."""
        self.need, self.refused = max(self.need, self._always + kept), True
        self._budget.set_aside(self._always + kept, by=self._owner)
        self.refused = False
