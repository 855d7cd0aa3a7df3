"""Edits and rules of an SAE's features change the point as a plain hook does that does the same."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from djinn_jupyter.errors import InvalidEdit, UsageError
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.edits import Add, Edit, Scale, Set, Zero
from tests import saes
from tests.engine.added.adding import add, opened, remove
from tests.engine.desk import Desk, array, tokens
from tests.families import build

PROMPT = tokens(12)
UNIT = 17
EDITS: list[tuple[Edit, Any]] = [
    (Scale(factor=3.0), lambda feature: 3.0 * feature),
    (Zero(), torch.zeros_like),
    (Set(value=array(2.5)), lambda feature: torch.full_like(feature, 2.5)),
    (Add(vector=array(1.5)), lambda feature: feature + 1.5),
]


@pytest.fixture
def desk(llama: Desk) -> Iterator[Desk]:
    yield from opened(llama)


@pytest.fixture
def tensors(desk: Desk, tmp_path: Path) -> saes.Tensors:
    tensors = saes.drawn(desk.engine.anatomy.hidden_size)
    add(desk, saes.saved(tmp_path / "sae", tensors))
    return tensors


def hooked(splice: Any) -> tuple[Tensor, Tensor]:
    """Return resid_post.4 as a plain hook leaves it, and the logits of the last position."""
    model, seen = build("llama", layers=8), []

    def hook(module: Any, args: Any, output: Any) -> Any:
        made = splice(output[0] if isinstance(output, tuple) else output)
        seen.append(made[0])
        return (made, *output[1:]) if isinstance(output, tuple) else made

    with model.model.layers[4].register_forward_hook(hook), torch.inference_mode():
        logits = model(torch.tensor([PROMPT])).logits
    return seen[0], logits[0, -1]


def by_row(tensors: saes.Tensors, change: Any) -> Any:
    """Splice one feature by hand: the row of the decoder times the change of the feature."""

    def splice(hidden: Tensor) -> Tensor:
        features = saes.encode(hidden[0], tensors)[:, UNIT]
        return hidden + ((change(features) - features)[:, None] * tensors["W_dec"][UNIT])[None]

    return splice


@pytest.mark.parametrize(("edit", "change"), EDITS, ids=lambda one: type(one).__name__)
def test_an_edit_at_a_stop_is_that_of_a_plain_hook(desk: Desk, tensors: saes.Tensors, edit: Edit, change: Any) -> None:
    desk.stop_at(f"sae.4[{UNIT}]")
    desk.run(PROMPT, 1)
    edited = desk.edit(edit)
    point, logits = hooked(by_row(tensors, change))
    torch.testing.assert_close(desk.value("resid_post.4"), point, rtol=1e-5, atol=1e-5)
    desk.resume(free=True)
    torch.testing.assert_close(desk.logits(), logits, rtol=1e-4, atol=1e-4)
    assert (edited.site, edited.shape) == (f"sae.4[{UNIT}]", (12, 1))
    desk.open()
    desk.steer(f"sae.4[{UNIT}]", edit)
    desk.run(PROMPT, 1)
    torch.testing.assert_close(desk.logits(), logits, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("cfg", [{}, {"normalize_activations": "layer_norm"}], ids=str)
def test_without_the_error_term_the_point_is_the_reconstruction(desk: Desk, tmp_path: Path, cfg: Any) -> None:
    tensors = saes.drawn(desk.engine.anatomy.hidden_size)
    add(desk, saes.saved(tmp_path, tensors, **cfg), error_term=False)

    def splice(hidden: Tensor) -> Tensor:
        features = saes.encode(hidden[0], tensors, **cfg)
        features[:, UNIT] = 0.0
        return saes.decode(hidden[0], features, tensors, **cfg)[None]

    desk.stop_at(f"sae.4[{UNIT}]")
    desk.run(PROMPT, 1)
    desk.edit(Zero())
    torch.testing.assert_close(desk.value("resid_post.4"), hooked(splice)[0], rtol=1e-4, atol=1e-5)


def test_an_edit_that_changes_no_feature_changes_no_bit(desk: Desk, tensors: saes.Tensors) -> None:
    desk.stop_at("resid_post.4")
    desk.run(PROMPT, 1)
    before = desk.value()
    alone = desk.outcome(desk.resume(free=True))
    desk.open()
    desk.stop_at("sae.4")
    desk.run(PROMPT, 1)
    desk.edit(Scale(factor=1.0))
    assert torch.equal(desk.value("resid_post.4").view(torch.int32), before.view(torch.int32))
    desk.edit(Zero(), site=f"sae.4[{UNIT}]", positions=(3,))
    changed = (desk.value("resid_post.4") != before).any(1)
    assert changed.nonzero().flatten().tolist() in ([3], [])  # where the feature was zero, nothing
    desk.open()
    rule = desk.steer("sae.4", Scale(factor=1.0)).rule
    assert desk.outcome(desk.run(PROMPT, 1)) == alone
    assert rule.number in [one.number for one in desk.describe().rules]


def test_edits_go_back_and_are_made_again_to_the_same_bits(desk: Desk, tensors: saes.Tensors) -> None:
    desk.stop_at(f"sae.4[{UNIT}]")
    desk.run(PROMPT, 1)
    before = desk.value("resid_post.4")
    desk.edit(Add(vector=array(2.0)))
    edited = desk.value("resid_post.4")
    desk.ask(ask.RevertEdits(session="a"))
    assert torch.equal(desk.value("resid_post.4"), before)
    desk.edit(Add(vector=array(2.0)))
    assert torch.equal(desk.value("resid_post.4"), edited)
    assert not torch.equal(edited, before)
    desk.step(1)
    desk.back(1)
    assert torch.equal(desk.value("resid_post.4"), before)


def test_what_cannot_be_put_back_is_said(desk: Desk, tensors: saes.Tensors, tmp_path: Path) -> None:
    transcoder = saes.drawn(desk.engine.anatomy.hidden_size)
    add(desk, saes.saved(tmp_path / "t", transcoder, "transcoder"), "resid_pre.2", "trans")
    with pytest.raises(InvalidEdit, match=r"trans.2 can be looked at, not changed: a transcoder is put back where it"):
        desk.steer("trans.2[1]")
    desk.stop_at("trans.2[1]")
    with pytest.raises(UsageError, match=r"trans\.2 is used by session 'a'"):
        remove(desk, "trans")
    desk.clear()
    assert remove(desk, "trans") == 1


def test_the_lens_reads_what_features_write(desk: Desk, tensors: saes.Tensors) -> None:
    desk.stop_at("resid_post.4")
    desk.run(PROMPT, 1)
    x = desk.value()
    features = saes.encode(x, tensors)
    alone = torch.zeros_like(features)
    alone[:, UNIT] = features[:, UNIT]
    for site, written in (
        ("sae.4", saes.decode(x, features, tensors)),
        (f"sae.4[{UNIT}]", alone @ tensors["W_dec"]),
    ):
        read = desk.ask(ask.Lens(session="a", site=site, top=1))
        best = [int(logits.argmax()) for logits in desk.engine.forward.lens(written)]
        active = [row for row in range(12) if written[row].any()]
        assert active
        assert [read.rows[row].top[0].token for row in active] == [best[row] for row in active]
        assert read.site == site


def test_values_within_a_layer_are_edited_too(desk: Desk, tmp_path: Path) -> None:
    tensors = saes.drawn(desk.engine.anatomy.hidden_size)
    add(desk, saes.saved(tmp_path, tensors), "mlp_out.3", "mlp_sae")
    desk.stop_at("mlp_out.3")
    desk.run(PROMPT, 1)
    x = desk.value()
    desk.open()
    desk.stop_at(f"mlp_sae.3[{UNIT}]")
    desk.run(PROMPT, 1)
    torch.testing.assert_close(desk.value("mlp_sae.3"), saes.encode(x, tensors), rtol=1e-4, atol=1e-5)
    desk.edit(Add(vector=array(2.0)))
    torch.testing.assert_close(desk.value("mlp_out.3"), x + 2.0 * tensors["W_dec"][UNIT], rtol=1e-5, atol=1e-5)


def test_an_sae_of_z_reads_all_heads_as_one_vector(desk: Desk, tmp_path: Path) -> None:
    desk.stop_at("z.3")
    desk.run(PROMPT, 1)
    z = desk.value()
    tensors = saes.drawn(z[0].numel())
    add(desk, saes.saved(tmp_path, tensors, reshape_activations="hook_z"), "z.3", "z_sae")
    desk.open()
    desk.stop_at("z_sae.3")
    desk.run(PROMPT, 1)
    torch.testing.assert_close(desk.value("z_sae.3"), saes.encode(z.flatten(1), tensors), rtol=1e-4, atol=1e-5)
    desk.edit(Add(vector=array(2.0)), site=f"z_sae.3[{UNIT}]")
    expected = z + 2.0 * tensors["W_dec"][UNIT].reshape(z[0].shape)
    torch.testing.assert_close(desk.value("z.3"), expected, rtol=1e-5, atol=1e-5)
