"""The reply with the contributions to a logit, and the recipe of it."""

from __future__ import annotations

from djinn_jupyter.wire import base, looks, nouns, readings, request_base


class AttributionRecipe(base.Frozen, frozen=True):
    """All that tells the parts again: the `line`, of which the first positions were fed in these `passes` and the
    others in a pass without edits and rules, stopped before layer `layer`, and what was asked there, with the tokens by
    their numbers."""

    line: tuple[int, ...]
    layer: int
    tokens: tuple[int, ...]
    heads: bool
    neurons: bool
    position: int
    ahead: bool
    made: looks.Circumstances
    passes: tuple[looks.FedTokens, ...] = ()


class Attributed(base.ReplyBase):
    """The parts of modules in a logit at `position`, or in the difference of two (`tokens` has one or two, the second
    subtracted), were the pass to end at the stop's boundary before layer `layer`: `logit` is what the model's own
    epilogue makes of the residual there. The final norm's factor is held fixed. `embedding`, `constant` (biases of norm
    and head), `rest` (what edits and rules put in place, biases of output maps, rounding) and all `contributions` sum
    to it; of heads and the point `bias` the sum is in place of their layer's attention, of `neurons` and the point
    `mlp_bias` in place of their layer's MLP. `made` is None at a stop that the tokens of its
    line alone do not come to, for the reason `unmade`."""

    stop: nouns.StopIdentity
    position: int
    layer: int
    tokens: tuple[nouns.TopToken, ...]
    logit: float
    embedding: float
    constant: float
    rest: float
    contributions: tuple[readings.Contribution, ...]
    neurons: tuple[readings.NeuronParts, ...] = ()
    notes: tuple[str, ...] = ()
    made: AttributionRecipe | None = None
    unmade: str = ""


class Attribute(
    request_base.SessionRequest[Attributed], shared="read", browser="asks", changes=False, whole_layers=True
):
    """Direct logit attribution: what the outputs of attention and MLP of each layer that has run add to the logit of a
    token, by text or number, or of two to their difference. `heads` parts attention into its heads, `neurons` each MLP
    into the inputs of its last map. `position` is absolute, negative from the end of the pass. `ahead` finishes the
    pass on the side and adds the layers after the stop."""

    tokens: request_base.OneOrTwo
    heads: bool = False
    neurons: bool = False
    position: int = -1
    ahead: bool = False
