"""Edges between what writes to the residual and what reads it, and their scores."""

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
    """All that makes the scores again: the request, with the tokens of its lines in place of sessions, the `attention`
    of the sessions named, None for the engine's own, their `adapter`, and the origin."""

    asked: AttributeEdges
    attention: nouns.AttentionName | None
    by: provenance.Provenance
    adapter: modules.AdapterIdentity | None = None


class EdgesAttributed(ReplyBase):
    """`scores` is float64 [writers, readers], NaN where the writer is not before the reader. Writers are `embed`, the
    heads z.3[2] and the MLPs mlp_out.3; readers the queries, keys and values of heads, q.3[2], the MLPs mlp_in.3, and
    `logits`. `corrupted` and `clean` are the metrics of the lines. `stop` is where the session stood whose line is the
    corrupted one, None where that was given otherwise or ran. Edges that were not chosen are NaN too."""

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
    """Estimate by gradients what each edge carries: how `metric` at the last position of the line `corrupted` would
    change if one reader got what one writer writes in the line `clean`, as the mean gradient over `steps` points of the
    way between the lines' embeddings. "exact" computes that change, by a pass for each edge; of the `chosen` edges
    where some are named. The session must be empty; only its memory is used."""

    corrupted: LineSource
    clean: LineSource
    metric: Spelling
    steps: Annotated[int, Meta(ge=1, le=MOST_STEPS)] = 1
    method: EdgeMethod = "gradients"
    chosen: Edges = ()


class CircuitRecipe(Frozen, frozen=True):
    """All that computes the circuits again, as of edges."""

    asked: RunCircuits
    attention: nouns.AttentionName | None
    by: provenance.Provenance
    adapter: modules.AdapterIdentity | None = None


class CircuitsRun(ReplyBase):
    """`values` has the metric of each circuit, in the order asked; `corrupted` and `clean` are those of the lines."""

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
    """Run the line `clean` once for each of the `circuits`, which are sets of edges: these carry what their writers
    write in that run, all others what they write in the line `corrupted`. The session must be empty; only its memory is
    used."""

    corrupted: LineSource
    clean: LineSource
    metric: Spelling
    circuits: Annotated[tuple[Edges, ...], Meta(min_length=1, max_length=MOST_CIRCUITS)]
