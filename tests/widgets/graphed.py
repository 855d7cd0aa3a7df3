"""An attribution graph for cards: two features in two layers, at two positions."""

from __future__ import annotations

import numpy as np

from djinn_jupyter.api.arrays import from_numpy
from djinn_jupyter.methods.graphs.api import AttributionGraph
from djinn_jupyter.methods.graphs.request import GraphMade
from djinn_jupyter.wire.nouns import StopIdentity
from tests.widgets.edged import STOP

EFFECTS = (  # of tc.0[3] @1 and tc.1[12345] @1, errors of two layers at two positions, embeddings at two
    (0.5, 2.0, 0, 0.1, 0, 0.2, 0, 0.3),
    (0, 0, 0, 0, 0, 0, 0.25, 1.5),
    (-1.0, 0, 0, 0.1, 0, 0, 0, 0.4),
)


def graph_made(*, stop: StopIdentity | None = STOP, metric: str = "logit(' x') - logit(' y')") -> GraphMade:
    effects = np.array(EFFECTS, dtype=np.float32)
    bias = np.array([0.5, -0.25, 0.0])
    summed = bias + effects.astype(float).sum(1)
    return GraphMade(
        outputs=(metric,), weights=(1.0,), sites=("tc.0[3]", "tc.1[12345]"), positions=(1, 1), values=(1.5, 0.2),
        edges=from_numpy(effects), reached=from_numpy(summed), bias=from_numpy(bias), summed=from_numpy(summed),
        active=2, layers=(0, 1), all_layers=2, texts=(" the", " extraordinary"), stop=stop,
    )  # fmt: skip


def found(**fields: object) -> AttributionGraph:
    return AttributionGraph(graph_made(**fields), engine="demo-1")
