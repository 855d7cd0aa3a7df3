"""A collection carries its recipe, and is collected again from it alone, shard by shard."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import djinn_jupyter as dj
from djinn_jupyter.api.engine import RemoteEngine
from djinn_jupyter.errors import StorageFailed, UsageError
from djinn_jupyter.files import WRITTEN
from djinn_jupyter.methods.datasets.api.activations import Activations
from tests.client import crafted
from tests.client.reached import reached
from tests.engine.desk import build_desk
from tests.engine.words import tokenizer
from tests.families import build

PROMPTS = [(9, 8, 7, 21, 22), (9, 8), (31, 7, 7, 5)]
SITES = ["resid_post.1", "z.0"]


def collected(engine: RemoteEngine, folder: Path, **asked: Any) -> Activations:
    return engine.collect(PROMPTS, SITES, to=folder, **{"shard_prompts": 2, "mode": "exact", **asked})


@pytest.mark.parametrize(
    "asked",
    [
        {},
        {"positions": -1},
        {"positions": [0, -1], "dtype": "bfloat16"},
        {"mode": "fast", "seed": 5},
        {"dtype": "float16", "shard_prompts": 1},
    ],
    ids=str,
)
def test_a_folder_is_collected_again_with_the_same_bits(
    engine: RemoteEngine, tmp_path: Path, asked: dict[str, Any]
) -> None:
    acts = collected(engine, tmp_path / "acts", **asked)
    before = sorted(path.name for path in acts.folder.iterdir())
    done: list[tuple[object, int, int]] = []
    found = dj.reproduce(engine, tmp_path / "acts", on_progress=lambda *told: done.append(told))
    assert found.same, found
    values = sum(np.asarray(acts[site]).size for site in SITES)
    assert found.lines() == [f"The same bits: {values:,} values of {acts!r}."]
    assert (found.again, done[-1]) == (None, (None, 3, 3))
    assert sorted(path.name for path in acts.folder.iterdir()) == before
    assert engine.sessions() == ()


def test_the_recipe_has_all_that_the_values_follow_from(engine: RemoteEngine, tmp_path: Path) -> None:
    recipe = collected(engine, tmp_path, positions=-1, seed=3).recipe
    assert recipe["lines"] == PROMPTS
    asked = {name: recipe[name] for name in ("sites", "positions", "dtype", "mode", "seed", "adapter")}
    assert asked == {
        "sites": SITES, "positions": [-1], "dtype": None, "mode": "exact", "seed": 3, "adapter": None,
    }  # fmt: skip
    assert (recipe["by"]["architecture"], recipe["by"]["torch"]) == ("LlamaForCausalLM", torch.__version__)


@pytest.mark.parametrize("positions", [None, -1, [0, -1]])
def test_another_model_is_named_with_the_value_that_differs_most(
    engine: RemoteEngine, tmp_path: Path, positions: Any
) -> None:
    acts = collected(engine, tmp_path, positions=positions)
    model = build("llama", layers=3)
    with torch.no_grad():
        model.model.embed_tokens.weight[5] += 1  # the last token of the last prompt alone
    with reached(build_desk(model, tokenizer())) as [trained]:
        found = dj.reproduce(trained, acts)
    assert [name for name, _, _ in found.origin] == ["model", "weights"]
    assert (found.same, found.place["prompt"]) == (False, 2)
    assert found.place["position"] == (3 if positions is None else -1)
    assert found.place["site"] in SITES
    assert found.different > 0
    with (
        reached(build_desk(build("gpt2", layers=1), tokenizer())) as [other],
        pytest.raises(UsageError, match=r"^The collection is of .* which cannot repeat it: "),
    ):
        dj.reproduce(other, acts)
    assert all(path.name.startswith("shard-") for path in tmp_path.iterdir())


def test_shared_passes_and_another_mode_are_said(engine: RemoteEngine, tmp_path: Path) -> None:
    acts = collected(engine, tmp_path, mode="fast", shard_prompts=None)
    spoil(acts, lambda computed: None, first_value=1.0)
    found = dj.reproduce(engine, Activations(tmp_path))
    assert (found.same, found.different) == (False, 1)
    assert found.notes[-1].startswith("Prompts that shared passes may have other last bits")


def test_what_cannot_be_compared_is_one_sentence(engine: RemoteEngine, tmp_path: Path) -> None:
    acts = collected(engine, tmp_path)
    spoil(acts, lambda computed: computed.pop("made"))
    with pytest.raises(StorageFailed, match="is not as Djinn wrote it"):
        _ = Activations(tmp_path).recipe
    acts.shards[-1].path.unlink()
    with pytest.raises(UsageError, match="This collection is not whole"):
        dj.reproduce(engine, tmp_path)
    with pytest.raises(UsageError, match="There is no collection in"):
        dj.reproduce(engine, tmp_path / "..")


def spoil(acts: Activations, change: Any, first_value: float | None = None) -> None:
    """Write the first shard anew, without digests as 79ba2cba did, with another note on its computation or
    another first value."""
    shard = acts.shards[0]
    head, whole = crafted.parts(shard.path)
    body, note = bytearray(whole), crafted.told(head)
    note.pop(WRITTEN)
    change(note["computed"])
    if first_value is not None:
        at = shard.entries["resid_post.1"]["data_offsets"][0]
        body[at : at + 4] = np.float32(first_value).tobytes()
    crafted.put(shard.path, {**head, "__metadata__": {"djinn": json.dumps(note)}}, bytes(body))
