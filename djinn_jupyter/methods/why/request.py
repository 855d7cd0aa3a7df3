"""The request for the parts of one attention score, and its reply."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from djinn_jupyter.wire import base, looks
from djinn_jupyter.wire.readings import ScoreSide
from djinn_jupyter.wire.request_base import OwnName, SessionRequest, SomeTokens, Spelling


class ScoreExplained(base.ReplyBase):
    """The score of a head for a pair of positions: `score` is `scale` times the product of query and key as attention
    gets them, before a soft-cap, a bias of positions and a mask; `given` is what the softmax gets, and `weight` what it
    returns. `tokens` and `texts` are those of the sequence, `made` has what else the numbers follow from."""

    tokens: tuple[int, ...]
    texts: tuple[str, ...]
    query: int
    key: int
    score: float
    scale: float
    given: float
    weight: float
    by_key: ScoreSide
    by_query: ScoreSide
    made: looks.Circumstances
    notes: tuple[str, ...] = ()


class ExplainScore(
    SessionRequest[ScoreExplained], shared="write", changes=False, wakes_weights=True, whole_layers=True
):
    """Split one attention score into the parts of all earlier outputs, at the key's position and at the query's. `line`
    is the sequence's tokens, or the name of a session: the tokens that it has fed. `query` and `key` are positions,
    negative from the end. The steering rules of session `rules_of` apply. With `features`, the name of an SAE of the
    residual stream as sae.4, its features replace all that was added before it. The session itself must be empty;
    closing it ends the request."""

    line: SomeTokens | OwnName
    layer: Annotated[int, Meta(ge=0)]
    head: Annotated[int, Meta(ge=0)]
    query: int
    key: int
    rules_of: OwnName | None = None
    features: Spelling | None = None
