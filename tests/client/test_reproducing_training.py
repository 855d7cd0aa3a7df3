"""A trained module is trained again from its provenance, on its prompts or on the collection that is given."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest

import djinn_jupyter as dj
from djinn_jupyter.api.engine import RemoteEngine
from djinn_jupyter.errors import UsageError

PROMPTS: Final = [(9, 8, 7, 21, 22), (9, 8), (31, 7, 7, 5), (4, 4, 9)]
SITES: Final = ["resid_post.1", "mlp_in.1", "mlp_out.1", "resid_post.2"]
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
    return engine.collect(PROMPTS, SITES, to=tmp_path / "acts", mode="exact")


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


def test_another_collection_is_said_to_be_what_differs(
    engine: RemoteEngine, acts: dj.Activations, tmp_path: Path
) -> None:
    module = TRAININGS["sae"](engine, acts, tmp_path / "made")
    assert dj.reproduce(engine, module, collection=acts).same
    other = engine.collect([*PROMPTS[:3], (5, 5, 9)], SITES, to=tmp_path / "other", mode="exact")
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


def test_a_provenance_says_what_else_made_it(engine: RemoteEngine, acts: dj.Activations, tmp_path: Path) -> None:
    module = TRAININGS["sae"](engine, acts, tmp_path / "made")
    path = module.folder / "provenance.json"
    said = json.loads(path.read_text())
    said["versions"]["torch"] = "0.4.1"
    path.write_text(json.dumps(said))
    found = dj.reproduce(engine, module.folder)
    assert found.same
    assert [(name, then) for name, then, _ in found.origin] == [("versions torch", "0.4.1")]


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
