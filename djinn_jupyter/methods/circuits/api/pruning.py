"""`dj.acdc`: the circuit that remains when edges are dropped one after another, each by a pass (Conmy et al. 2023,
arXiv 2304.14997): from the logits backwards, an edge whose absence changes the metric by less than a threshold is
dropped.

The passes of consecutive edges are requested together, as if all before them had been dropped; those after a kept edge
are requested again. So the decisions equal those of one pass after another.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import numpy as np

from djinn_jupyter.api.arguments import checked_seed, typed
from djinn_jupyter.api.engine import RemoteEngine
from djinn_jupyter.api.interrupts import interruptible, waits
from djinn_jupyter.errors import UsageError
from djinn_jupyter.link.waiting import far
from djinn_jupyter.methods.circuits.api.circuits import (
    MOST_ASKED,
    Circuit,
    CircuitRuns,
    Interval,
    Numbers,
    ordered,
    require_count,
)
from djinn_jupyter.methods.circuits.api.edges import Edges, layers_of

Kept = frozenset[tuple[int, int]]
OnPruned = Callable[[int, int, int], None]
WORK: Final = "The pruning of a circuit"
FEW, AHEAD = 8, 64  # passes requested together: at first, and at most


@waits(WORK)
@typed
def acdc(
    engine: RemoteEngine,
    found: Edges,
    threshold: float,
    *,
    first: int | None = None,
    confidence: float = 0.95,
    resamples: int = 10_000,
    seed: int = 0,
    on_progress: OnPruned | None = None,
) -> Circuit:
    """Return the circuit that ACDC leaves of all edges, or of the `first` ones by score. From the logits backwards each
    edge is patched from the corrupted prompt in addition to those dropped so far, and dropped where that changes the
    mean metric of the pairs by less than `threshold`. Edges into a head or MLP that no kept edge leaves are dropped
    without a pass.

    Every other edge takes a pass for each pair. `on_progress(decided, edges, kept)` is called meanwhile. The interval
    is as in `dj.circuit`. WorkInterrupted has the names of the remaining edges as `kept`, for `dj.circuit`. UsageError;
    SlabFull.

    >>> found = dj.edges(
    ...     engine,
    ...     clean="The capital of France is",
    ...     corrupted="The capital of Italy is",
    ...     metric="logit(' Paris') - logit(' Rome')",
    ... )
    >>> pruned = dj.acdc(engine, found, 0.5, first=40)
    >>> 0 < len(pruned) < 40
    True
    """
    if not 0 < threshold < float("inf"):
        raise UsageError(
            f"A threshold of ACDC is a change of the metric, larger than 0, such as 0.1, not {threshold:g}."
        )
    if first is not None:
        require_count(found, first)
    drawn = Interval(confidence=confidence, resamples=resamples, seed=checked_seed(seed))
    order = ordered(found)
    how = f"ACDC, threshold {threshold:g}" + ("" if first is None else f", of the first {first:,}")
    with CircuitRuns(engine, found, drawn) as runs:
        pruning = _Pruning(runs, order if first is None else order[:first], threshold)
        with interruptible(WORK, pruning.so_far):
            kept = pruning.left(on_progress)
        return runs.of([tuple(edge for edge in order if edge in kept)], how)[0]


class _Pruning:
    """`order` is the order of decisions: the last reader first, and for each the last writer first."""

    def __init__(self, runs: CircuitRuns, edges: Numbers, threshold: float) -> None:
        self.runs, self.threshold = runs, threshold
        self.order = sorted(edges, key=lambda edge: (edge[1], edge[0]), reverse=True)
        self.heard = heard(runs.found.writers, runs.found.readers)
        self.decided, self.kept = 0, frozenset(self.order)

    def so_far(self) -> tuple[str, list[tuple[str, str]]]:
        """Return the decisions so far in words, and the names of the remaining edges."""
        found, left = self.runs.found, [edge for edge in reversed(self.order) if edge in self.kept]
        said = f"Of {len(self.order):,} edges {self.decided:,} were decided; `kept` of this error names the "
        return f"{said}{len(left):,} left.", [(found.writers[writer], found.readers[at]) for writer, at in left]

    def left(self, on_progress: OnPruned | None) -> Kept:
        """Return the kept edges."""
        kept, at, ahead = frozenset(self.order), 0, FEW
        [metric] = self._metrics([kept])
        while at < len(self.order):
            self.decided, self.kept = at, kept
            far(f"{at:,} of {len(self.order):,} edges decided")
            if on_progress is not None:
                on_progress(at, len(self.order), len(kept))
            tried, end, rest = self._ahead(kept, at, min(ahead, max(1, MOST_ASKED // len(kept))))
            for (place, without), value in zip(tried, self._metrics([one for _, one in tried]), strict=True):
                if abs(value - metric) >= self.threshold:
                    kept, at, ahead = without | {self.order[place]}, place + 1, FEW
                    break
                kept, metric = without, value
            else:
                kept, at, ahead = rest, end, min(2 * ahead, AHEAD)
        return kept

    def _ahead(self, kept: Kept, at: int, count: int) -> tuple[list[tuple[int, Kept]], int, Kept]:
        """Return up to `count` places from `at` on that take a pass, each with the edges that remain without it and all
        before it; the next place, and the edges that remain by then."""
        tried: list[tuple[int, Kept]] = []
        while at < len(self.order) and len(tried) < count:
            edge, at = self.order[at], at + 1
            kept -= {edge}
            if self._is_heard(edge[1], kept):
                tried.append((at - 1, kept))
        return tried, at, kept

    def _is_heard(self, reader: int, kept: Kept) -> bool:
        """Return whether a kept edge leaves the head or MLP of this reader; always true for the logits."""
        writers = self.heard[reader]
        return writers is None or any(writer in writers for writer, _ in kept)

    def _metrics(self, circuits: Sequence[Kept]) -> list[float]:
        """Return the mean metric of each circuit over the pairs."""
        runs = self.runs.made([tuple(sorted(one)) for one in circuits]) if circuits else []
        return [float(np.mean([one.values[at] for one in runs])) for at in range(len(circuits))]


def heard(writers: Sequence[str], readers: Sequence[str]) -> list[frozenset[int] | None]:
    """Return for each reader the writers that it affects: for queries their head, for keys and values all heads that
    read them, for an MLP itself; None for the logits.

    >>> heard(("embed", "z.0[0]", "z.0[1]", "mlp_out.0"), ("q.0[1]", "k.0[0]", "mlp_in.0", "logits"))
    [frozenset({2}), frozenset({1, 2}), frozenset({3}), None]
    """
    places = {name: at for at, name in enumerate(writers)}
    return [_heard(reader, readers, writers, places) for reader in readers]


def _heard(
    reader: str, readers: Sequence[str], writers: Sequence[str], places: Mapping[str, int]
) -> frozenset[int] | None:
    if "." not in reader:
        return None
    point, place = reader.split(".")
    if point == "mlp_in":
        return frozenset([places[f"mlp_out.{place}"]])
    layer, unit = (int(one) for one in place.rstrip("]").split("["))
    heads = layers_of(writers, "z").count(layer)
    each = heads // (heads if point == "q" else layers_of(readers, point).count(layer))
    return frozenset(places[f"z.{layer}[{head}]"] for head in range(unit * each, (unit + 1) * each))
