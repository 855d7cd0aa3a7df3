"""Attribution graphs: the direct effects between the features of transcoders at one prompt."""

from __future__ import annotations

from typing import Annotated, Any, Final

from msgspec import Meta

from djinn_jupyter.methods.sweep.request import LineSource
from djinn_jupyter.wire.arrays import Array
from djinn_jupyter.wire.base import Frozen, ReplyBase
from djinn_jupyter.wire.modules import AdapterIdentity, Digest, ModuleName
from djinn_jupyter.wire.nouns import AttentionName, StopIdentity
from djinn_jupyter.wire.provenance import Provenance
from djinn_jupyter.wire.request_base import SessionRequest, Spelling

MOST_FEATURES: Final = 8192
MOST_LOGITS: Final = 64


class GraphRecipe(Frozen, frozen=True):
    """Everything needed to compute the graph again: the request, with tokens in place of a session, the digest of each
    transcoder by its site, and the rest as for edges."""

    asked: MakeGraph
    modules: tuple[tuple[str, Digest], ...]
    attention: AttentionName | None
    by: Provenance
    adapter: AdapterIdentity | None = None


class GraphMade(ReplyBase):
    """`edges` is float32 [targets, sources]: the direct effect of each source on each target. Targets are the
    `outputs`, whose shares of the influence are `weights`, then the features at `sites`, each at one of `positions`
    with its value in `values`. Sources are the same features, then the errors of each layer by position, then the
    embeddings by position. For each target, float64: `reached` is its value in the model's own pass (for a feature
    before its activation), `bias` its value without any source, `summed` the bias plus the effects of all sources,
    including features not in `sites`. `active` counts all active features. `layers` are the layers with a transcoder,
    in order; `texts` are the tokens' texts."""

    outputs: tuple[str, ...]
    weights: tuple[float, ...]
    sites: tuple[str, ...]
    positions: tuple[int, ...]
    values: tuple[float, ...]
    edges: Array
    reached: Array
    bias: Array
    summed: Array
    active: int
    layers: tuple[int, ...]
    all_layers: int
    texts: tuple[str, ...]
    notes: tuple[str, ...] = ()
    stop: StopIdentity | None = None
    made: GraphRecipe | None = None

    def is_whole_for(self, request: Any) -> bool:
        return self.made is None or self.made.asked.features == request.features


class MakeGraph(SessionRequest[GraphMade], shared="write", changes=False, wakes_weights=True, whole_layers=True):
    """Make the attribution graph of a token sequence (Ameisen et al. 2025): direct effects between the active features
    of the added transcoders named `module`, embeddings, errors and logits, with attention patterns and the scales of
    norms held. Its outputs are the `metric` at the last position, or without one the most probable tokens' logits minus
    the mean of all: the fewest that together have this `probability`, at most `logits`. The effects on the `features`
    features with the most influence are computed. The session must be empty; only its memory is used."""

    line: LineSource
    module: ModuleName
    metric: Spelling | None = None
    logits: Annotated[int, Meta(ge=1, le=MOST_LOGITS)] = 10
    probability: float = 0.95
    features: Annotated[int, Meta(ge=1, le=MOST_FEATURES)] = 1024
