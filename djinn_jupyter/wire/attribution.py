"""The reply with the contributions to a logit."""

from __future__ import annotations

from djinn_jupyter.wire.nouns import StopIdentity, TopToken
from djinn_jupyter.wire.readings import Contribution, NeuronParts
from djinn_jupyter.wire.reply_base import ReplyBase


class Attributed(ReplyBase, frozen=True, tag="Attributed"):
    """The parts of modules in a logit at `position`, or in the difference of two (`tokens` has one or two, the second
    subtracted), were the pass to end at the stop's boundary before layer `layer`: `logit` is what the model's own
    epilogue makes of the residual there. The final norm's factor is held fixed. `embedding`, `constant` (biases of norm
    and head), `rest` (what edits and rules put in place, biases of output maps, rounding) and all `contributions` sum
    to it; of heads and the point `bias` the sum is in place of their layer's attention, of `neurons` and the point
    `mlp_bias` in place of their layer's MLP."""

    stop: StopIdentity
    position: int
    layer: int
    tokens: tuple[TopToken, ...]
    logit: float
    embedding: float
    constant: float
    rest: float
    contributions: tuple[Contribution, ...]
    neurons: tuple[NeuronParts, ...] = ()
    notes: tuple[str, ...] = ()
