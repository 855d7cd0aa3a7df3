"""A collection and a trained module carry their recipe, and are made again from it alone."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

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

pytestmark = pytest.mark.usefixtures("trains_here")

PROMPTS = [(9, 8, 7, 21, 22), (9, 8), (31, 7, 7, 5)]
SITES = ["resid_post.1", "z.0"]


def collected(engine: RemoteEngine, folder: Path, **asked: Any) -> Activations:
    return engine.collect(PROMPTS, SITES, to=folder, **{"shard_prompts": 2, "mode": "exact", **asked})


@pytest.mark.parametrize(
    "asked",
    [
        {"positions": [0, -1], "dtype": "bfloat16"},
        {"mode": "fast", "seed": 5},
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


@pytest.mark.parametrize("positions", [None, [0, -1]])
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


TAUGHT: Final = [(9, 8, 7, 21, 22), (9, 8), (31, 7, 7, 5), (4, 4, 9)]
TAUGHT_AT: Final = ["resid_post.1", "mlp_in.1", "mlp_out.1", "resid_post.2"]
SMALL: Final[dict[str, Any]] = {"features": 12, "active": 2, "steps": 4, "batch": 8}
TRAININGS: Final[dict[str, Callable[[RemoteEngine, dj.Activations, Path], dj.TrainedModule]]] = {
    "sae": lambda engine, acts, to: dj.train_sae(acts, to=to, site="resid_post.1", seed=3, **SMALL),
    "transcoder": lambda engine, acts, to: dj.train_transcoder(acts, to=to, site="mlp_in.1", **SMALL),
    "probe": lambda engine, acts, to: dj.train_probe(acts, [1, 1, 2, 2], to=to, site="resid_post.1", held_out=0),
    "steering vector": lambda engine, acts, to: dj.steering_vector(
        acts, [True, True, False, False], to=to, site="resid_post.1"
    ),
    "tuned lens": lambda engine, acts, to: dj.train_tuned_lens(
        engine, acts, to=to, site="resid_post.1", steps=3, batch=4, held_out=0
    ),
}


@pytest.fixture
def acts(engine: RemoteEngine, tmp_path: Path) -> dj.Activations:
    return engine.collect(TAUGHT, TAUGHT_AT, to=tmp_path / "acts", mode="exact")


@pytest.mark.parametrize("kind", TRAININGS)
def test_the_same_bits_are_trained_from_the_provenance_alone(
    engine: RemoteEngine, acts: dj.Activations, tmp_path: Path, kind: str
) -> None:
    module = TRAININGS[kind](engine, acts, tmp_path / "made")
    shutil.rmtree(acts.folder)
    steps: list[int] = []
    found = dj.reproduce(engine, module.folder, on_progress=lambda grid, done, of: steps.append(done))
    assert (found.same, found.origin) == (True, ())
    assert isinstance(found.before, dj.TrainedModule)
    assert (found.before.kind, found.before.recipe) == (kind, module.provenance)
    assert repr(found) == f"The same bits: {found.count:,} values of {module!r}."
    assert bool(steps) == (kind in ("sae", "transcoder", "tuned lens", "probe"))
    assert sorted(path.name for path in module.folder.parent.iterdir()) == ["made"]


def test_every_call_that_trains_is_tried() -> None:
    named = {"train_sae", "train_transcoder", "train_probe", "steering_vector", "train_tuned_lens"}
    assert {name for name in dj.__all__ if name.startswith("train_")} | {"steering_vector"} == named
    assert len(TRAININGS) == len(named)


def test_what_else_made_it_and_another_collection_are_said(
    engine: RemoteEngine, acts: dj.Activations, tmp_path: Path
) -> None:
    module = TRAININGS["sae"](engine, acts, tmp_path / "made")
    path = module.folder / "provenance.json"
    said = json.loads(path.read_text())
    said["versions"]["torch"] = "0.4.1"
    path.write_text(json.dumps(said))
    found = dj.reproduce(engine, module.folder, collection=acts)
    assert found.same
    assert [(name, then) for name, then, _ in found.origin] == [("versions torch", "0.4.1")]
    other = engine.collect([*TAUGHT[:3], (5, 5, 9)], TAUGHT_AT, to=tmp_path / "other", mode="exact")
    found = dj.reproduce(engine, module, collection=other.folder)
    assert (found.same, [name for name, _, _ in found.origin]) == (False, ["collection prompts digest"])
    assert set(found.place) == {"tensor", "index"}
    assert "collection prompts digest: " in repr(found)


def test_a_value_that_is_another_is_found(engine: RemoteEngine, acts: dj.Activations, tmp_path: Path) -> None:
    module = TRAININGS["steering vector"](engine, acts, tmp_path / "made")
    vector = module.vector
    vector[5] += 1
    np.save(module.folder / "vector.npy", vector)
    found = dj.reproduce(engine, module)
    assert (found.different, found.place) == (1, {"tensor": "vector.npy", "index": [5]})


def test_what_cannot_be_trained_again_is_one_sentence(
    engine: RemoteEngine, acts: dj.Activations, tmp_path: Path
) -> None:
    module = TRAININGS["sae"](engine, acts, tmp_path / "made")
    path = module.folder / "provenance.json"
    whole = json.loads(path.read_text())
    spoiled: list[tuple[Callable[[dict[str, Any]], Any], str]] = [
        (lambda said: said["collection"]["prompts"].pop("ids"), r"too large to be kept with it: give that too"),
        (lambda said: said["collection"].update(plain=False), r"under rules or an adapter: give that too"),
        (lambda said: said.pop("training"), r"provenance\.json that no training of Djinn wrote\.$"),
        (lambda said: said["training"].update(features="many"), r"was trained by another version, whose call is"),
    ]
    for spoil, sentence in spoiled:
        said = json.loads(json.dumps(whole))
        spoil(said)
        path.write_text(json.dumps(said))
        with pytest.raises(UsageError, match=sentence):
            dj.reproduce(engine, module.folder)
