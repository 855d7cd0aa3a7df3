"""The influence of the nodes and edges of an attribution graph on its outputs, and what is left when those of little
influence are taken out (Ameisen et al. 2025). Numbers alone: knows no node by name.

Shapes: N nodes, sources by column and targets by row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

    Values = np.ndarray[Any, Any]


def shares(effects_NN: Values) -> Values:
    """Return each edge's share of the sizes of what comes in at its target."""
    import numpy as np

    sizes = np.abs(effects_NN)
    found: Values = sizes / np.maximum(sizes.sum(axis=1, keepdims=True), 1e-30)
    return found


def influence(shares_NN: Values, weights_N: Values) -> Values:
    """Return the influence of every node on the outputs over all paths, of which there are finitely many."""
    import numpy as np

    passed, found = weights_N @ shares_NN, np.zeros_like(weights_N)
    while passed.any():
        found += passed
        passed = passed @ shares_NN
    return found


@dataclass(frozen=True, slots=True, eq=False)
class Pruning:
    """The nodes [N] and the edges [N, N] that are left, and the influence of each edge."""

    nodes: Values
    edges: Values
    influence: Values


def pruned(effects_NN: Values, weights_N: Values, always_N: Values, nodes: float, edges: float) -> Pruning:
    """Leave the nodes that have this share of all influence together, and of their edges those that have that. Nodes
    that are `always` left need no edge; of the others each leads somewhere. A node in between has a source."""
    import numpy as np

    by_node = influence(shares(effects_NN), weights_N)
    left = (by_node >= _threshold(by_node, nodes)) | always_N
    among = np.where(left[:, None] & left[None, :], effects_NN, 0.0)
    own = shares(among)
    by_edge = own * (influence(own, weights_N) + weights_N)[:, None]
    kept = (by_edge >= _threshold(by_edge.reshape(-1), edges)) & (by_edge > 0)
    reads = effects_NN.any(axis=1)
    while True:
        leads = kept.any(axis=0) & (kept.any(axis=1) | ~reads)
        still = left & (leads | always_N)
        if (still == left).all():
            return Pruning(left, kept, by_edge)
        left = still
        kept &= left[:, None] & left[None, :]


def _threshold(influences: Values, share: float) -> float:
    """Return the least influence among the largest that have a share of all together."""
    import numpy as np

    order = np.sort(influences)[::-1]
    total = order.sum()
    if total <= 0:
        return 0.0
    at = int(np.searchsorted(np.cumsum(order) / total, share))
    return float(order[min(at, len(order) - 1)])
