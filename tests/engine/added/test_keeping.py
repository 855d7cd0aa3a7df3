"""A journal and a checkpoint keep modules by path and digest: what an engine that died had armed is armed again."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from djinn_jupyter.engine.loop.mailbox import Holder
from djinn_jupyter.errors import CheckpointRefused, UnknownSite, UsageError
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.edits import Add, Scale
from tests import saes
from tests.engine.added.adding import add, remove, request
from tests.engine.desk import Desk, array, tokens
from tests.engine.persistence.crashes import crashed, died, journal, pair_with_journal, written
from tests.engine.persistence.roundtrip import carry, future, reading, same

PROMPT = tokens(12)
Pair = tuple[Desk, Desk]


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    with pair_with_journal(tmp_path, without_modules) as pair:
        yield pair


def without_modules(desk: Desk) -> None:
    for module in desk.ask(ask.ListAddedModules()).modules:
        desk.ask(ask.RemoveModule(name=module.name))
    assert desk.engine.budget.held()["modules"] == 0


def sae(desk: Desk, folder: Path) -> Path:
    return saes.saved(folder, saes.drawn(desk.engine.anatomy.hidden_size))


def begin(desk: Desk, name: str = "a") -> None:
    """Stop at a feature, edited, with a rule and a watch of features armed."""
    desk.ask(ask.Watch(session=name, site="sae.4[3]"))
    desk.steer("sae.4[5]", Scale(factor=2.0), name)
    desk.stop_at("sae.4[17]", "value > -1", name)
    desk.run(PROMPT, 3, name)
    desk.edit(Add(vector=array(1.5)), name)


def test_an_engine_that_died_comes_back_with_the_module(pair: Pair, tmp_path: Path) -> None:
    one, other = pair
    folder = sae(one, tmp_path / "sae")
    add(one, folder)
    one.open()
    begin(one)
    died(one, other, tmp_path)
    (module,) = other.ask(ask.ListAddedModules()).modules
    assert (module.site, module.folder, module.missing) == ("sae.4", str(folder), None)
    assert module.bytes_held == other.engine.budget.held()["modules"] > 0
    assert [one.site for one in other.describe().breakpoints] == ["sae.4[17]"]
    assert same(reading(one), reading(other))
    assert torch.equal(one.value("sae.4"), other.value("sae.4"))
    assert same(future(one), future(other))


def test_a_module_of_folded_weights_comes_back_as_it_was(pair: Pair, tmp_path: Path) -> None:
    one, other = pair
    said = {"hook_name": "blocks.4.mlp.hook_in", "model_from_pretrained_kwargs": {"fold_ln": True}}
    tensors = saes.drawn(one.engine.anatomy.hidden_size)
    add(one, saes.saved(tmp_path / "sae", tensors, metadata=said), "mlp_in.4")
    one.open()
    begin(one)
    died(one, other, tmp_path)
    assert same(reading(one), reading(other))
    found = other.value("sae.4")
    assert torch.equal(one.value("sae.4"), found)
    assert not torch.allclose(saes.encode(other.value("mlp_in.4"), tensors), found, atol=0.01)


LOSSES: dict[str, Any] = {
    "is gone": lambda folder: shutil.rmtree(folder),
    "is another": lambda folder: saes.saved(folder, saes.drawn(32, seed=9)),
    "is cut short": lambda folder: (folder / "sae_weights.safetensors").write_bytes(b"short"),
}


@pytest.mark.parametrize("loss", LOSSES)
def test_a_session_says_which_module_is_missing_and_goes_on_with_it(pair: Pair, tmp_path: Path, loss: str) -> None:
    one, other = pair
    folder = sae(one, tmp_path / "sae")
    add(one, folder)
    one.open()
    begin(one)
    shutil.copytree(folder, tmp_path / "copy")
    LOSSES[loss](folder)
    died(one, other, tmp_path)
    (module,) = other.ask(ask.ListAddedModules()).modules
    assert module.missing.startswith("The module sae.4, which this session was kept with, is not there: ")
    assert f"Add it again (%djinn_add_module sae {folder} --at resid_post.4)." in module.missing
    assert [one.site for one in other.describe().breakpoints] == ["sae.4[17]"]
    for verb in (other.value, lambda: other.run(PROMPT, 1)):
        with pytest.raises(UnknownSite, match=r"The module sae\.4, which this session was kept with, is not there"):
            verb()
    assert not add(other, tmp_path / "copy").existed
    assert [one.missing for one in other.ask(ask.ListAddedModules()).modules] == [None]
    one.run(PROMPT, 3)
    other.run(PROMPT, 3)
    assert torch.equal(one.value("sae.4"), other.value("sae.4"))
    assert same(future(one), future(other))


def test_a_persons_folder_is_not_read_by_the_engine(pair: Pair, tmp_path: Path) -> None:
    one, other = pair
    anna = Holder(name="kernel", user="anna", person="anna")
    found = sae(one, tmp_path / "sae")
    for desk in (one, other):
        desk.engine.ask(ask.Open(session="anna@main"), anna)
    one.engine.ask(request(found, "resid_post.4", session="anna@main"), anna)
    one.engine.ask(ask.SetBreakpoint(session="anna@main", site="sae.4[17]"), anna)
    other.close_all()
    written(one)
    journal(other, crashed(tmp_path / "alive", tmp_path / "dead"))
    (module,) = other.engine.ask(ask.ListAddedModules(), anna).modules
    assert "Its folder lies on the machine of its person." in (module.missing or "")
    assert other.ask(ask.ListAddedModules()).modules == ()
    for desk in (one, other):
        desk.close("anna@main")
        desk.engine.ask(ask.RemoveModule(name="sae"), anna)


def test_a_checkpoint_finds_its_module_where_it_is_restored(pair: Pair, tmp_path: Path) -> None:
    one, other = pair
    add(one, sae(one, tmp_path / "sae"))
    one.open()
    begin(one)
    other.open()
    carry(one, other)
    assert torch.equal(one.value("sae.4"), other.value("sae.4"))
    other.close_all()
    remove(other)
    add(other, saes.saved(tmp_path / "another", saes.drawn(one.engine.anatomy.hidden_size, seed=3)))
    with pytest.raises(CheckpointRefused, match=r"and sae\.4 here is another module"):
        carry(one, other)
    assert "a" not in other.engine.sessions


def test_a_name_that_stops_still_have_is_given_to_no_other_module(pair: Pair, tmp_path: Path) -> None:
    one, _ = pair
    folder = sae(one, tmp_path / "sae")
    add(one, folder)
    one.open()
    one.stop_at("sae.4[17]")
    one.run(PROMPT, 3)
    one.clear()
    remove(one)
    with pytest.raises(UnknownSite, match="no module or point"):
        one.value("sae.4")
    with pytest.raises(UsageError, match="has stops or passes at another module"):
        add(one, saes.saved(tmp_path / "another", saes.drawn(one.engine.anatomy.hidden_size, seed=3)))
    with pytest.raises(UnknownSite, match=r"The module sae\.4 was removed; add it again from"):
        one.ask(ask.ReadStop(session="a"))
    add(one, folder)
    assert one.value("sae.4").shape == (12, saes.FEATURES)
    assert one.ask(ask.ReadStop(session="a")).site == "sae.4[17]"
