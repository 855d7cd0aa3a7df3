"""A transcoder reads what an MLP is given and writes what it makes; an edit of its features is a hook on the MLP."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from djinn_jupyter.errors import InvalidEdit, UsageError
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.edits import Add, Scale
from tests import saes
from tests.engine.added.adding import add
from tests.engine.added.plain_mlps import PROMPT, hooked
from tests.engine.desk import Desk, array

LAYER, UNIT = 2, 7
SITE = f"trans.{LAYER}"


def saved(desk: Desk, folder: Path, **cfg: Any) -> saes.Tensors:
    """Add a transcoder of the MLP, and return its tensors."""
    error_term = cfg.pop("error_term", True)
    tensors = saes.drawn(desk.engine.anatomy.hidden_size)
    add(desk, saes.saved(folder, tensors, "transcoder", **cfg), f"mlp_in.{LAYER}", "trans", error_term=error_term)
    return tensors


def encoded(x: Tensor, tensors: saes.Tensors) -> Tensor:
    return (x @ tensors["W_enc"] + tensors["b_enc"]).relu()


def test_features_are_read_and_an_edit_of_them_is_written_to_what_the_mlp_makes(
    desk: Desk, family: str, tmp_path: Path
) -> None:
    tensors = saved(desk, tmp_path)
    (module,) = desk.ask(ask.ListAddedModules()).modules
    assert (module.at, module.writes, module.why_not_edited) == (f"mlp_in.{LAYER}", f"mlp_out.{LAYER}", None)
    desk.stop_at(f"{SITE}[{UNIT}]", "value > -1")
    assert desk.run(PROMPT, 1).site == f"{SITE}[{UNIT}]"
    untouched = hooked(family)
    torch.testing.assert_close(desk.value(SITE), encoded(untouched.read[LAYER], tensors), rtol=1e-4, atol=1e-5)
    desk.edit(Add(vector=array(2.0)))
    finished = desk.outcome(desk.resume(free=True))
    plain = hooked(family, {LAYER: lambda given, made: made + 2.0 * tensors["W_dec"][UNIT]})
    torch.testing.assert_close(finished.logits, plain.logits, rtol=1e-4, atol=1e-4)
    assert float((plain.logits - untouched.logits).abs().max()) > 1e-2


def test_a_stop_that_goes_on_unedited_changes_no_bit(desk: Desk, tmp_path: Path) -> None:
    saved(desk, tmp_path)
    straight = desk.outcome(desk.run(PROMPT, 3))
    desk.open()
    desk.stop_at(SITE)
    desk.ask(ask.Watch(session="a", site=f"{SITE}[{UNIT}]"))
    desk.run(PROMPT, 3)
    first = desk.value("mlp_out.2")
    desk.edit(Scale(factor=1.0))
    assert torch.equal(desk.value("mlp_out.2"), first)
    desk.resume()
    desk.back(1)
    assert torch.equal(desk.value("mlp_out.2"), first)
    desk.clear()
    assert desk.outcome(desk.resume(free=True)) == straight


def test_without_the_error_term_the_mlp_makes_what_the_features_make(desk: Desk, family: str, tmp_path: Path) -> None:
    tensors = saved(desk, tmp_path, error_term=False)
    desk.steer(SITE, Scale(factor=1.0))
    finished = desk.outcome(desk.run(PROMPT, 1))

    def spliced(given: Tensor, made: Tensor) -> Tensor:
        return encoded(given, tensors) @ tensors["W_dec"] + tensors["b_dec"]

    torch.testing.assert_close(finished.logits, hooked(family, {LAYER: spliced}).logits, rtol=1e-4, atol=1e-4)


def test_a_split_model_takes_none(desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(desk.engine.forward, "split", True)
    with pytest.raises(UsageError, match="A model that --tensor-parallel splits takes no transcoder"):
        saved(desk, tmp_path)


def test_one_of_another_model_or_place_is_said(desk: Desk, tmp_path: Path) -> None:
    tensors = saes.drawn(desk.engine.anatomy.hidden_size)
    wide = {**tensors, "W_dec": torch.cat([tensors["W_dec"]] * 2, -1), "b_dec": torch.cat([tensors["b_dec"]] * 2)}
    with pytest.raises(UsageError, match=r"The transcoder writes 64 numbers at each position, and the MLP makes 32"):
        add(desk, saes.saved(tmp_path / "wide", wide, "transcoder"), "mlp_in.2", "trans")
    elsewhere = {"hook_name": "blocks.2.mlp.hook_in", "hook_name_out": "blocks.3.hook_mlp_out"}
    add(desk, saes.saved(tmp_path / "e", tensors, "transcoder", metadata=elsewhere), "mlp_in.2", "trans")
    with pytest.raises(InvalidEdit, match=r"its files say that it writes to blocks\.3\.hook_mlp_out"):
        desk.steer("trans.2[1]")
