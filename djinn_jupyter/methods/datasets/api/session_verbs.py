"""The verbs of a session that run its tokens, or another text, in a pass on the side."""

from __future__ import annotations

from typing import Any

import numpy as np

from djinn_jupyter.api import arguments, arrays, interrupts, likeness
from djinn_jupyter.api.session import RemoteSession
from djinn_jupyter.errors import UsageError
from djinn_jupyter.link.channel import Channel, ask_for
from djinn_jupyter.methods.datasets.api.scoring import Losses, loss_of, require_two
from djinn_jupyter.methods.datasets.request import Score, Scored
from djinn_jupyter.wire.nouns import Mode


@arguments.typed
def loss(session: RemoteSession, /, prompts: object = None, *, mode: Mode = "exact", seed: int | None = None) -> Losses:
    """Return the loss of each of the session's tokens, or of other prompts (as in `engine.loss`, or one text), each in
    a pass of its own under this session's steering rules; `fast` shares passes where it has none.

    >>> session.loss("The capital of France is Paris.")[0].shape  # a loss for each token but the first
    (6,)
    """
    if prompts is not None:
        lines = [prompts] if isinstance(prompts, str) else prompts
        return loss_of(session.channel, lines, rules_of=session.name, mode=mode, seed=seed or 0)
    if mode == "fast" or seed is not None:
        raise UsageError("The present line runs in a pass of its own; fast and a seed are for several prompts.")
    scored = _scored_line(session.channel, session.name, "loss")
    require_two(scored.tokens[0], 0)
    return Losses([scored])


def all_logits(session: RemoteSession, /) -> np.ndarray[Any, Any]:
    """Return the logits, fp32 [positions, vocabulary], of one pass over the session's tokens, under its steering rules.
    UsageError where edits were made at its stops, because that pass would not include them.

    >>> done = session.run("The capital of France is", max_new_tokens=1, free=True)
    >>> session.all_logits().shape
    (5, 1393)
    """
    return arrays.to_numpy(_scored_line(session.channel, session.name, "logits").values)


def _scored_line(channel: Channel, line: str, what: Any) -> Scored:
    with interrupts.interruptible("The measurement"), likeness.temporary_session(channel, "score") as session:
        return ask_for(channel, Score(session=session, prompts=(line,), what=what, rules_of=line))
