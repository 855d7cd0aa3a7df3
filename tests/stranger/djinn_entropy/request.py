"""The entropy of every head's attention at a stop: what is asked of the engine, and its answer."""

from djinn_jupyter.wire.arrays import Array
from djinn_jupyter.wire.base import ReplyBase
from djinn_jupyter.wire.looks import Circumstances, FedTokens
from djinn_jupyter.wire.request_base import SessionRequest


class EntropyRead(ReplyBase):
    """`entropy` [layers, heads], float64, of the `layers` that ran; NaN where a layer has fewer heads. The `line`, fed
    in these `passes`, comes to the stop at `site` under `made`; None where it does not, for the reason `unmade`."""

    layers: tuple[int, ...]
    entropy: Array
    line: tuple[int, ...]
    passes: tuple[FedTokens, ...]
    site: str
    made: Circumstances | None
    unmade: str


class ReadEntropy(SessionRequest[EntropyRead], shared="read", resent="anew"):
    """Read the entropy of each head's attention at the last position of the stopped pass, in nats."""
