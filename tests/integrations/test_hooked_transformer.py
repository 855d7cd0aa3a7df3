"""TransformerLens 3's HookedTransformer of small random models: its hook names have the values of our sites, and what
SAELens reads of weights that it processed is read here of the model's own. `make peers` installs it with SAELens."""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from djinn_jupyter.errors import UnknownSite
from djinn_jupyter.wire import sites
from djinn_jupyter.wire.sites import HEAD_POINTS, parse_site, parse_trained
from tests.engine.added.adding import add, opened
from tests.engine.desk import Desk, desk_of, tokens
from tests.families import build
from tests.family_parts import POSITIONS

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("sae_lens") is None, reason="no SAELens here: make peers"),
]
PROMPT, LAYER, FEATURES = tokens(12), 2, 48
FAMILIES = ("gpt2", "llama", "qwen2")
MASKED = -1e30
OF_BRIDGES = {"hook_in", "hook_out", "attn.hook_in", "attn.hook_out", "mlp.hook_in", "mlp.hook_out"}
OF_BRIDGES_MODEL = {"embed.hook_out", "ln_final.hook_out"}
ROTARY = {"attn.hook_rot_q", "attn.hook_rot_k"}
LOADED: tuple[dict[str, bool], ...] = (
    {},
    {"fold_ln": True},
    {"fold_value_biases": True},
    {"fold_ln": True, "fold_value_biases": True},
)
READ = (
    "hook_resid_pre", "hook_mlp_in", "ln1.hook_normalized", "ln2.hook_normalized", "attn.hook_q", "attn.hook_v",
    "attn.hook_z", "hook_attn_out", "mlp.hook_pre", "hook_mlp_out",
)  # fmt: skip


def hooked(family: str, folder: Path, **loaded: bool) -> Any:
    """Return the HookedTransformer of a small model, its weights processed in these ways."""
    from transformer_lens import HookedTransformer, HookedTransformerConfig, loading_from_pretrained
    from transformer_lens.pretrained import weight_conversions

    plain = build(family)
    folder.mkdir()
    said = plain.config.to_dict() | {"architectures": [type(plain).__name__], "n_ctx": POSITIONS}
    (folder / "config.json").write_text(json.dumps(said))
    found = loading_from_pretrained.convert_hf_model_config(str(folder))
    if loaded.get("fold_ln"):
        found["normalization_type"] += "Pre"
    config = HookedTransformerConfig.from_dict(
        found | {"model_name": family, "tokenizer_name": None, "device": "cpu", "dtype": torch.float32}
    )
    made = HookedTransformer(config)
    converted = getattr(weight_conversions, f"convert_{family}_weights")(plain, config)
    kept = dict.fromkeys(("fold_ln", "fold_value_biases", "center_writing_weights", "center_unembed"), False)
    made.load_and_process_state_dict(converted, **kept | loaded)
    made.set_use_hook_mlp_in(True)
    return made.eval()


def cached(model: Any) -> dict[str, Tensor]:
    """Return the values at all hooks, heads before positions turned as they are here, and the logits."""
    with torch.inference_mode():
        logits, cache = model.run_with_cache(torch.tensor([PROMPT]), return_cache_object=False)
    turned = {
        name: value.transpose(1, 2) if "pattern" in name or "scores" in name else value for name, value in cache.items()
    }
    return {name: value[0] for name, value in turned.items()} | {"logits": logits[0]}


@pytest.fixture(params=FAMILIES)
def family(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def desk(family: str) -> Iterator[Desk]:
    yield from opened(desk_of(family))


def values_at(desk: Desk, spelled: list[str]) -> dict[str, Tensor]:
    """Return the values at sites of one pass, by their spelling."""
    desk.stop_at("logits")
    desk.run(PROMPT)
    return {one: desk.value(one) for one in spelled}


def require_alike(found: Tensor, theirs: Tensor, name: str) -> None:
    theirs = theirs[-len(found) :]  # a pass makes the logits of its last position
    seen = theirs > MASKED
    assert torch.equal(seen, found > MASKED), name
    torch.testing.assert_close(found[seen], theirs[seen], rtol=1e-4, atol=1e-5, msg=name)


def test_every_hook_name_has_the_value_of_its_site(family: str, desk: Desk, tmp_path: Path) -> None:
    theirs = cached(hooked(family, tmp_path / "model"))
    names = [*(f"blocks.{LAYER}.{one}" for one in sites._TRANSFORMER_LENS), *sites._TRANSFORMER_LENS_MODEL]
    there = {one for one in names if one in theirs}
    elsewhere = OF_BRIDGES | (ROTARY if family == "gpt2" else set())
    assert set(names) - there == {f"blocks.{LAYER}.{one}" for one in elsewhere} | OF_BRIDGES_MODEL
    found = values_at(desk, sorted(there))
    for name in sorted(there):
        require_alike(found[name], theirs[name], name)
    mapped = {one.removeprefix(f"blocks.{LAYER}.") for one in there}
    for name in (one for one in theirs if one.startswith(f"blocks.{LAYER}.") or one.startswith("ln_final")):
        hook = name.removeprefix(f"blocks.{LAYER}.")
        if hook in sites._NO_POINT:
            with pytest.raises(UnknownSite, match="of TransformerLens is"):
                parse_site(name)
        else:
            assert hook in mapped or hook in UNNAMED, name
    (copied,) = values_at(desk, [str(parse_trained(f"blocks.{LAYER}.hook_mlp_in"))]).values()
    require_alike(copied, theirs[f"blocks.{LAYER}.hook_mlp_in"], "hook_mlp_in")


UNNAMED = {"ln1.hook_scale", "ln2.hook_scale", "ln_final.hook_scale", "mlp.hook_pre_linear"}


@pytest.mark.parametrize("loaded", LOADED, ids=str)
def test_features_are_those_of_saelens_on_processed_weights(
    family: str, desk: Desk, tmp_path: Path, loaded: dict[str, bool]
) -> None:
    from sae_lens.saes.standard_sae import StandardSAE, StandardSAEConfig

    theirs = cached(hooked(family, tmp_path / "model", **loaded))
    for number, hook in enumerate(READ):
        name = f"blocks.{LAYER}.{hook}"
        if hook.endswith("hook_normalized") and family == "gpt2" and "fold_ln" not in loaded:
            continue  # by version: refused
        heads = (None, 1) if parse_trained(name).point in HEAD_POINTS else (None,)
        for head in heads:
            value = theirs[name].flatten(1) if head is None else theirs[name][:, head]
            sae = StandardSAE(StandardSAEConfig(d_in=value.shape[1], d_sae=FEATURES))
            torch.manual_seed(number)
            for parameter in sae.parameters():
                parameter.data = torch.randn_like(parameter) * parameter.shape[0] ** -0.5
            for field, said in {
                "hook_name": name,
                "hook_head_index": head,
                "model_from_pretrained_kwargs": loaded,
            }.items():
                setattr(sae.cfg.metadata, field, said)
            folder = tmp_path / f"{number} {head}"
            sae.save_model(str(folder))
            add(desk, folder, name if head is None else f"{name}[{head}]", f"s{number}_{head or 0}")
            site = f"s{number}_{head or 0}.{LAYER}"
            with torch.no_grad():
                require_alike(values_at(desk, [site])[site], sae.encode(value), name)
            desk.close_all()
            desk.open()
