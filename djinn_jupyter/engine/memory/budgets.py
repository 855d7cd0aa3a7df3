"""The budgets of several devices that hold one model's layers, as one budget of all. Knows no session and no tier."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch

from djinn_jupyter.engine.memory.budget import Budget, Part
from djinn_jupyter.errors import SlabFull
from djinn_jupyter.wire.holdings import BudgetStatistics, Holding


class Budgets(Budget):
    """A budget for each device, `by_device`. Pages, working copies, stops and states draw from that of their device.

    What is drawn here may come to lie on any of them (the stop that a pass may leave, the lines of a sweep), so it is
    drawn on every device in full: more than is needed, never less. Each session's pages are spread over the devices in
    the same `shares`, so the device that has least room for its share bounds what is `free` here.
    """

    def __init__(self, by_device: Mapping[torch.device, Budget], shares: Sequence[float]) -> None:
        self.by_device = dict(by_device)
        self._homes = tuple(self.by_device.values())
        self._shares = tuple(shares)
        super().__init__(sum(home.limit for home in self._homes))

    @property
    def free(self) -> int:
        return min(int(home.free / share) for home, share in zip(self._homes, self._shares, strict=True))

    @property
    def lent(self) -> int:
        return min(home.lent for home in self._homes)

    def join(self, owner: object, part: Part) -> None:
        for home in self._homes:
            home.join(owner, replace(part))

    def take(self, asked: int, *, by: object) -> None:
        drawn: list[Budget] = []
        try:
            for home in self._homes:
                home.take(asked, by=by)
                drawn.append(home)
        except SlabFull:
            for home in drawn:
                home.give_back(asked)
            raise

    def give_back(self, size: int) -> None:
        for home in self._homes:
            home.give_back(size)

    def set_aside(self, size: int, *, by: object) -> None:
        before = [home.aside for home in self._homes]
        try:
            for home in self._homes:
                home.set_aside(size, by=by)
        except SlabFull:
            for home, aside in zip(self._homes, before, strict=True):
                home.put_back(aside)
            raise

    def put_back(self, kept: int = 0) -> None:
        for home in self._homes:
            home.put_back(kept)

    @property
    def overdrawn(self) -> int:
        return max(home.overdrawn for home in self._homes)

    def relieve(self) -> int:
        return max(home.relieve() for home in self._homes)

    def held(self) -> dict[str, int]:
        """Return the bytes held on all devices together, by kind of holder."""
        found: Counter[str] = Counter()
        for home in self._homes:
            found.update(home.held())
        return dict(found)

    def check(self) -> None:
        for home in self._homes:
            home.check()

    @property
    def bound(self) -> str:
        """The end of an error message: the limit of the device that has least left, and the remedy."""
        return min(self._homes, key=lambda home: home.free).bound

    def statistics(self) -> BudgetStatistics:
        return BudgetStatistics(
            bytes_limit=self.limit,
            bytes_taken=sum(home.taken for home in self._homes),
            bytes_overdrawn=self.overdrawn,
            holdings=tuple(Holding(kind=kind, bytes_held=size) for kind, size in self.held().items()),
        )


def by_device(budget: Budget, device: torch.device) -> Mapping[torch.device, Budget]:
    """Return the budget of each device: those of several, or the only one, that of `device`."""
    return budget.by_device if isinstance(budget, Budgets) else {device: budget}
