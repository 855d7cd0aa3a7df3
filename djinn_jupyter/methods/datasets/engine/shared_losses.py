"""The losses of many prompts in shared passes; some prompts are computed again alone.

Layers run as in a collection of the last residual; the model's own epilogue then reads each prompt's rows.
"""

from __future__ import annotations

import random
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import Final

import torch
from torch import Tensor

from djinn_jupyter.engine.requests.workspace import Reservation
from djinn_jupyter.engine.session.runtime import Runtime
from djinn_jupyter.engine.session.session import Session
from djinn_jupyter.engine.session.steps import Blocked
from djinn_jupyter.engine.wavefront.rounding import difference, rounding_of
from djinn_jupyter.methods.datasets.engine.batches import Batches, NotBatched, Prompts
from djinn_jupyter.methods.datasets.engine.fitting import FittingBatches
from djinn_jupyter.methods.datasets.engine.places import CollectedSites, values_alone
from djinn_jupyter.methods.datasets.engine.scoring import LOSS_ROWS, logits_of, loss_of

RECHECKED: Final = 4  # prompts that are computed again alone


@dataclass(slots=True)
class SharedLosses:
    """The losses of prompts, computed together; `first` is the number of the first in its list. `largest` is the
    difference of those that were computed again alone; `why_not` says why none of them is shared."""

    runtime: Runtime
    session: Session
    batches: Batches
    first: int = 0
    losses: dict[int, Tensor] = field(default_factory=dict)
    largest: float | None = None
    why_not: str | None = None

    def refuse(self, why: str) -> None:
        """Share no pass, for this reason."""
        self.why_not = why

    def compute(self, room: Reservation, prompts: Prompts, seed: int) -> Generator[Blocked | None, None, None]:
        """Compute the losses of all prompts, by number; none where they cannot share a pass."""
        forward = self.runtime.forward
        last = CollectedSites.of(self.runtime, (f"resid_post.{forward.layers - 1}",))
        self.why_not = yield from self.batches.why_not(self._alone, last)
        if self.why_not is not None:
            return
        logits = LOSS_ROWS * self.runtime.description.vocab_size * torch.float32.itemsize
        fitting = FittingBatches(self.batches, prompts, room, beside=2 * logits)
        while (taken := (yield from fitting.take())) is not None:
            batch, _ = taken
            together = [prompts[number] for number in batch]
            try:
                yield from self._batch(batch, together, last)
            except NotBatched as error:
                self._forget(str(error))
                return
            finally:
                room.give_back(room.held)
        yield from self._recheck(prompts, seed)

    def _batch(
        self, numbers: Sequence[int], prompts: Prompts, last: CollectedSites
    ) -> Generator[Blocked | None, None, None]:
        found: dict[str, Tensor] = {}
        for found_or_none in self.batches.run(prompts, [None] * len(prompts), last, None):
            found = found_or_none or found
            yield None
        [rows_RD] = found.values()
        parts = rows_RD.split([len(tokens) for tokens in prompts])
        for number, tokens, rows_TD in zip(numbers, prompts, parts, strict=True):
            pieces = []
            for first in range(0, max(len(tokens) - 1, 1), LOSS_ROWS):
                end = min(first + LOSS_ROWS, len(tokens) - 1)
                logits = self.runtime.forward.shared_lens(rows_TD[first : end + 1])
                pieces.append(loss_of(logits, tokens[first : end + 1]))
                yield None
            self.losses[number] = torch.cat(pieces)

    def _recheck(self, prompts: Prompts, seed: int) -> Generator[Blocked | None, None, None]:
        """Compute some prompts again alone; their losses replace the others. Where one differs by more than rounding,
        none of those computed together is kept."""
        with_losses = [number for number, tokens in enumerate(prompts) if len(tokens) > 1]
        for number in random.Random(seed).sample(with_losses, min(RECHECKED, len(with_losses))):
            logits_TV = yield from logits_of(self.runtime, self.session, prompts[number], ())
            exact = loss_of(logits_TV, prompts[number])
            apart = float(difference(self.losses[number], exact).abs().max())
            self.largest = apart if self.largest is None else max(self.largest, apart)
            if apart > self._tolerance(logits_TV):
                self._forget(
                    f"prompt {self.first + number} (counted from 0), computed with others, differed from the same "
                    f"computed alone by up to {apart:.2g}, more than rounding"
                )
                return
            self.losses[number] = exact
            yield None

    def _tolerance(self, logits_TV: Tensor) -> float:
        """Return by how much a loss may differ, by the largest of these logits that is finite: some heads give tokens
        that are never meant -inf."""
        share = rounding_of(self.runtime.forward.model.dtype, self.runtime.forward.layers)
        return 2 * share * max(1.0, float(torch.where(logits_TV.isfinite(), logits_TV, 0.0).abs().max()))

    def _forget(self, why: str) -> None:
        """Keep no loss that was computed with others, for this reason."""
        self.losses.clear()
        self.largest, self.why_not = None, why

    def _alone(
        self, tokens: tuple[int, ...], places: CollectedSites
    ) -> Generator[Blocked | None, None, dict[str, Tensor]]:
        return (yield from values_alone(self.runtime, self.session, tokens, places))
