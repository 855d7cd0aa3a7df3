"""Heads: where each attends, over sequences of tokens."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from msgspec import Meta

from djinn_jupyter.wire import arrays, base, looks, nouns
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


MOST_PAIRS: Final = 1000


class TokenPair(nouns.Noun, frozen=True):
    """The attention of a head from one token (`query`, its id) to another (`key`), at the `count` pairs of positions
    with these tokens: their weights' sum, `summed`."""

    query: int
    key: int
    count: int
    summed: float


class HeadExample(nouns.Noun, frozen=True):
    """One strong `weight`, at `query` and `key` of a line, and the query's `weights` to the positions from `first` up
    to itself."""

    line: int
    query: int
    key: int
    weight: float
    first: int
    weights: tuple[float, ...]


class VocabularyPair(nouns.Noun, frozen=True):
    """An entry of an OV circuit: what attending to a `given` token adds to the logit of the token `made`."""

    given: int
    made: int
    value: float


class OVCircuit(nouns.Noun, frozen=True):
    """The largest entries of W_E W_V W_O W_U of a head, over all pairs of tokens. `copying` is the sum of its
    eigenvalues by the sum of their sizes, from -1 to 1: above zero where tokens raise their own logits (Elhage et al.
    2021). `notes` say what is folded in."""

    pairs: tuple[VocabularyPair, ...]
    copying: float
    notes: tuple[str, ...]


class HeadRead(base.ReplyBase):
    """The attention of a head over `lines`. The key at the first position is told apart: `first_share` is the mean
    weight of the `queries` behind it to it, None without any. All other weights are in pairs of tokens: those with the
    largest `summed` weights, those with the largest `mean` of those met at least twice, and the strongest single
    `examples`, one for each pair of tokens. `circuit` is None for the reason `unread`. `spelled` has the texts of all
    these tokens, and `made` what else the numbers follow from."""

    layer: int
    head: int
    lines: tuple[tuple[int, ...], ...]
    queries: int
    first_share: float | None
    summed: tuple[TokenPair, ...]
    mean: tuple[TokenPair, ...]
    examples: tuple[HeadExample, ...]
    circuit: OVCircuit | None
    unread: str
    spelled: tuple[tuple[int, str], ...]
    made: looks.Circumstances
    notes: tuple[str, ...] = ()

    def is_whole_for(self, request: Any) -> bool:
        return len(self.lines) == len(request.lines) or bool(self.notes)


class ReadHead(SessionRequest[HeadRead], shared="write", changes=False, wakes_weights=True, whole_layers=True):
    """Read one head: what it attends to over `lines`, each the tokens of a pass of its own, and its OV circuit. The
    reply has `top` pairs of each kind, and `examples`. The session itself must be empty; closing it ends the
    request."""

    layer: Annotated[int, Meta(ge=0)]
    head: Annotated[int, Meta(ge=0)]
    lines: Annotated[tuple[SomeTokens, ...], Meta(max_length=MOST_LINES)] = ()
    top: Annotated[int, Meta(ge=1, le=MOST_PAIRS)] = 10
    examples: Annotated[int, Meta(ge=0, le=100)] = 6
