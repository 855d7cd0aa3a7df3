"""`--beside`: pairs and shards go to other engines of the model too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from djinn_jupyter.api.engine import RemoteEngine
from djinn_jupyter.methods.datasets.api import collecting
from djinn_jupyter.methods.sweep.api import sweeping
from tests.magics.conftest import Notebook
from tests.magics.double import EngineDouble


@pytest.fixture
def beside(notebook: Notebook, monkeypatch: pytest.MonkeyPatch) -> RemoteEngine:
    """Another engine, which `--beside 2` means."""
    engine = RemoteEngine(EngineDouble().channel)
    found = {"2": engine}
    monkeypatch.setattr(notebook.state.client, "beside", lambda here, where, progress: found[where], raising=False)
    return engine


def test_pairs_of_a_sweep_or_of_paths_and_shards_of_a_collection(
    notebook: Notebook, beside: RemoteEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[Any] = []
    for module in (sweeping, collecting):
        spread = module.spread
        monkeypatch.setattr(
            module, "spread", lambda engines, pieces, plain=spread: given.append(engines) or plain(engines, pieces)
        )
    notebook.cell("pairs = [([1, 2], [1, 3])] * 4\nprompts = [[1, 2]] * 4")
    notebook.cell("%djinn_sweep resid_post --prompts pairs --metric logit(3) --beside 2 -o grid")
    assert notebook.shell.user_ns["grid"].values.shape[0] == 4
    notebook.cell("%djinn_path z -> logits --prompts pairs --metric logit(3) --beside 2 -o paths")
    assert notebook.shell.user_ns["paths"].values.shape[0] == 4
    notebook.cell(f"%djinn_collect resid_post.4 --prompts prompts --to {tmp_path} --shard-prompts 1 --beside 2 -o acts")
    assert len(notebook.shell.user_ns["acts"]) == 4
    engines = (notebook.state.engine, beside)
    assert given == [engines, engines, [one.channel for one in engines]]
