"""Edges patched exactly, against paths and against a Llama written out."""

from __future__ import annotations

import numpy as np
import pytest

import djinn_jupyter as dj
from tests.client.reached import reached
from tests.engine.desk import build_desk, tokens
from tests.families import build

CORRUPTED = tokens(7)
CLEAN = (*CORRUPTED[:3], *tokens(7, seed=2)[3:])
METRIC = "logit(17) - logit(42)"
ASKED = {"clean": CLEAN, "corrupted": CORRUPTED, "metric": METRIC}


@pytest.mark.parametrize("family", ["llama", "gpt2", "gpt_neox", "qwen3"])
def test_an_edge_patched_is_a_path_of_one_step(family: str) -> None:
    """A path freezes what lies between, so its sender's change reaches the receiver alone, as an edge does."""
    with reached(build_desk(build(family, layers=2).double())) as [engine]:
        found = dj.edges(engine, **ASKED, method="exact")
        turned = {"clean": CORRUPTED, "corrupted": CLEAN, "metric": METRIC, "mode": "exact"}
        for reader in ("q.1[1]", "k.1[0]", "v.1[1]", "mlp_in.1", "logits", "v.0[0]"):
            for sender, name in (("z.0[1]", "z.0[1]"), ("mlp_out.0", "mlp_out.0"), ("resid_pre.0", "embed")):
                at = found.writers.index(name), found.readers.index(reader)
                if np.isnan(found.values[at]):
                    continue
                path = dj.path(engine, f"{sender} -> {reader}", **turned)
                assert found.values[at] == pytest.approx(float(path.values) - path.clean, abs=1e-9)
