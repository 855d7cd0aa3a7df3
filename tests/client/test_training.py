"""`dj.train_...` on collections of an engine in this process: folders that `engine.add_module` takes, and refusals."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import djinn_jupyter as dj
from djinn_jupyter.api.engine import RemoteEngine
from djinn_jupyter.errors import StorageFailed, TrainingFailed, UsageError
from djinn_jupyter.modules.training import process
from djinn_jupyter.modules.training.jobs import SteeringJob
from djinn_jupyter.modules.training.process import module_in
from tests.waiting import until

pytestmark = pytest.mark.drawn

PROMPTS = [(9, 8, 7, 21, 22), (9, 8), (31, 7, 7, 5), (4, 4, 9)]
SMALL: dict[str, Any] = {"features": 12, "active": 2, "steps": 4, "batch": 8}


@pytest.fixture
def acts(engine: RemoteEngine, tmp_path: Path) -> dj.Activations:
    return engine.collect(PROMPTS, ["resid_post.1", "z.1"], to=tmp_path / "acts")


def test_an_sae_is_a_folder_that_says_how_it_was_made_and_that_the_engine_takes(
    engine: RemoteEngine, acts: dj.Activations, tmp_path: Path
) -> None:
    done: list[tuple[int, int]] = []
    sae = dj.train_sae(
        acts, site="resid_post.1", to=tmp_path / "sae", on_progress=lambda *at: done.append(at[:2]), seed=3, **SMALL
    )
    assert (done[-1], sae.site, sae.kind) == ((4, 4), "resid_post.1", "sae")
    assert repr(sae).startswith(f"sae of resid_post.1 in {tmp_path / 'sae'}: explained variance ")
    said = sae.provenance
    asked = {"job": "sae", "site": "resid_post.1", "seed": 3, "threads": 1, "rate": 0.003, **SMALL}
    assert said["training"] == asked
    assert said["collection"]["model"] == acts.shards[0].note["model"]
    assert said["collection"]["prompts"]["ids"] == [list(prompt) for prompt in PROMPTS]
    assert said["versions"]["djinn"] == dj.__version__
    assert str(tmp_path) not in json.dumps(said)
    try:
        module = engine.add_module("sae", sae.folder)
        assert (module.site, module.features, module.activation) == ("sae.1", 12, "jumprelu")
        session = engine.session("main", fresh=True)
        session.breakpoint("resid_post.1")
        session.run(PROMPTS[0])
        residual, features = (np.asarray(session.inspect(site)) for site in ("resid_post.1", "sae.1"))
        values = _tensors(sae.folder / "sae_weights.safetensors")
        before = (residual - values["b_dec"]) @ values["W_enc"] + values["b_enc"]
        assert np.allclose(features, np.where(before > values["threshold"], before.clip(0), 0), atol=1e-5)
        session.close()
    finally:
        engine.remove_module("sae")


@pytest.mark.usefixtures("trains_here")
def test_a_transcoder_is_a_folder_that_the_engine_takes(engine: RemoteEngine, tmp_path: Path) -> None:
    acts = engine.collect(PROMPTS, ["mlp_in.1", "mlp_out.1"], to=tmp_path / "mlp")
    made = dj.train_transcoder(acts, site="mlp_in.1", to=tmp_path / "tc", **SMALL)
    assert (made.site, made.kind) == ("mlp_in.1", "transcoder")
    try:
        module = engine.add_module("tc", made.folder)
        assert (module.site, module.at, module.writes) == ("tc.1", "mlp_in.1", "mlp_out.1")
        assert (module.kind, module.activation, module.features) == ("transcoder", "jumprelu", 12)
    finally:
        engine.remove_module("tc")
    for site, written in (("mlp_in.1", "mlp_in.1"), ("mlp_in.1", "z.1"), ("resid_post.1", None)):
        with pytest.raises(UsageError, match=r"collect both, as in .* this collection has mlp_in\.1, mlp_out\.1\."):
            dj.train_transcoder(acts, site=site, written=written, to=tmp_path / "no", **SMALL)


@pytest.mark.usefixtures("trains_here")
def test_a_probe_and_a_steering_vector_are_sites(engine: RemoteEngine, acts: dj.Activations, tmp_path: Path) -> None:
    told = dj.train_probe(acts, ["b", "a", "b", "c"], site="resid_post.1", to=tmp_path / "probe", held_out=0)
    vector = dj.steering_vector(acts, [True, False, True, False], site="resid_post.1", to=tmp_path / "vector")
    assert told.provenance["training"]["classes"] == ["a", "b", "c"]
    assert told.figures["accuracy_trained"] > 0.8  # the first tokens are the same in two classes
    rows = [np.asarray(one) for one in acts["resid_post.1"]]
    apart = np.concatenate([rows[0], rows[2]]).mean(0) - np.concatenate([rows[1], rows[3]]).mean(0)
    assert np.allclose(vector.vector, apart, atol=1e-6)
    with pytest.raises(UsageError, match="has no vector"):
        _ = told.vector
    try:
        assert engine.add_module("told", told.folder).features == 3
        assert engine.add_module("along", vector.folder).site == "along.1"
        session = engine.session("main", fresh=True)
        session.breakpoint("along.1[0]")
        session.run(PROMPTS[0])
        assert np.asarray(session.inspect("told.1"))[1:].argmax(1).tolist() == [1, 1, 1, 1]
        session.close()
    finally:
        engine.remove_module("told")
        engine.remove_module("along")


def test_a_difference_of_means_starts_no_process_and_is_as_a_training_finds_it(
    engine: RemoteEngine, acts: dj.Activations, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from djinn_jupyter.modules.training import running

    positive, there = [True, False, True, False], {"site": "resid_post.1"}
    with monkeypatch.context() as patch:
        patch.setattr("subprocess.Popen", None)
        found = dj.steering_vector(acts, positive, to=tmp_path / "found", **there)
        assert dj.reproduce(engine, found, collection=acts).same
        with pytest.raises(UsageError, match=r"2 labels for 4 prompts"):
            dj.steering_vector(acts, positive[:2], to=tmp_path / "no", **there)
    job = SteeringJob(
        collection=str(acts.folder), to=str(tmp_path / "torch"), seed=0, threads=1, positive=tuple(positive),
        method="mean_difference", penalty=0.001, **there,
    )  # fmt: skip
    running.run(job, lambda done, of, loss: None)
    trained = module_in(tmp_path / "torch", "resid_post.1", "steering vector")
    assert np.allclose(found.vector, trained.vector, rtol=1e-6, atol=0)
    assert found.figures == pytest.approx(trained.figures)
    assert set(contents(found.folder)) == set(contents(trained.folder))
    assert dj.reproduce(engine, trained, collection=acts).same


def test_labels_that_fit_nothing_are_one_sentence(acts: dj.Activations, tmp_path: Path) -> None:
    for labels, sentence in [
        (["a", "b"], "There are 2 labels for 4 prompts with 14 positions"),
        (["a", "a", "a", "a"], "two classes at least"),
        (["a", 1, "b", 2], "is amiss"),
        ([0.5, float("nan"), 1.0, 2.0], "is amiss"),
        ("abcd", "Labels are a list"),
        ([], "Labels are a list"),
    ]:
        with pytest.raises(UsageError, match=sentence):
            dj.train_probe(acts, labels, site="resid_post.1", to=tmp_path / "probe")
        assert not (tmp_path / "probe").exists()


def test_the_same_call_has_the_same_bytes(acts: dj.Activations, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """In a process of its own and in this one."""

    def trained(name: str, seed: int) -> dict[str, bytes]:
        return contents(dj.train_sae(acts.folder, site="resid_post.1", to=tmp_path / name, seed=seed, **SMALL).folder)

    first = trained("first", 3)
    request.getfixturevalue("trains_here")
    assert first == trained("again", 3)
    assert first["sae_weights.safetensors"] != trained("other", 4)["sae_weights.safetensors"]


def test_a_call_that_cannot_be_meant_is_one_sentence(acts: dj.Activations, tmp_path: Path) -> None:
    for given, sentence in [
        ({}, "several sites; name one"),
        ({"site": "resid_post.2"}, "was not collected"),
        ({"site": "z.1"}, "a module reads a vector"),
        ({"site": "resid_post.1", "features": 0}, "features is a whole number from 1 to"),
        ({"site": "resid_post.1", "features": 8, "active": 9}, "active is a whole number from 1 to 8"),
        ({"site": "resid_post.1", "rate": float("nan")}, "rate is a number above 0"),
        ({"site": "resid_post.1", "seed": -1}, "seed is a whole number"),
        ({"site": "resid_post.1", "to": " "}, "names no folder"),
    ]:
        with pytest.raises(UsageError, match=sentence):
            dj.train_sae(acts, **{"to": tmp_path / "sae", **given})
        assert sorted(path.name for path in tmp_path.iterdir()) == ["acts"]


@pytest.mark.usefixtures("trains_here")
def test_a_folder_with_something_in_it_stays_as_it_is(acts: dj.Activations, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "thesis.txt").write_text("mine")
    with pytest.raises(UsageError, match="has something already"):
        dj.train_sae(acts, site="resid_post.1", to=kept, **SMALL)
    (tmp_path / "file").write_text("mine")
    with pytest.raises(StorageFailed, match="could not be written"):
        dj.train_sae(acts, site="resid_post.1", to=tmp_path / "file" / "sae", **SMALL)
    assert contents(kept) == {"thesis.txt": b"mine"}


def test_a_process_that_ends_by_itself_is_told_with_its_last_line(
    acts: dj.Activations, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "RUN", "import sys; sys.exit('no room here')")
    with pytest.raises(TrainingFailed, match="status 1: no room here"):
        dj.train_sae(acts, site="resid_post.1", to=tmp_path / "sae", **SMALL)


def interrupted(done: int, of: int, loss: float) -> None:
    raise KeyboardInterrupt


LONG: dict[str, Any] = {**SMALL, "steps": 1_000_000}
OTHER: dict[str, Any] = {"steps": 1_000_000, "held_out": 0, "on_progress": interrupted}
TRAININGS: dict[str, Callable[[RemoteEngine, dj.Activations, Path], object]] = {
    "sae": lambda engine, acts, to: dj.train_sae(acts, site="resid_post.1", to=to, on_progress=interrupted, **LONG),
    "tuned lens": lambda engine, acts, to: dj.train_tuned_lens(engine, acts, site="resid_post.1", to=to, **OTHER),
}


@pytest.mark.parametrize("kind", TRAININGS)
def test_an_interrupt_keeps_the_module_so_far(engine: RemoteEngine, tmp_path: Path, kind: str) -> None:
    acts = engine.collect(PROMPTS, ["resid_post.1", "resid_post.2"], to=tmp_path / "acts")
    with pytest.raises(
        dj.WorkInterrupted, match=r"its process was ended\. `kept` of this error is the module so far"
    ) as it:
        TRAININGS[kind](engine, acts, tmp_path / "cut")
    kept: Any = it.value.kept
    far = kept.provenance["interrupted"]
    assert 0 < far["done"] < far["of"]
    assert (kept.folder, kept.kind) == (tmp_path / "cut", kind)
    assert f"interrupted at step {far['done']:,} of {far['of']:,}" in repr(kept)
    added = engine.add_module("cut", kept.folder)
    assert added.site.startswith("cut.")
    engine.remove_module("cut")
    with pytest.raises(UsageError, match=r"was interrupted at step .*train it whole"):
        dj.reproduce(engine, kept)


def test_a_second_interrupt_ends_the_process_and_writes_nothing(
    acts: dj.Activations, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def impatient(process: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("djinn_jupyter.modules.training.process._hear_out", impatient)
    send = subprocess.Popen.send_signal
    monkeypatch.setattr(
        "subprocess.Popen.send_signal", lambda process, number: number == signal.SIGINT or send(process, number)
    )
    with pytest.raises(dj.WorkInterrupted, match=r"interrupted, and its process was ended\. Nothing was written\."):
        dj.train_sae(acts, site="resid_post.1", to=tmp_path / "sae", on_progress=interrupted, **LONG)
    assert not (tmp_path / "sae").exists()


def test_an_interrupt_behind_the_last_step_says_that_the_module_is_there(acts: dj.Activations, tmp_path: Path) -> None:
    def interrupt(done: int, of: int, loss: float) -> None:
        if done == of:
            until((tmp_path / "sae").exists, "the module's folder")
            raise KeyboardInterrupt

    with pytest.raises(dj.WorkInterrupted, match=r"It was done by then: the module is in .*sae\.$"):
        dj.train_sae(acts, site="resid_post.1", to=tmp_path / "sae", on_progress=interrupt, **SMALL)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def _tensors(path: Path) -> dict[str, np.ndarray[Any, Any]]:
    from safetensors.numpy import load_file

    return load_file(path)
