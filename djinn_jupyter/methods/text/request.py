"""The measures of each token of a text, its lens at many layers, and the requests for them."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import UNSET, Meta, UnsetType

from djinn_jupyter.wire import arrays, base, looks, nouns
from djinn_jupyter.wire.request_base import Chosen, ConditionText, OwnName, SessionRequest, SomeTokens, Spelling

Of = Literal["value", "norm", "component"]


class TextMeasured(base.ReplyBase):
    """The `tokens` and `texts` of a text; positions in the `generated` spans [start, end) were chosen by the model.

    `log_probabilities` [T - 1], fp32, are those of each token but the first. Row t of the others is about the next
    token behind position t: its `entropies` [T], fp32, in nats; `metrics` [T], float64; and its most probable tokens,
    in `rows`. `site_values` [T], fp32, are of the position itself: the value of a site, its norm, or its component
    along a direction, as `of` says. `made` has what else the numbers follow from."""

    tokens: tuple[int, ...]
    texts: tuple[str, ...]
    generated: tuple[tuple[int, int], ...]
    log_probabilities: arrays.Array
    entropies: arrays.Array
    rows: tuple[nouns.LensRow, ...]
    made: looks.Circumstances
    metrics: arrays.Array | None = None
    site_values: arrays.Array | None = None
    of: Of | None = None


class ReadText(SessionRequest[TextMeasured], shared="write", changes=False, wakes_weights=True, whole_layers=True):
    """Run a text in a pass of its own and measure its tokens. The `line` is its tokens, or the name of a session: all
    tokens that it has. The steering rules of session `rules_of` apply. `top` tokens are read behind each position, and
    there the `metric`, as in sweeps; `site` is read at each position, along a `direction` if one is given. The session
    itself must be empty; closing it ends the request."""

    line: SomeTokens | OwnName
    rules_of: OwnName | None = None
    top: Annotated[int, Meta(ge=1, le=100)] = 5
    metric: ConditionText | UnsetType = UNSET
    site: Spelling | UnsetType = UNSET
    direction: arrays.Array | UnsetType = UNSET


class TextLensRead(base.ReplyBase):
    """The lens of `sites` [S] over a text [T]: `top_tokens` [S, T, k], int32, with their `top_probabilities`, fp32,
    and the `entropies` [S, T] of the distributions behind each position, in nats. `next_probabilities` [S, T - 1] are
    those of the text's own next token, `chosen` [S, T, tokens] those of the requested tokens. `spelled` has the texts
    of all these tokens. `tokens`, `texts`, `generated` and `made` are as in TextMeasured."""

    tokens: tuple[int, ...]
    texts: tuple[str, ...]
    generated: tuple[tuple[int, int], ...]
    sites: tuple[str, ...]
    top_tokens: arrays.Array
    top_probabilities: arrays.Array
    entropies: arrays.Array
    next_probabilities: arrays.Array
    chosen: arrays.Array
    chosen_tokens: tuple[int, ...]
    spelled: tuple[tuple[int, str], ...]
    made: looks.Circumstances


class ReadTextLens(SessionRequest[TextLensRead], shared="write", changes=False, wakes_weights=True, whole_layers=True):
    """Run a text in a pass of its own, as ReadText does, and apply the model's own epilogue to the values of `sites`,
    of the residual stream or of tuned lenses, at all positions. `tokens`, by text or number, are read besides the `top`
    most probable."""

    line: SomeTokens | OwnName
    sites: Annotated[tuple[Spelling, ...], Meta(min_length=1, max_length=4096)]
    rules_of: OwnName | None = None
    top: Annotated[int, Meta(ge=1, le=100)] = 5
    tokens: Chosen = ()
