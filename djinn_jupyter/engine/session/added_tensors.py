"""The bytes of tensors that clients add to an engine, in its budget. Knows no module and no adapter."""

from __future__ import annotations

from djinn_jupyter.engine.memory.budget import Budget, Part


class AddedTensors:
    """A part of the budget, by this name. It is never idle: what was added stays until it is removed."""

    def __init__(self, budget: Budget, name: str) -> None:
        self._budget, self.bytes_held = budget, 0
        budget.join(self, Part(name=name, held=lambda: self.bytes_held, idle=lambda: 0, release=lambda: 0))

    def draw(self, size: int) -> None:
        """Draw bytes for tensors that come. Raises SlabFull."""
        self._budget.take(size, by=self)
        self.bytes_held += size

    def give_back(self, size: int) -> None:
        self._budget.give_back(size)
        self.bytes_held -= size
