"""Heads: where each attends, over sequences of tokens."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from msgspec import Meta

from djinn_jupyter.wire import arrays, base, looks
from djinn_jupyter.wire.request_base import OwnName, SessionRequest, SomeTokens

MOST_LINES: Final = 4096
Kind = Literal["previous", "duplicate", "induction"]
KINDS: Final[tuple[Kind, ...]] = ("previous", "duplicate", "induction")  # in the order of scores
HeadsLine = SomeTokens | OwnName


class HeadsRead(base.ReplyBase):
    """`scores` [3, layers, heads], float64: the mean attention of a position to the one before it, to earlier positions
    with the same token, and to those that follow these (induction), over the `counted` positions of all sequences with
    such a target; NaN where there are none. `layers` are those with attention patterns. `patterns` [layers, heads,
    queries, keys], fp32, are of the first sequence, whose tokens are `texts`; blocks of `pooled` positions have their
    largest weight. `lines` are the tokens of each sequence, and `made` what else the scores follow from."""

    layers: tuple[int, ...]
    scores: arrays.Array
    counted: tuple[int, int, int]
    texts: tuple[str, ...]
    patterns: arrays.Array | None
    pooled: int
    lines: tuple[tuple[int, ...], ...]
    made: looks.Circumstances

    def is_whole_for(self, request: Any) -> bool:
        return len(self.lines) == len(request.lines)


class ReadHeads(SessionRequest[HeadsRead], shared="write", changes=False, wakes_weights=True):
    """Run each of the `lines` in a pass of its own and score every head by where it attends. A line is its tokens, or
    the name of a session: the tokens that it has fed. The steering rules of session `rules_of` apply. With `patterns`
    the reply has those of the first line too. The session itself must be empty; closing it ends the request."""

    lines: Annotated[tuple[HeadsLine, ...], Meta(min_length=1, max_length=MOST_LINES)]
    patterns: bool = False
    rules_of: OwnName | None = None
