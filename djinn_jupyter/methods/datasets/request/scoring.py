"""Scores of prompts: the loss of each token, and the logits of all positions."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from djinn_jupyter.wire.arrays import Array
from djinn_jupyter.wire.circumstances import Circumstances
from djinn_jupyter.wire.limits import OwnName, SomeTokens
from djinn_jupyter.wire.nouns import Mode
from djinn_jupyter.wire.reply_base import ReplyBase
from djinn_jupyter.wire.request_base import SessionRequest

ScoredLine = SomeTokens | OwnName


class Scored(ReplyBase):
    """`tokens` of each prompt. `values`, fp32, of all prompts one after the other: the negative log-likelihood of each
    token but the first, or logits [positions, vocabulary]. `largest_difference` is by how much losses computed together
    differed from the same computed alone, of those that were; None where each prompt was computed alone, as `mode`
    says then, for the reasons in `notes`. `seed` is the request's, and `made` what else the values follow from."""

    tokens: tuple[tuple[int, ...], ...]
    values: Array
    made: Circumstances
    seed: int = 0
    mode: Mode = "exact"
    largest_difference: float | None = None
    notes: tuple[str, ...] = ()


class Score(SessionRequest[Scored], shared="write", changes=False, wakes_weights=True, whole_layers=True):
    """Run each prompt in a pass of its own and return the `loss` of its tokens, or the `logits` of its positions. A
    prompt is its tokens, or the name of a session: the tokens that it has fed. The steering rules of session `rules_of`
    hold. The session itself must be empty; closing it ends the request. `first` is the number of the first prompt, for
    errors. `fast` runs prompts together, for their loss, and some, chosen by `seed`, again alone."""

    prompts: Annotated[tuple[ScoredLine, ...], Meta(min_length=1, max_length=65_536)]
    what: Literal["loss", "logits"] = "loss"
    rules_of: OwnName | None = None
    first: Annotated[int, Meta(ge=0, le=2**53)] = 0
    mode: Mode = "exact"
    seed: Annotated[int, Meta(ge=0, le=2**63 - 1)] = 0
