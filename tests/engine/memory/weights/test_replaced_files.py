"""Weights that are mapped from files: work stops where the files are others by now, and goes on where they are back."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest
import torch

from djinn_jupyter.engine.model.loading.load import load_model
from djinn_jupyter.engine.process.build import build_engine, open_engine
from djinn_jupyter.engine.process.weight_plan import Settled
from djinn_jupyter.engine.store.identity import identity_of
from djinn_jupyter.engine.system.config import EngineConfig
from djinn_jupyter.errors import StorageFailed
from djinn_jupyter.files import first_change, stamps_in
from djinn_jupyter.wire import requests as ask
from tests.engine.desk import Desk, tokens
from tests.engine.memory.weights.streaming import PAGES, streamed_weights
from tests.families import build

PROMPT = tokens(9)
FILE: Final = "model.safetensors"
REFUSED: Final = rf"{FILE} .*, and this engine computes from that file: put the file back"


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two models of one form: `one`, and `other`, with other weights."""
    folder = tmp_path_factory.mktemp("saved")
    for seed, name in enumerate(("one", "other")):
        build("llama", seed=seed).save_pretrained(folder / name)
    return folder


@pytest.fixture
def model(saved: Path, tmp_path: Path) -> Path:
    shutil.copytree(saved, tmp_path / "saved")
    return tmp_path / "saved" / "one"


@pytest.fixture(params=["resident", "streamed"])
def desk(request: pytest.FixtureRequest, model: Path) -> Desk:
    return opened(model) if request.param == "resident" else opened_streamed(model)


def opened(model: Path, **options: Any) -> Desk:
    return Desk(open_engine(config(model, **options)))


def opened_streamed(model: Path) -> Desk:
    """An engine on the CPU, of which all layers stream from the file that is mapped."""
    loaded = load_model(config(model))
    identity = identity_of(loaded.model, loaded.device)
    weights = streamed_weights(loaded.model, stamps=loaded.files, device=loaded.device)
    settled = Settled(identity=identity, weights=weights, page_bytes=PAGES)
    return Desk(build_engine(config(model), loaded, lambda event: None, lambda text: None, settled))


def config(model: Path, **options: Any) -> EngineConfig:
    return EngineConfig(model=str(model), device="cpu", page_positions=4, no_journal=True, **options)


def written_over(file: Path, other: Path) -> None:
    with file.open("r+b") as there:
        there.write((other / FILE).read_bytes())


def cut_short(file: Path, other: Path) -> None:
    os.truncate(file, 4096)


def replaced(file: Path, other: Path) -> None:
    """Replace it by one of the same size and time."""
    was = file.stat()
    shutil.copy(other / FILE, file.with_suffix(".part"))
    os.utime(file.with_suffix(".part"), ns=(was.st_atime_ns, was.st_mtime_ns))
    file.with_suffix(".part").replace(file)


def moved_away(file: Path, other: Path) -> None:
    file.parent.rename(file.parent.with_name("away"))


def led_elsewhere(file: Path, other: Path) -> None:
    file.unlink()
    file.symlink_to(other / FILE)


CHANGES: Final = (
    ("streamed", written_over),
    ("resident", cut_short),
    ("streamed", replaced),
    ("resident", moved_away),
    ("resident", led_elsewhere),
)


@pytest.mark.parametrize(("desk", "change"), CHANGES, indirect=["desk"])
def test_work_is_refused_while_the_file_is_another(
    desk: Desk, model: Path, change: Callable[[Path, Path], None]
) -> None:
    desk.open("held")
    desk.stop_at("resid_post.2", name="held")
    desk.run(PROMPT, 3, "held")
    change(model / FILE, model.parent / "other")
    requests = (
        ask.Run(session=desk.open(), tokens=PROMPT, max_new_tokens=2),
        ask.Resume(session="held"),
        ask.Step(session="held"),
        ask.ReadWeight(name="W_Q.2"),
        ask.Lens(session="held"),
    )
    for request in requests:
        with pytest.raises(StorageFailed, match=REFUSED):
            desk.ask(request)
    if desk.engine.weights.streamed:
        return
    with pytest.raises(StorageFailed, match=REFUSED):  # the checksums to wake by would be of the other model
        desk.ask(ask.Sleep())


def test_work_goes_on_with_the_same_bits_where_the_file_is_back(desk: Desk, model: Path) -> None:
    desk.open()
    whole = desk.run(PROMPT, 3)
    logits = desk.logits().clone()
    (model / FILE).rename(model / "aside")
    shutil.copy(model.parent / "other" / FILE, model / FILE)
    with pytest.raises(StorageFailed):
        desk.run(PROMPT, 3)
    (model / "aside").rename(model / FILE)
    assert desk.run(PROMPT, 3).tokens == whole.tokens
    assert torch.equal(desk.logits(), logits)


def test_a_change_in_the_midst_of_a_pass_gives_no_number(model: Path) -> None:
    desk = opened(model)
    layer = desk.engine.anatomy.layers[3]
    layer.register_forward_hook(lambda *_: written_over(model / FILE, model.parent / "other"))
    desk.open()
    with pytest.raises(StorageFailed, match=REFUSED):
        desk.run(PROMPT, 1)


def test_what_lies_in_memory_is_computed_with_whatever_becomes_of_the_file(model: Path) -> None:
    desk = opened(model, dtype="bfloat16")
    desk.open()
    desk.run(PROMPT, 2)
    logits = desk.logits().clone()
    written_over(model / FILE, model.parent / "other")
    desk.run(PROMPT, 2)
    assert torch.equal(desk.logits(), logits)
    assert first_change(desk.engine.files) == f"{FILE} was written to"


def test_weights_that_slept_take_the_same_bytes_from_another_file(model: Path) -> None:
    desk = opened(model)
    desk.open()
    desk.run(PROMPT, 2)
    logits = desk.logits().clone()
    desk.ask(ask.Sleep())
    shutil.copy(model / FILE, model / "copy")
    (model / "copy").replace(model / FILE)
    desk.run(PROMPT, 2)
    assert torch.equal(desk.logits(), logits)
    written_over(model / FILE, model.parent / "other")
    with pytest.raises(StorageFailed, match=REFUSED):
        desk.run(PROMPT, 2)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("config.json", "was written to"),
        ("generation_config.json", "was written to"),
        ("adapter_config.json", "is new"),
        ("model.safetensors.index.json", "is new"),
        ("tokenizer.json", "is new"),
    ],
)
def test_each_file_that_a_load_would_read_is_compared_at_attach(model: Path, name: str, said: str) -> None:
    stamps = stamps_in(model)
    assert first_change(stamps) is None
    for beside in ("README.md", "trainer_state.json", "training_args.bin"):
        (model / beside).write_text("of no weight")
    assert first_change(stamps) is None
    (model / name).write_text("{}  ")
    assert first_change(stamps) == f"{name} {said}" or (first_change(stamps) or "").startswith(f"{name} was cut short")


def test_in_the_hubs_cache_the_name_that_leads_to_a_commit_is_compared(tmp_path: Path) -> None:
    (tmp_path / "refs").mkdir()
    (tmp_path / "refs" / "main").write_text("abc")
    (tmp_path / "blobs").mkdir()
    (tmp_path / "blobs" / "1").write_bytes(b"weights")
    snapshot = tmp_path / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (snapshot / FILE).symlink_to("../../blobs/1")
    stamps = stamps_in(snapshot)
    assert first_change(stamps) is None
    (tmp_path / "refs" / "main").write_text("abd ")
    assert first_change(stamps) == "main was written to"
    (tmp_path / "blobs" / "1").write_bytes(b"weight")
    assert first_change(stamps) == f"{FILE} was cut short: it has 6 bytes and had 7"
