"""Loss and perplexity of prompts, and the logits of all positions of a line."""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, Any, ClassVar, Final

from djinn_jupyter.client.arguments import checked_seed, typed
from djinn_jupyter.client.arrays import to_numpy
from djinn_jupyter.client.connection.channel import Channel, ask_for
from djinn_jupyter.client.engine import RemoteEngine
from djinn_jupyter.client.frames import in_columns
from djinn_jupyter.client.interrupts import interruptible
from djinn_jupyter.client.prompts import given_prompts, of_how_many, tokenized
from djinn_jupyter.client.reproduction import SHARED
from djinn_jupyter.client.result import Result
from djinn_jupyter.client.temporary import temporary_session
from djinn_jupyter.client.waiting import far
from djinn_jupyter.errors import DjinnError, MeasurementEnded, UsageError
from djinn_jupyter.methods.datasets.request.scoring import Score, Scored
from djinn_jupyter.wire.nouns import Mode

if TYPE_CHECKING:
    import numpy as np

ANY_SESSION: Final = "score"
ASKED_TOKENS: Final = 2**14  # of one request, so that an interrupt loses little


class Losses(Result):
    """The loss of each token of some prompts but their first: its negative log-likelihood, in nats.

    `loss` is the mean over all of them and `perplexity` its exponential; losses[i] are those of prompt i, fp32. Where
    prompts shared passes `mode` is "fast", and `largest_difference` by how much losses computed together differed from
    the same computed alone; `notes` say why none were shared."""

    ending = ".losses.djinn"
    named = "file of losses"
    _words: ClassVar[Mapping[str, str]] = {"values": "losses"}
    replies: Sequence[Scored]

    def __post_init__(self) -> None:
        import numpy as np

        replies = self.replies = tuple(self.replies)
        self.tokens = self._lines = tuple(prompt for reply in replies for prompt in reply.tokens)
        self.values = np.concatenate([to_numpy(reply.values) for reply in replies])
        self.mode: Mode = "fast" if any(reply.mode == "fast" for reply in replies) else "exact"
        differences = [d for reply in replies if (d := reply.largest_difference) is not None]
        self.largest_difference: float | None = max(differences, default=None)
        self.notes: tuple[str, ...] = tuple(dict.fromkeys(note for reply in replies for note in reply.notes))
        self._starts = [0, *accumulate(len(prompt) - 1 for prompt in self.tokens)]

    def check(self) -> None:
        """Raise ValueError where the losses are not those of the tokens."""
        if [(sum(map(len, one.tokens)) - len(one.tokens),) for one in self.replies] != [
            one.values.shape for one in self.replies
        ]:
            raise ValueError("its losses are not those of its tokens")
        if any(one.values.dtype != "float32" for one in self.replies):
            raise ValueError("its losses are not float32")

    @property
    def recipe(self) -> dict[str, Any]:
        """All that the losses follow from: as of every measurement, and the mode and the seed."""
        return {**super().recipe, "mode": self.mode, "seed": self.replies[0].seed}

    def _request_of(self, reply: Scored) -> Score:
        return Score(session=ANY_SESSION, prompts=reply.tokens, mode=reply.mode, seed=reply.seed)

    def notes_on(self, same: bool) -> Sequence[str]:
        """Return that others shared a pass, where any did."""
        return [SHARED] if self.mode == "fast" and not same else []

    def place_of(self, index: tuple[int, ...]) -> dict[str, Any]:
        """Return the prompt and the position of the token with this loss."""
        prompt = bisect.bisect_right(self._starts, index[0]) - 1
        return {"prompt": prompt, "position": index[0] - self._starts[prompt] + 1}

    @property
    def loss(self) -> float:
        """The mean loss of a token, in nats."""
        return float(self.values.mean(dtype="float64"))

    @property
    def perplexity(self) -> float:
        """The exponential of the mean loss; infinite where it is larger than the largest number."""
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

    def columns(self) -> dict[str, list[Any]]:
        """Return the losses as lists by column: the prompt, the position and the id of each token, and its loss."""
        places = [(n, at, token) for n, prompt in enumerate(self.tokens) for at, token in enumerate(prompt) if at]
        return {**in_columns(("prompt", "position", "token"), places), "loss": self.values.tolist()}

    def __repr__(self) -> str:
        of = f"{len(self)} prompts" if len(self) > 1 else "1 prompt"
        return f"Loss {self.loss:.4f} a token, perplexity {self.perplexity:.4g}: {len(self.values)} tokens of {of}"


@typed
def loss(
    engine: RemoteEngine, /, prompts: object, *, mode: Mode = "exact", seed: int = 0, adapter: str | None = None
) -> Losses:
    """Return the loss of each token of the prompts (texts, token ids or a pathlib.Path, as in `collect`), and their
    mean and perplexity. Each prompt runs in a pass of its own; `fast` runs prompts together, and some, chosen by
    `seed`, again alone (`largest_difference`). With an `adapter`, by its name, they are its model's. UsageError for
    a prompt of one token.

    >>> losses = engine.loss(["The capital of France is Paris.", "The capital of France is Rome."])
    >>> [values.shape for values in losses], bool(losses[0].mean() < losses[1].mean())
    ([(6,), (6,)], True)
    """
    return loss_of(engine.channel, prompts, mode=mode, seed=seed, adapter=adapter)


def loss_of(
    channel: Channel,
    prompts: object,
    rules_of: str | None = None,
    *,
    mode: Mode = "exact",
    seed: int = 0,
    adapter: str | None = None,
) -> Losses:
    """Return the losses of prompts, each in a pass of its own or sharing passes, under the rules of the session
    `rules_of`."""
    found: list[Scored] = []
    request_of = partial(Score, rules_of=rules_of, mode=mode, seed=checked_seed(seed))
    with interruptible("The measurement", lambda: _kept(found)):
        try:
            _score(channel, prompts, request_of, found, adapter)
        except DjinnError as error:
            if not found:
                raise
            said, losses = _kept(found)
            raise MeasurementEnded(f"The measurement ended before its last prompt: {error} {said}", losses) from error
    return Losses(found)


def _score(
    channel: Channel,
    prompts: object,
    request_of: Callable[..., Score],
    found: list[Scored],
    adapter: str | None,
) -> None:
    """Add the losses of some prompts at a time to those `found`."""
    parts = _parts(tokenized(channel, given_prompts(prompts)))
    part = next(parts, None)
    if part is None:
        raise UsageError("There are no prompts to measure the loss of.")
    with temporary_session(channel, "score", adapter) as session:
        while part is not None:
            first = sum(len(reply.tokens) for reply in found)
            far(f"{first:,}{of_how_many(prompts)} prompts")
            found.append(ask_for(channel, request_of(session=session, prompts=part, first=first)))
            part = next(parts, None)


def _kept(found: Sequence[Scored]) -> tuple[str, Losses | None]:
    losses = Losses(found) if found else None
    return "" if losses is None else f"Of the first prompts it had found: {losses}.", losses


def _parts(prompts: Iterable[tuple[int, ...]]) -> Iterator[tuple[tuple[int, ...], ...]]:
    here: list[tuple[int, ...]] = []
    for number, prompt in enumerate(prompts):
        require_two(prompt, number)
        if here and sum(map(len, here)) + len(prompt) > ASKED_TOKENS:
            yield tuple(here)
            here = []
        here.append(prompt)
    if here:
        yield tuple(here)


def require_two(tokens: tuple[int, ...], number: int) -> None:
    if len(tokens) < 2:
        raise UsageError(
            f"Prompt {number} (counted from 0) has one token, and a loss is of those that follow; leave it out."
        )
