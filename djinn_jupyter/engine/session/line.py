"""A line: what one `run` was asked for and how far it is. Knows when it ends; runs nothing."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass, field, replace
from typing import Final

import torch
from torch import Tensor

from djinn_jupyter.engine.forward.frame import States
from djinn_jupyter.engine.session.sampling import Sampler

STATE_PERIOD: Final = 16
GROWING_KEPT: Final = 16


@dataclass(slots=True, kw_only=True)
class Line:
    """`begins` is the number of tokens before the first new one, `fed_from` the number that were committed before the
    run. `eos` is empty when the end of text is to be ignored. `layers_run` and `passes` count the way from the run's
    beginning to where it stands: over all its stops, and going back takes them back. `drawn` holds the generator's
    state before each new token, where tokens are drawn: what going back by tokens needs. `states` are those
    beside rows at every STATE_PERIOD-th committed length, for families that have them; where they grow with the line,
    at most about GROWING_KEPT of them, the nearer to its end the denser. `log_probabilities` are
    those of the new tokens under the model's own logits, None where they were not kept."""

    begins: int
    fed_from: int
    max_new_tokens: int
    sampler: Sampler
    stop: tuple[str, ...]
    eos: frozenset[int]
    ignored_defaults: tuple[str, ...]
    layers_run: int = 0
    passes: int = 0
    drawn: list[Tensor] = field(default_factory=list)
    log_probabilities: list[float | None] = field(default_factory=list)
    states: dict[int, States] = field(default_factory=dict)

    def copy(self) -> Line:
        """The same line with books and a generator of its own."""
        generator = torch.Generator(device=self.sampler.generator.device)
        generator.set_state(self.sampler.generator.get_state())
        sampler = replace(self.sampler, generator=generator)
        return replace(
            self,
            sampler=sampler,
            drawn=list(self.drawn),
            states=dict(self.states),
            log_probabilities=list(self.log_probabilities),
        )

    def keep_states(self, length: int, states: States, needed: Container[int]) -> bool:
        """Keep the states at a committed length; whether others were dropped. All of those that grow would grow with
        the square of the line. What is at the lengths `needed` stays: the passes before cannot be run again alike."""
        self.states[length] = states
        regular = sorted(at for at in self.states if at % STATE_PERIOD == 0 and at not in needed)
        if len(regular) <= GROWING_KEPT or _nbytes(self.states[regular[0]]) == _nbytes(self.states[regular[-1]]):
            return False
        for at in regular[1:-1:2]:
            del self.states[at]
        return True

    def note_probability(self, logits_1V: Tensor, token: int, new: int) -> None:
        """The newest of `new` tokens had this probability. 25 us with 50,000 ids, 76 us with 152,000, on one core."""
        del self.log_probabilities[new - 1 :]
        self.log_probabilities += [None] * (new - 1 - len(self.log_probabilities))
        self.log_probabilities.append(float(torch.log_softmax(logits_1V[0], dim=-1)[token]))

    def probabilities_of(self, new: int) -> list[float | None]:
        """Log-probabilities of the first `new` tokens; a line of an image of an earlier version has none."""
        known = self.log_probabilities[:new]
        return known + [None] * (new - len(known))

    def new_tokens(self, tokens: list[int]) -> list[int]:
        return tokens[self.begins :]

    @property
    def stop_window(self) -> int:
        """How many last tokens can hold a stop string that the newest one completed: at least a byte each."""
        return max((len(text.encode()) for text in self.stop), default=0) + 1


def _nbytes(states: States) -> int:
    return sum(state.nbytes for state in states.values())


class LineCopies:
    """Copies each line once, so that the stops of a fork share lines as those of its parent do."""

    def __init__(self) -> None:
        self._copies: dict[int, Line] = {}

    def __call__(self, line: Line) -> Line:
        return self._copies.setdefault(id(line), line.copy())
