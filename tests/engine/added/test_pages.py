"""What a feature writes to the vocabulary is its decoder row through the model's own norm and head, as plain torch
multiplies them; features like it have the largest cosines of decoder rows."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from djinn_jupyter.engine.passes import weight_reader
from djinn_jupyter.engine.system.arrays import to_array, to_tensor
from djinn_jupyter.errors import IllegalMove, UnknownSite, UsageError
from djinn_jupyter.methods.features import engine
from djinn_jupyter.methods.features.request import EncodeFeatures, FeatureRead, ReadFeature
from tests import saes, transcoders
from tests.engine.added.adding import add, opened, remove
from tests.engine.desk import Desk, build_desk, desk_of, tokens
from tests.engine.plain import plain_of
from tests.families import build

LAYERS, UNIT = 3, 5


@pytest.fixture(params=["llama", "gpt2", "gemma2"])
def desk(request: pytest.FixtureRequest) -> Iterator[Desk]:
    yield from opened(desk_of(request.param, layers=LAYERS))


@pytest.fixture
def llama() -> Iterator[Desk]:
    yield from opened(desk_of("llama", layers=LAYERS))


def family_of(desk: Desk) -> str:
    return str(desk.engine.forward.model.config.model_type)


def read(desk: Desk, site: str, **fields: Any) -> FeatureRead:
    desk.open("s")
    reply = desk.ask(ReadFeature(session="s", site=site, **fields))
    assert isinstance(reply, FeatureRead), reply
    return reply


def width_of(desk: Desk) -> int:
    return desk.engine.anatomy.hidden_size


def written(family: str, direction: Tensor) -> Tensor:
    """Return what a direction adds to each logit with the norm's factor at 1, float64 [V], by the weights of the plain
    model."""
    model = plain_of(family, layers=LAYERS)
    norm = model.transformer.ln_f if family == "gpt2" else model.model.norm
    weight = norm.weight.double() + (family == "gemma2")
    given = direction.double()
    given = given - given.mean() if family == "gpt2" else given
    return ((given * weight) @ model.get_output_embeddings().weight.double().T).detach()


def of(found: Any) -> list[tuple[int, float]]:
    return [(one.token, one.logit) for one in found]


def alike(found: list[tuple[int, float]], logits: Tensor, sign: int) -> None:
    best = (sign * logits).topk(len(found))
    assert [token for token, _ in found] == best.indices.tolist()
    assert [value for _, value in found] == pytest.approx((sign * best.values).tolist(), rel=1e-4, abs=1e-6)


def test_an_sae_writes_its_decoder_row_and_is_like_those_with_near_rows(
    desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weight_reader, "LOGITS", 50)
    monkeypatch.setattr(engine, "ROWS", 7)
    tensors = saes.drawn(width_of(desk))
    tensors["W_dec"][UNIT] *= 3  # no row has a length that hides in a cosine
    tensors["W_dec"][11] = 0
    add(desk, saes.saved(tmp_path, tensors), "resid_post.1")
    found = read(desk, f"sae.1[{UNIT}]", top=6)
    assert (found.site, found.unit, found.features, found.at) == (f"sae.1[{UNIT}]", UNIT, saes.FEATURES, "resid_post.1")
    assert (found.writes, found.layer, found.folded, found.unwritten) == ("resid_post.1", 1, True, "")
    logits = written(family_of(desk), tensors["W_dec"][UNIT])
    alike(of(found.promoted), logits, 1)
    alike(of(found.suppressed), logits, -1)
    tokenizer = desk.engine.runtime.tokenizer
    assert [one.text for one in found.promoted] == [tokenizer.text_of(one.token) for one in found.promoted]
    rows = tensors["W_dec"].double()
    cosines = torch.nn.functional.cosine_similarity(rows, rows[UNIT][None]).index_fill(0, torch.tensor([UNIT]), -2)
    best = cosines.topk(6)
    assert [one.feature for one in found.like] == best.indices.tolist()
    assert [one.cosine for one in found.like] == pytest.approx(best.values.tolist(), rel=1e-5)
    assert len(read(desk, f"sae.1[{UNIT}]", top=100).like) == saes.FEATURES - 2  # but itself, and the row of zeros
    assert (found.made.modules[0].digest, found.made.rules) == (
        desk.engine.runtime.modules.table.of(None)[0].identity.digest,
        (),
    )


def test_the_deepest_layer_writes_too_and_a_unit_is_measured_by_the_decoder_where_the_module_says_so(
    llama: Desk, tmp_path: Path
) -> None:
    tensors = saes.drawn(width_of(llama), "topk")
    add(llama, saes.saved(tmp_path, tensors, "topk", k=3, rescale_acts_by_decoder_norm=True), "resid_post.2")
    row = tensors["W_dec"][UNIT]
    alike(of(read(llama, f"sae.2[{UNIT}]").promoted), written("llama", row / row.norm()), 1)


def test_a_transcoder_writes_by_way_of_the_mlps_output(desk: Desk, tmp_path: Path) -> None:
    tensors = transcoders.drawn(width_of(desk))
    folder = transcoders.set_saved(tmp_path, {1: tensors})
    add(desk, folder, "mlp_in.1", "tc", layer=1)
    found = read(desk, f"tc.1[{UNIT}]")
    assert (found.kind, found.writes) == ("transcoder", "mlp_out.1")
    rows = tensors["W_dec"].double()
    cosines = torch.nn.functional.cosine_similarity(rows, rows[UNIT][None])
    assert found.like[0].feature == int(cosines.topk(2).indices[1])
    if family_of(desk) == "gemma2":
        assert found.promoted == found.suppressed == ()
        assert found.unwritten == "It is written to mlp_out.1, and a norm stands between that and the residual."
        return
    alike(of(found.promoted), written(family_of(desk), tensors["W_dec"][UNIT]), 1)


def test_a_cross_layer_transcoder_writes_to_the_layer_that_is_named(llama: Desk, tmp_path: Path) -> None:
    drawn = transcoders.drawn_across(width_of(llama), LAYERS)
    transcoders.across_saved(tmp_path, drawn)
    add(llama, tmp_path, "mlp_in.1", "clt", layer=1)
    for layer in (1, 2):
        found = read(llama, f"clt.1[{UNIT}]", layer=layer)
        rows = drawn[1]["W_dec"][:, layer - 1]
        assert (found.layer, found.writes) == (layer, f"mlp_out.{layer}")
        alike(of(found.promoted), written("llama", rows[UNIT]), 1)
        cosines = torch.nn.functional.cosine_similarity(rows, rows[UNIT][None])
        assert found.like[0].feature == int(cosines.topk(2).indices[1])
    assert read(llama, f"clt.1[{UNIT}]") == read(llama, f"clt.1[{UNIT}]", layer=1)
    for layer in (0, 3):
        with pytest.raises(UsageError, match=rf"^clt\.1\[5\] is written to layer 1 to 2, and not to layer {layer}\.$"):
            read(llama, f"clt.1[{UNIT}]", layer=layer)


def test_where_it_is_not_added_to_the_residual_one_sentence_says_so(llama: Desk, tmp_path: Path) -> None:
    heads = llama.engine.anatomy.taps["z", 1]
    width = heads.heads * heads.width  # type: ignore[union-attr]
    add(llama, saes.saved(tmp_path / "z", saes.drawn(width)), "z.1", "of_z")
    found = read(llama, f"of_z.1[{UNIT}]")
    assert found.unwritten == "It is written to z.1, which is not added to the residual."
    assert (len(found.like), found.promoted, found.folded) == (10, (), False)


def test_a_model_whose_residual_is_no_sum_is_found_by_a_pass(tmp_path: Path) -> None:
    model = build("llama")

    def halved(module: Any, args: Any, output: Any) -> Any:
        return output[0] / 2 if isinstance(output, tuple) else output / 2

    desk = build_desk(model)
    for one in opened(desk):
        add(one, saes.saved(tmp_path, saes.drawn(width_of(one))), "resid_post.1")
        assert read(one, "sae.1[0]").unwritten == ""
        hook = desk.engine.forward.model.model.layers[2].register_forward_hook(halved)
        assert "do not sum to the residual of this model" in read(one, "sae.1[0]").unwritten
        hook.remove()


@pytest.mark.parametrize("architecture", ["standard", "topk", "gated", "jumprelu"])
def test_rows_of_the_point_become_the_features_of_the_papers(
    llama: Desk, tmp_path: Path, architecture: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "ENCODED", 3 * saes.FEATURES)
    cfg = {"k": 4} if architecture == "topk" else {}
    tensors = saes.drawn(width_of(llama), architecture)
    add(llama, saes.saved(tmp_path, tensors, architecture, **cfg), "resid_post.1")
    rows = torch.randn(10, width_of(llama), generator=torch.Generator().manual_seed(3))
    llama.open("s")
    request = EncodeFeatures(session="s", site="sae.1", units=(7, 0, 12), values=to_array(rows))
    found = to_tensor(llama.ask(request).values)
    torch.testing.assert_close(found, saes.encode(rows, tensors, architecture, **cfg)[:, [7, 0, 12]])
    for shape in ((0, width_of(llama)), (2, 2, width_of(llama) // 2)):
        request = EncodeFeatures(session="s", site="sae.1", units=(0,), values=to_array(torch.zeros(shape)))
        assert llama.ask(request).values.shape == (shape[0], 1)
    for bad in (torch.zeros(3, 5), torch.zeros(width_of(llama)), torch.zeros(2, width_of(llama), dtype=torch.int64)):
        with pytest.raises(UsageError, match=r"^sae\.1 reads rows of \d+ floating numbers, and the values are \["):
            llama.ask(EncodeFeatures(session="s", site="sae.1", units=(0,), values=to_array(bad)))
    with pytest.raises(UnknownSite, match="48"):
        llama.ask(EncodeFeatures(session="s", site="sae.1", units=(48,), values=to_array(rows)))


def test_what_is_no_feature_is_refused_in_one_sentence(llama: Desk, tmp_path: Path) -> None:
    (tmp_path / "probe").mkdir()
    (tmp_path / "probe" / "module.json").write_text(json.dumps({"kind": "probe", "dtype": "float32"}))
    save_file(
        {"weight": torch.ones(2, width_of(llama)), "bias": torch.zeros(2)}, tmp_path / "probe" / "module.safetensors"
    )
    add(llama, tmp_path / "probe", "resid_post.1", "probe")
    add(llama, saes.saved(tmp_path / "sae", saes.drawn(width_of(llama))), "resid_post.1")
    for site, said in (
        ("sae.1", "sae.1 is not one."),
        ("sae.1[1,2]", "sae.1[1,2] is not one."),
        ("probe.1[0]", "probe.1[0] is a probe."),
        ("mlp_post.1[3]", "mlp_post.1[3] is the model's own."),
        ("resid_post.1", "resid_post.1 is the model's own."),
    ):
        with pytest.raises(UsageError) as caught:
            read(llama, site)
        assert str(caught.value) == f"A page is of one feature of an SAE or a transcoder, such as sae.4[17]; {said}"
    for site in ("sae.1[48]", "sae.2[0]", "nothing.1[0]"):
        with pytest.raises(UnknownSite):
            read(llama, site)
    llama.run(tokens(3), 0)
    with pytest.raises(IllegalMove, match=r"as engine\.feature opens"):
        llama.ask(ReadFeature(session="a", site="sae.1[0]"))
    remove(llama)
    with pytest.raises(UnknownSite):
        read(llama, "sae.1[0]")
