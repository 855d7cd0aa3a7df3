"""Edges between writers and readers of the residual, and their scores."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from msgspec import Meta

from djinn_jupyter.methods.sweep.request import MOST_STEPS, LineSource
from djinn_jupyter.wire import arrays, modules, nouns, provenance
from djinn_jupyter.wire.base import Frozen, ReplyBase, bounded_by
from djinn_jupyter.wire.request_base import SessionRequest, Spelling

EdgeMethod = Literal["gradients", "exact"]
Edge = tuple[Annotated[int, Meta(ge=0)], Annotated[int, Meta(ge=0)]]
"""The numbers of a writer and of a reader."""
MOST_EDGES: Final = 2**20
MOST_CIRCUITS: Final = 4096
Edges = Annotated[tuple[Edge, ...], bounded_by("edges", MOST_EDGES)]


class EdgeRecipe(Frozen, frozen=True):
    """Everything needed to compute the scores again: the request, with tokens in place of sessions, the `attention` of
    the named sessions (None for the engine's own), their `adapter`, and the origin."""

    asked: AttributeEdges
    attention: nouns.AttentionName | None
    by: provenance.Provenance
    adapter: modules.AdapterIdentity | None = None


class EdgesAttributed(ReplyBase):
    """`scores` is float64 [writers, readers], NaN where the writer is not before the reader. Writers are `embed`, the
    heads z.3[2] and the MLPs mlp_out.3; readers the queries, keys and values of heads, q.3[2], the MLPs mlp_in.3, and
    `logits`. `corrupted` and `clean` are the metrics of the two. `stop` is the stop of the session with the corrupted
    tokens, None where they were given otherwise or the session was running. Edges that were not chosen are NaN too."""

    metric: str
    writers: tuple[str, ...]
    readers: tuple[str, ...]
    scores: arrays.Array
    corrupted: float
    clean: float
    steps: int
    notes: tuple[str, ...] = ()
    stop: nouns.StopIdentity | None = None
    made: EdgeRecipe | None = None
    method: EdgeMethod = "gradients"

    def is_whole_for(self, request: Any) -> bool:
        return self.made is None or self.made.asked.chosen == request.chosen


class AttributeEdges(
    SessionRequest[EdgesAttributed], shared="write", changes=False, wakes_weights=True, whole_layers=True
):
    """Estimate by gradients the effect of each edge: the change of `metric` at the last position of `corrupted` if one
    reader got one writer's value from `clean`, by the mean gradient over `steps` points on the path between the two
    embeddings. "exact" computes that change, by a pass for each edge, or for each `chosen` edge. The session must be
    empty; only its memory is used."""

    corrupted: LineSource
    clean: LineSource
    metric: Spelling
    steps: Annotated[int, Meta(ge=1, le=MOST_STEPS)] = 1
    method: EdgeMethod = "gradients"
    chosen: Edges = ()


class CircuitRecipe(Frozen, frozen=True):
    """Everything needed to compute the circuits again, as for edges."""

    asked: RunCircuits
    attention: nouns.AttentionName | None
    by: provenance.Provenance
    adapter: modules.AdapterIdentity | None = None


class CircuitsRun(ReplyBase):
    """`values` has the metric of each circuit, in the order of the request; `corrupted` and `clean` the prompts'."""

    metric: str
    writers: tuple[str, ...]
    readers: tuple[str, ...]
    values: tuple[float, ...]
    corrupted: float
    clean: float
    notes: tuple[str, ...] = ()
    made: CircuitRecipe | None = None

    def is_whole_for(self, request: Any) -> bool:
        return len(self.values) == len(request.circuits)


class RunCircuits(SessionRequest[CircuitsRun], shared="write", changes=False, wakes_weights=True):
    """Run `clean` once for each of the `circuits`, which are sets of edges: these carry their writers' values in that
    run, all others the values of `corrupted`. The session must be empty; only its memory is used."""

    corrupted: LineSource
    clean: LineSource
    metric: Spelling
    circuits: Annotated[tuple[Edges, ...], Meta(min_length=1, max_length=MOST_CIRCUITS)]
