"""The reply with the contributions to a logit, and its recipe."""

from __future__ import annotations

from djinn_jupyter.wire import base, looks, nouns, readings, request_base


class AttributionRecipe(base.Frozen, frozen=True):
    """Everything needed to compute the parts again: the `line` (token sequence), whose first positions were fed in
    these `passes` and the others in a pass without edits and rules, stopped before layer `layer`, and the request
    there, with the tokens by their numbers."""

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
    subtracted), if the pass ended at the stop's boundary before layer `layer`: `logit` is the model's own epilogue of
    the residual there. The final norm's factor is held fixed. `embedding`, `constant` (biases of norm and head), `rest`
    (overrides by edits and rules, biases of output maps, rounding) and all `contributions` sum to it. Heads and the
    point `bias` sum to their layer's attention and replace it; `neurons` and the point `mlp_bias` replace their layer's
    MLP. `made` is None at a stop to which its tokens alone do not lead, for the reason `unmade`."""

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
    """Direct logit attribution: the additions of attention and MLP of each layer that has run to the logit of a token,
    by text or number, or of two to their difference. `heads` splits attention into its heads, `neurons` each MLP into
    the inputs of its last map. `position` is absolute, negative from the end of the pass. `ahead` finishes the pass on
    the side and adds the layers after the stop."""

    tokens: request_base.OneOrTwo
    heads: bool = False
    neurons: bool = False
    position: int = -1
    ahead: bool = False
