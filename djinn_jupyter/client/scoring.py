"""Loss and perplexity of prompts, and the logits of all positions of a line."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final

from djinn_jupyter.client.arrays import to_numpy
from djinn_jupyter.client.connection.channel import Channel, ask_for
from djinn_jupyter.client.prompts import given_prompts, tokenized
from djinn_jupyter.client.temporary import temporary_session
from djinn_jupyter.errors import UsageError
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.replies import Scored

if TYPE_CHECKING:
    import numpy as np

ASKED_TOKENS: Final = 2**14  # of one request, so that an interrupt loses little


class Losses:
    """The loss of each token of some prompts but their first: its negative log-likelihood, in nats.

    `loss` is the mean over all of them and `perplexity` its exponential; losses[i] are those of prompt i, fp32."""

    def __init__(self, tokens: Iterable[tuple[int, ...]], values: np.ndarray[Any, Any]) -> None:
        self.tokens, self.values = tuple(tokens), values
        self._starts = [0, *accumulate(len(prompt) - 1 for prompt in self.tokens)]

    @property
    def loss(self) -> float:
        return float(self.values.mean(dtype="float64"))

    @property
    def perplexity(self) -> float:
        """Infinite where it is larger than the largest number."""
        try:
            return math.exp(self.loss)
        except OverflowError:
            return math.inf

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, prompt: int) -> np.ndarray[Any, Any]:
        at = range(len(self))[prompt]
        part: np.ndarray[Any, Any] = self.values[self._starts[at] : self._starts[at + 1]]
        return part

    def __iter__(self) -> Iterator[np.ndarray[Any, Any]]:
        return (self[prompt] for prompt in range(len(self)))

    def __repr__(self) -> str:
        of = f"{len(self)} prompts" if len(self) > 1 else "1 prompt"
        return f"Loss {self.loss:.4f} a token, perplexity {self.perplexity:.4g}: {len(self.values)} tokens of {of}"


def loss_of(channel: Channel, prompts: object, rules_of: str | None = None) -> Losses:
    """Return the losses of prompts, each in a pass of its own, under the rules of the session `rules_of`."""
    import numpy as np

    tokens: list[tuple[int, ...]] = []
    values: list[np.ndarray[Any, Any]] = []
    parts = _parts(tokenized(channel, given_prompts(prompts)))
    part = next(parts, None)
    if part is None:
        raise UsageError("There are no prompts to measure the loss of.")
    with temporary_session(channel, "score") as session:
        while part is not None:
            request = ask.Score(session=session, prompts=part, rules_of=rules_of, first=len(tokens))
            reply = ask_for(channel, request, Scored)
            tokens += reply.tokens
            values.append(to_numpy(reply.values))
            part = next(parts, None)
    return Losses(tokens, np.concatenate(values))


class ScoredSession:
    """The verbs of a session that run its line, or another text, in a pass on the side."""

    def __init__(self, channel: Channel, name: str) -> None:
        self._channel, self.name = channel, name

    def loss(self, prompts: object = None) -> Losses:
        """Return the loss of each token of the present line, or of other prompts (as in `engine.loss`, or one text),
        in a pass of their own under this session's steering rules."""
        if prompts is not None:
            return loss_of(self._channel, [prompts] if isinstance(prompts, str) else prompts, rules_of=self.name)
        scored = _scored_line(self._channel, self.name, "loss")
        _require_two(scored.tokens[0], 0)
        return Losses(scored.tokens, to_numpy(scored.values))

    def all_logits(self) -> np.ndarray[Any, Any]:
        """Return the logits, fp32 [positions, vocabulary], of the present line in one pass over its tokens, under its
        steering rules. UsageError where edits were made at its stops: they are no part of that pass."""
        return to_numpy(_scored_line(self._channel, self.name, "logits").values)


def _scored_line(channel: Channel, line: str, what: Any) -> Scored:
    with temporary_session(channel, "score") as session:
        return ask_for(channel, ask.Score(session=session, prompts=(line,), what=what, rules_of=line), Scored)


def _parts(prompts: Iterable[tuple[int, ...]]) -> Iterator[tuple[tuple[int, ...], ...]]:
    here: list[tuple[int, ...]] = []
    for number, prompt in enumerate(prompts):
        _require_two(prompt, number)
        if here and sum(map(len, here)) + len(prompt) > ASKED_TOKENS:
            yield tuple(here)
            here = []
        here.append(prompt)
    if here:
        yield tuple(here)


def _require_two(tokens: tuple[int, ...], number: int) -> None:
    if len(tokens) < 2:
        raise UsageError(
            f"Prompt {number} (counted from 0) has one token, and a loss is of those that follow; leave it out."
        )
