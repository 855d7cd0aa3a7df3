"""A module is added where its tensors fit its form and the point; anything else is a sentence, and holds nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from djinn_jupyter.engine.loop.mailbox import Holder
from djinn_jupyter.engine.system.arrays import to_array
from djinn_jupyter.errors import IllegalMove, InvalidEdit, SlabFull, UnknownSite, UsageError
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.modules import ModuleForm
from tests import saes
from tests.engine.added.adding import add, opened, remove
from tests.engine.desk import ME, Desk, build_desk, tokens
from tests.families import build

PROMPT = tokens(12)


@pytest.fixture
def desk(llama: Desk) -> Iterator[Desk]:
    yield from opened(llama)
    assert held(llama) == 0


@pytest.fixture
def width(desk: Desk) -> int:
    return desk.engine.anatomy.hidden_size


def held(desk: Desk) -> int:
    """Return the bytes that modules hold of the budget, whose parts add up."""
    desk.engine.budget.check()
    return desk.engine.budget.held()["modules"]


def test_what_was_added_is_listed_and_counted(desk: Desk, width: int, tmp_path: Path) -> None:
    folder = saes.saved(tmp_path, saes.drawn(width), metadata={"hook_name": "blocks.4.hook_resid_pre"})
    made = add(desk, folder)
    module = made.module
    size = 4 * (2 * width * saes.FEATURES + width + saes.FEATURES)
    assert (module.site, module.at, module.inputs, module.features) == ("sae.4", "resid_post.4", width, saes.FEATURES)
    assert (module.folder, module.bytes_held, held(desk)) == (str(folder), size, size)
    assert module.note == "its files say that it was trained at blocks.4.hook_resid_pre"
    assert desk.ask(ask.ListAddedModules()).modules == (module,)
    assert add(desk, folder).existed
    assert held(desk) == size
    add(desk, folder, "resid_post.2")
    assert [one.site for one in desk.ask(ask.ListAddedModules()).modules] == ["sae.2", "sae.4"]
    assert desk.ask(ask.RemoveModule(name="sae", layer=2)).count == 1
    assert remove(desk) == 1


def test_another_module_does_not_take_the_place_of_one(desk: Desk, width: int, tmp_path: Path) -> None:
    add(desk, saes.saved(tmp_path / "one", saes.drawn(width)))
    with pytest.raises(UsageError, match=r"There is another module sae\.4 already"):
        add(desk, saes.saved(tmp_path / "two", saes.drawn(width, seed=1)))
    with pytest.raises(UsageError, match=r"There is another module sae\.4 already"):
        add(desk, tmp_path / "one", error_term=False)


@pytest.mark.parametrize(
    ("at", "sentence"),
    [
        ("resid_post.99", "this model has layers"),
        ("resid_post.4[3]", "A module reads a point of one layer"),
        ("model.layers.4.mlp", "A module reads a point of one layer"),
        ("logits", "A module reads a point of one layer"),
        ("attn_scores.4", "which no module reads|There is no attn_scores"),
        ("mlp_post.4", "and mlp_post.4 has"),
        ("nonsense", "This model has no module|A module reads"),
    ],
)
def test_a_point_that_it_cannot_read_is_refused(desk: Desk, width: int, tmp_path: Path, at: str, sentence: str) -> None:
    with pytest.raises((UsageError, UnknownSite), match=sentence):
        add(desk, saes.saved(tmp_path, saes.drawn(width)), at)


def test_names_of_the_model_are_not_given_away(desk: Desk, width: int, tmp_path: Path) -> None:
    folder = saes.saved(tmp_path, saes.drawn(width))
    for name in ("resid_post", "z", "logits"):
        with pytest.raises(UsageError, match="is the name of a point"):
            add(desk, folder, name=name)


def changed(tensors: saes.Tensors, **others: Any) -> saes.Tensors:
    return {name: tensor for name, tensor in (tensors | others).items() if tensor is not None}


def test_tensors_that_do_not_fit_are_named(desk: Desk, width: int, tmp_path: Path) -> None:
    good = saes.drawn(width)
    nan = good["b_enc"].clone()
    nan[3] = torch.nan
    wrong: dict[str, tuple[saes.Tensors, str]] = {
        "of another width": (saes.drawn(width + 2), f"has d_in {width}, and the tensors beside it have {width + 2}"),
        "without b_enc": (changed(good, b_enc=None), "lacks b_enc"),
        "with more": (changed(good, W_skip=good["W_enc"].clone()), "has W_skip besides"),
        "a flat encoder": (changed(good, W_enc=good["b_enc"].clone()), "it has to be a matrix|b_dec has shape"),
        "a turned decoder": (changed(good, W_dec=good["W_dec"].T), "W_dec has shape"),
        "a short bias": (changed(good, b_enc=good["b_enc"][:-1]), "b_enc has shape"),
        "a NaN": (changed(good, b_enc=nan), "b_enc has NaN or infinity"),
    }
    for number, (kind, (tensors, sentence)) in enumerate(wrong.items()):
        folder = tmp_path / str(number)
        saes.saved(folder, good)
        save_file({name: one.contiguous() for name, one in tensors.items()}, folder / "sae_weights.safetensors")
        with pytest.raises(UsageError, match=sentence):
            add(desk, folder)
        assert held(desk) == 0, kind
    with pytest.raises(UsageError, match=f"k is {saes.FEATURES + 1}"):
        add(desk, saes.saved(tmp_path / "k", good, "topk", k=saes.FEATURES + 1))
    large = changed(good, b_enc=good["b_enc"] + 1e6)
    with pytest.raises(UsageError, match="b_enc has NaN or infinity in float16"):
        add(desk, saes.saved(tmp_path / "half", large, dtype="float16"))


UNUSED: tuple[tuple[str, dict[str, object]], ...] = (
    ("normalization", {"kind": "probe", "normalization": "layer_norm"}),
    ("centered", {"kind": "tuned_lens", "centered": True}),
    ("k", {"kind": "probe", "k": 3}),
    ("k", {"kind": "sae", "k": 3}),
    ("by_decoder_norm", {"kind": "sae", "activation": "jumprelu", "by_decoder_norm": True}),
)


@pytest.mark.parametrize(("name", "said"), UNUSED, ids=str)
def test_a_field_of_a_declared_form_that_is_not_read_is_refused_by_its_name(
    desk: Desk, width: int, tmp_path: Path, name: str, said: dict[str, object]
) -> None:
    tensors = saes.drawn(width, str(said.get("activation", "standard")))
    if said["kind"] in ("probe", "tuned_lens"):
        tensors = {"weight": torch.ones(width, width), "bias": torch.zeros(width)}
    (tmp_path / "module.json").write_text(json.dumps({"dtype": "float32"} | said))
    save_file(tensors, tmp_path / "module.safetensors")
    with pytest.raises(UsageError, match=f"A module of kind {said['kind']} and activation .* has no {name}"):
        add(desk, tmp_path)


def test_a_module_that_is_larger_than_the_memory_is_refused(tmp_path: Path) -> None:
    desk = build_desk(build("llama", layers=2), device_memory=2 << 20)
    width = desk.engine.anatomy.hidden_size
    with pytest.raises(SlabFull, match="Asked for"):
        add(desk, saes.saved(tmp_path, saes.drawn(width, features=8192)), "resid_post.1")
    assert held(desk) == 0
    add(desk, saes.saved(tmp_path / "small", saes.drawn(width)), "resid_post.1")


def test_it_is_added_in_an_empty_session_only(desk: Desk) -> None:
    desk.run(PROMPT, 1)
    form = ModuleForm(kind="probe", dtype="float32")
    with pytest.raises(IllegalMove, match="has a line of its own"):
        desk.ask(ask.AddModule(session="a", name="p", at="resid_post.4", form=form, tensors=(), folder="p", digest="0"))


def test_a_person_has_modules_of_their_own(desk: Desk, width: int, tmp_path: Path) -> None:
    add(desk, saes.saved(tmp_path, saes.drawn(width)))
    anna = Holder(name="kernel", user="anna", person="anna")
    desk.engine.ask(ask.Open(session="anna@main"), anna)
    assert desk.engine.ask(ask.ListAddedModules(), anna).modules == ()
    with pytest.raises(UnknownSite, match=r"no module or point 'sae\.4'"):
        desk.engine.ask(ask.SetBreakpoint(session="anna@main", site="sae.4[1]"), anna)
    with pytest.raises(UnknownSite, match=r"no added module sae; there are none"):
        desk.engine.ask(ask.RemoveModule(name="sae"), anna)
    assert desk.engine.ask(ask.ListAddedModules(), ME).modules
    assert desk.stop_at("sae.4[1]")


def declared(folder: Path, kind: str, weight: torch.Tensor, bias: torch.Tensor) -> Path:
    folder.mkdir()
    (folder / "module.json").write_text(json.dumps({"kind": kind, "dtype": "float32"}))
    save_file({"weight": weight, "bias": bias}, folder / "module.safetensors")
    return folder


def test_a_probe_is_read_and_not_edited(desk: Desk, width: int, tmp_path: Path) -> None:
    weight, bias = torch.randn(1, width), torch.randn(1)
    add(desk, declared(tmp_path / "p", "probe", weight, bias), name="probe")
    desk.stop_at("probe.4", "value > -1e9")
    desk.run(PROMPT, 1)
    plain = desk.value("resid_post.4") @ weight.T + bias
    torch.testing.assert_close(desk.value(), plain, rtol=1e-4, atol=1e-5)
    with pytest.raises(InvalidEdit, match="a probe has no decoder"):
        desk.edit()


def test_a_tuned_lens_is_read_by_the_lens(desk: Desk, width: int, tmp_path: Path) -> None:
    weight, bias = 0.2 * torch.randn(width, width), torch.randn(width)
    add(desk, declared(tmp_path / "t", "tuned_lens", weight, bias), name="tuned")
    desk.stop_at("resid_post.4")
    desk.run(PROMPT, 1)
    x = desk.value()
    plain = x + x @ weight.T + bias
    torch.testing.assert_close(desk.value("tuned.4"), plain, rtol=1e-4, atol=1e-4)
    read = desk.ask(ask.Lens(session="a", site="tuned.4", top=1))
    best = desk.engine.forward.lens(plain).argmax(-1).tolist()
    assert [row.top[0].token for row in read.rows] == best
    assert to_array(plain).shape == (12, width)
