"""Attributed edges for cards: two layers of two heads, scored by their place."""

from __future__ import annotations

import numpy as np

from djinn_jupyter.api.arrays import from_numpy
from djinn_jupyter.methods.circuits.api.edges import Edges
from djinn_jupyter.methods.circuits.request import EdgesAttributed
from djinn_jupyter.wire.nouns import StopIdentity

STOP = StopIdentity(session="work/paris.ipynb", number=7, edition=9)


def edges_attributed(
    *, layers: int = 2, heads: int = 2, keys: int | None = None, stop: StopIdentity | None = STOP, metric: str = "m"
) -> EdgesAttributed:
    writers, readers = ["embed"], []
    for layer in range(layers):
        writers += [*(f"z.{layer}[{head}]" for head in range(heads)), f"mlp_out.{layer}"]
        for point, units in (("q", heads), ("k", keys or heads), ("v", keys or heads)):
            readers += [f"{point}.{layer}[{unit}]" for unit in range(units)]
        readers.append(f"mlp_in.{layer}")
    readers.append("logits")
    scores = np.random.default_rng(3).standard_normal((len(writers), len(readers)))
    for row, writer in enumerate(writers):
        for at, reader in enumerate(readers):
            if not _is_before(writer, reader):
                scores[row, at] = np.nan
    return EdgesAttributed(
        metric=metric, writers=tuple(writers), readers=tuple(readers), scores=from_numpy(scores), corrupted=-1.0,
        clean=2.0, steps=1, stop=stop,
    )  # fmt: skip


def _is_before(writer: str, reader: str) -> bool:
    if writer == "embed" or reader == "logits":
        return True
    wrote, read = (int(name.split(".")[1].split("[")[0]) for name in (writer, reader))
    return wrote < read or (wrote == read and writer.startswith("z") and reader.startswith("mlp_in"))


def found(**fields: object) -> Edges:
    return Edges([edges_attributed(**fields)], engine="demo-1")
