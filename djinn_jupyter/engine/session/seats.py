"""A run's place among those that share passes, and how a shared pass is driven. Knows no pages but those of a seat."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass

from torch import Tensor

from djinn_jupyter.engine.passes.controller import Completed
from djinn_jupyter.engine.session.residence import Blocked
from djinn_jupyter.engine.session.session import Session
from djinn_jupyter.errors import SlabFull


@dataclass(slots=True, eq=False)
class Seat:
    """One run of one session, for as long as it goes on without a pass of its own. `version` is that of the plan of its
    next pass, in which nothing is to happen. `waits` while a shared pass may answer it. `difference`: of the shared row
    from the same computed again alone, where it was."""

    session: Session
    version: int = -1
    waits: bool = False
    outcome: Completed | None = None
    difference: float | None = None

    @property
    def up_to_date(self) -> bool:
        """False where a breakpoint, rule or watch of the session has changed since its plan was made."""
        return self.version == self.session.plan_version

    @property
    def open(self) -> bool:
        return self.waits and self.up_to_date

    @property
    def begins(self) -> bool:
        """True before its prompt."""
        return not self.session.cache.length

    @property
    def to_come(self) -> int:
        """The passes that its run has before it, at most: each new token but the last begins one."""
        generation = self.session.generation
        assert generation is not None
        return generation.max_new_tokens - len(generation.new_tokens(self.session.tokens))

    def allocate(self) -> bool:
        """Allocate the pages of its pending tokens. False where there are none: its own pass evicts others."""
        cache = self.session.cache
        try:
            cache.allocate(cache.length, len(self.session.tokens))
        except SlabFull:
            return False
        return True

    def take(self, logits_1V: Tensor, layers: int) -> None:
        """Take a row of shared logits as its own pass's."""
        self.outcome = Completed(logits_1TV=logits_1V[:, None].clone(), layers_run=layers)


def driven(
    step: Generator[None, None, Tensor], should_yield: Callable[[], bool]
) -> Generator[Blocked | None, None, Tensor]:
    """Run a shared pass to its end, giving way between its layers."""
    while True:
        try:
            next(step)
        except StopIteration as done:
            logits_BV: Tensor = done.value
            return logits_BV
        if should_yield():
            yield None
