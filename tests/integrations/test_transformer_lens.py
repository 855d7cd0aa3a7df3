"""TransformerLens's bridge on an engine, beside the same bridge on its own model: `make peers` installs it."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import djinn_jupyter as dj
from djinn_jupyter.api.engine import RemoteEngine
from djinn_jupyter.demo import MODEL_PATH
from djinn_jupyter.engine.model.loading.load import load_model
from djinn_jupyter.engine.system.config import EngineConfig
from djinn_jupyter.errors import UnknownSite, UsageError
from djinn_jupyter.link.registry import running_engines
from djinn_jupyter.wire.sites import _TRANSFORMER_LENS, _TRANSFORMER_LENS_MODEL, parse_site
from tests.client.reached import reached
from tests.engine.desk import Desk, build_desk
from tests.families import FAMILIES, build
from tests.integrations import coming_from
from tests.threads import one_thread

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not coming_from.has_transformer_lens(), reason="no TransformerLens 4 here: make peers"),
]
TEXT = "The capital of France is"
LINES = torch.tensor([[5, 6, 7, 8, 9, 10, 11], [12, 13, 14, 15, 16, 17, 18]])
MASKED = -1e30
ROUNDED = ("hook_scale", "hook_normalized")  # computed here, in another order of operations


@contextmanager
def both(engine: RemoteEngine, folder: Path | str) -> Iterator[tuple[Any, Any]]:
    """Yield a bridge on the engine, and TransformerLens's own over the same files."""
    from transformer_lens.model_bridge import TransformerBridge

    from djinn_jupyter.integrations.transformer_lens import boot_djinn

    own = TransformerBridge.boot_transformers(str(folder), device="cpu").eval()
    ours = boot_djinn(engine, folder)
    with torch.inference_mode():
        yield ours, own
    ours.close()
    assert engine.sessions() == ()


@contextmanager
def of_demo() -> Iterator[tuple[Any, Any]]:
    """Yield both bridges to the demo model."""
    with one_thread():
        loaded = load_model(EngineConfig(model="demo"))
        with (
            reached(build_desk(loaded.model, loaded.tokenizer)) as [engine],
            both(engine, MODEL_PATH) as bridges,
        ):
            yield bridges


def saved(family: str, folder: Path, layers: int = 3) -> Path:
    """Write a small model with the demo's tokenizer, as TransformerLens loads it, and return the folder."""
    build(family, layers=layers).save_pretrained(folder)
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(MODEL_PATH / file, folder)
    return folder


@pytest.fixture(scope="module")
def demo() -> Iterator[tuple[Any, Any]]:
    with of_demo() as bridges:
        yield bridges


@pytest.fixture(scope="module", params=["gpt2", "qwen3", "gpt_neox", "gemma2"])
def family(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Any, Any]]:
    folder = saved(request.param, tmp_path_factory.mktemp(request.param))
    with (
        one_thread(),
        reached(build_desk(build(request.param, layers=3))) as [engine],
        both(engine, folder) as bridges,
    ):
        yield bridges


def require_same_bits(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> None:
    for name, value in ours.items():
        if name.endswith(ROUNDED):
            assert torch.allclose(value, theirs[name], rtol=1e-5, atol=1e-6), name
        else:
            assert torch.equal(value, theirs[name]), name


def halve(value: Tensor, hook: Any) -> Tensor:
    return value * 0.5


def zero_the_last_in_place(value: Tensor, hook: Any) -> Tensor:
    value[:, -1] = 0
    return value


def swap_lines(value: Tensor, hook: Any) -> Tensor:
    return value.flip(0)


HOOKS: dict[str, list[tuple[Any, Callable[..., Tensor]]]] = {
    "a residual": [("blocks.3.hook_resid_post", zero_the_last_in_place)],
    "heads and a pattern": [("blocks.2.attn.hook_z", halve), ("blocks.5.attn.hook_pattern", halve)],
    "one tensor by two names": [
        ("blocks.3.hook_resid_post", halve),
        ("blocks.4.hook_resid_pre", lambda value, hook: value - 1.0),
    ],
    "every MLP, by a filter": [(lambda name: name.endswith("hook_mlp_out"), halve)],
    "between lines": [("blocks.1.ln2.hook_out", swap_lines), ("blocks.6.attn.hook_k", halve)],
    "both ends": [("hook_embed", halve), ("unembed.hook_out", zero_the_last_in_place)],
}


def test_a_cache_has_the_bits_of_their_own(demo: tuple[Any, Any]) -> None:
    ours, own = demo
    logits, cache = ours.run_with_cache(LINES)
    their_logits, theirs = own.run_with_cache(LINES)
    assert torch.equal(logits, their_logits)
    assert len(cache) > 300
    require_same_bits(dict(cache.cache_dict), dict(theirs.cache_dict))
    for name in ("resid_pre", "resid_mid", "resid_post", "attn_out", "mlp_out", "q", "k", "v", "z", "pattern"):
        assert torch.equal(cache[name, 3], theirs[name, 3]), name


def test_text_filters_and_slices_are_their_own(demo: tuple[Any, Any]) -> None:
    ours, own = demo
    for settings in ({"names_filter": "blocks.2.hook_resid_post"}, {"pos_slice": -1}, {"remove_batch_dim": True}):
        found, theirs = (bridge.run_with_cache(TEXT, **settings)[1] for bridge in demo)
        require_same_bits(dict(found.cache_dict), dict(theirs.cache_dict))
    assert torch.equal(ours(TEXT, return_type="loss"), own(TEXT, return_type="loss"))


@pytest.mark.parametrize("hooks", HOOKS.values(), ids=HOOKS.keys())
def test_functions_change_the_pass_as_on_their_own(demo: tuple[Any, Any], hooks: list[tuple[Any, Any]]) -> None:
    ours, own = demo
    for _ in range(2):
        found, theirs = (bridge.run_with_hooks(LINES, fwd_hooks=hooks) for bridge in demo)
        assert torch.equal(found, theirs)
    with ours.hooks(fwd_hooks=hooks), own.hooks(fwd_hooks=hooks):
        found, theirs = (bridge.run_with_cache(LINES)[1] for bridge in demo)
    require_same_bits(dict(found.cache_dict), dict(theirs.cache_dict))
    assert torch.equal(ours(LINES), own(LINES))  # nothing stays


@pytest.mark.parametrize("layer", [0, 3, -1])
def test_a_pass_stops_at_a_layer(demo: tuple[Any, Any], layer: int) -> None:
    ours, own = demo
    assert torch.equal(ours(LINES, stop_at_layer=layer), own(LINES, stop_at_layer=layer))
    (found, cache), (theirs, their_cache) = (bridge.run_with_cache(LINES, stop_at_layer=layer) for bridge in demo)
    assert torch.equal(found, theirs)
    require_same_bits(dict(cache.cache_dict), dict(their_cache.cache_dict))


def test_their_patching_finds_the_same_bits(demo: tuple[Any, Any]) -> None:
    from transformer_lens import patching

    found = []
    for bridge in demo:
        clean = bridge.run_with_cache(LINES[:1])[1]
        metric = lambda logits: logits[0, -1, 3] - logits[0, -1, 4]  # noqa: E731
        found.append(
            [
                patching.get_act_patch_resid_pre(bridge, LINES[1:], clean, metric),
                patching.get_act_patch_attn_head_out_all_pos(bridge, LINES[1:], clean, metric),
                patching.get_act_patch_attn_head_pattern_all_pos(bridge, LINES[1:], clean, metric),
            ]
        )
    for ours, theirs in zip(*found, strict=True):
        assert torch.equal(ours, theirs)
        assert ours.unique().numel() > 8


def test_their_analysis_finds_the_same_bits(demo: tuple[Any, Any]) -> None:
    found = []
    for bridge in demo:
        cache = bridge.run_with_cache(TEXT)[1]
        parts = cache.decompose_resid(apply_ln=False)
        heads = cache.stack_head_results()
        found.append([parts, heads, cache.accumulated_resid(incl_mid=True), cache.get_neuron_results(2)])
        found[-1].append(cache.logit_attrs(parts, tokens=" Paris", incorrect_tokens=" Rome"))
    for ours, theirs in zip(*found, strict=True):
        assert torch.allclose(ours, theirs, rtol=1e-5, atol=1e-6)
    assert torch.equal(found[0][1], found[1][1])


def test_families_are_served_where_both_have_the_same_values(family: tuple[Any, Any]) -> None:
    """The queries of Qwen 3 are behind a norm in Djinn and before it in TransformerLens: refused, not renamed."""
    ours, own = family
    logits, cache = ours.run_with_cache(LINES)
    their_logits, theirs = own.run_with_cache(LINES)
    assert torch.allclose(logits, their_logits, rtol=1e-4, atol=1e-5)
    assert {"blocks.1.hook_in", "blocks.1.hook_out", "blocks.1.attn.hook_pattern"} <= ours._driver.supported_hook_points
    for name, value in cache.items():
        assert torch.allclose(value, theirs[name], rtol=1e-4, atol=1e-5), name
    if own.adapter.cfg.architecture == "Qwen3ForCausalLM":
        assert "blocks.1.attn.q.hook_out" in ours._driver.non_fireable_hook_points
        with pytest.raises(NotImplementedError, match="cannot fire"):
            ours.run_with_hooks(LINES, fwd_hooks=[("blocks.1.attn.hook_q", halve)])
    parts, their_parts = (bridge.run_with_cache(LINES)[1].decompose_resid() for bridge in family)
    assert torch.allclose(parts, their_parts, rtol=1e-4, atol=1e-5)
    for name in sorted(ours._driver.sites):
        if ours._driver.sites[name].changes and name.startswith(("blocks.1.", "embed", "ln_final", "unembed")):
            found, changed = (bridge.run_with_hooks(LINES, fwd_hooks=[(name, halve)]) for bridge in family)
            assert torch.allclose(found, changed, rtol=1e-4, atol=1e-5), name


# Families that a bridge does not load.
UNKNOWN = {
    "falcon:new", "persimmon", "gemma3n_text", "granitemoehybrid", "helium", "diffllama", "biogpt", "dbrx", "phimoe",
    "gpt_neox_japanese", "moshi", "zamba",
}  # fmt: skip
PATTERNS = {"gptj", "gpt_neo", "jamba", "jetmoe", "llama4_text", "opt", "xglm"}  # at hook_attn_scores
BY_VERSION = ("embed", "embed.hook_out", "hook_attn_out", "hook_mlp_out")  # refused also where this one has our value


@pytest.mark.parametrize("name", sorted(FAMILIES.keys() - UNKNOWN - {"recurrent_gemma"}))
def test_every_hook_name_of_a_bridge_has_the_value_of_its_site_or_is_refused(name: str, tmp_path: Path) -> None:
    """A name is refused just where its point has another value. What a bridge does not have is HookedTransformer's,
    whose names `test_hooked_transformer` compares."""
    from transformer_lens.model_bridge import TransformerBridge

    own = TransformerBridge.boot_transformers(str(saved(name, tmp_path, layers=8)), device="cpu").eval()
    with torch.inference_mode():
        _, theirs = own.run_with_cache(LINES[:1], return_cache_object=False)
    desk = build_desk(build(name, attention="eager" if name == "falcon:alibi" else None))  # sdpa is another model
    desk.open()
    desk.stop_at("logits")
    desk.run(tuple(LINES[0].tolist()))
    blocks = [f"blocks.{n}.{hook}" for n in range(desk.layers) for hook in _TRANSFORMER_LENS]
    there = [one for one in (*blocks, *_TRANSFORMER_LENS_MODEL) if one in theirs]
    assert len(there) > 30
    for hook in there:
        value = theirs[hook].transpose(1, 2) if hook.endswith(("pattern", "scores")) else theirs[hook]
        if hook.endswith("scores") and name in PATTERNS:
            assert torch.equal(theirs[hook], theirs[hook.replace("attn_scores", "pattern")])
        elif not is_refused(desk, hook):
            assert is_value(desk, hook, value), hook
        elif not hook.endswith(BY_VERSION):
            assert not is_value(desk, str(parse_site(hook)), value), hook


def is_value(desk: Desk, site: str, theirs: Tensor) -> bool:
    """Return whether a site has this value; False where there is none."""
    try:
        found = desk.value(site)
    except UnknownSite:
        return False
    theirs = theirs[0, -len(found) :]  # a pass makes the logits of its last position
    if found.shape != theirs.shape or not torch.equal(theirs > MASKED, found > MASKED):
        return False
    seen = theirs > MASKED
    largest = float(theirs[seen].abs().max())  # sums of a mixture are in another order there
    return torch.allclose(found[seen], theirs[seen], rtol=1e-4, atol=1e-5 * max(1.0, largest))


def is_refused(desk: Desk, site: str) -> bool:
    try:
        desk.value(site)
    except UnknownSite:
        return True
    return False


def test_the_driver_is_one_of_theirs(demo: tuple[Any, Any]) -> None:
    from transformer_lens.model_bridge.driver_protocol import Driver, validate_driver

    driver = demo[0]._driver
    assert isinstance(driver, Driver)
    validate_driver(driver, after_bridge_construction=True)
    assert (driver.supports("intervention_callbacks"), driver.supports("gradients")) == (True, False)


def test_a_bridge_without_a_model_asks_by_data(demo: tuple[Any, Any]) -> None:
    """RemoteBridge, as TransformerLens's vLLM and Inspect sources use it."""
    from transformer_lens.model_bridge.remote_bridge import RemoteBridge

    from djinn_jupyter.integrations.transformer_lens import DjinnDriver

    ours, own = demo
    sites = {name: site for name, site in ours._driver.sites.items() if site.norm is None and not site.table}
    driver = DjinnDriver(ours._driver.engine, own.adapter, own.tokenizer, sites, attention="eager")
    device = own.cfg.device
    with RemoteBridge(own.adapter, own.tokenizer, driver) as remote:
        logits, cache = remote.run_with_cache(LINES, names_filter=["blocks.2.hook_out", "blocks.2.attn.hook_pattern"])
        assert torch.equal(logits, own(LINES))
        require_same_bits(dict(cache.cache_dict), dict(own.run_with_cache(LINES)[1].cache_dict))
        specs: list[tuple[dict[str, Any], Callable[..., Tensor]]] = [
            ({"op": "suppress", "pos": -1}, zero_the_last_in_place),
            ({"op": "scale", "factor": 0.5}, halve),
            ({"op": "add", "value": 1.5, "pos": [0, 2]}, _add),
            ({"op": "set", "value": torch.ones(128)}, lambda value, hook: torch.ones_like(value)),
        ]
        for spec, function in specs:
            found = remote.forward(LINES, intervene={"blocks.3.hook_out": spec})
            assert torch.equal(found, own.run_with_hooks(LINES, fwd_hooks=[("blocks.3.hook_out", function)])), spec
        found = remote.forward(LINES, intervene={"blocks.3.hook_out": lambda value: value * 0.5})
        assert torch.equal(found, own.run_with_hooks(LINES, fwd_hooks=[("blocks.3.hook_out", halve)]))
        with pytest.raises(ValueError, match="one of suppress, scale, add, set"):
            remote.forward(LINES, intervene={"blocks.3.hook_out": {"op": "twist"}})
        with pytest.raises(ValueError, match="needs 'factor'"):
            remote.forward(LINES, intervene={"blocks.3.hook_out": {"op": "scale"}})
        with pytest.raises(ValueError, match=r"does not serve the hook point 'blocks\.99\.hook_out'"):
            remote.forward(LINES, intervene={"blocks.99.hook_out": {"op": "suppress"}})
    own.cfg.device = device


def _add(value: Tensor, hook: Any) -> Tensor:
    value[:, [0, 2]] += 1.5
    return value


def test_what_an_engine_does_not_do_is_refused(demo: tuple[Any, Any]) -> None:
    ours = demo[0]
    before = ours(LINES)
    refused: list[tuple[str, Callable[[], Any]]] = [
        ("no function of yours backward", lambda: ours.run_with_hooks(LINES, bwd_hooks=[("blocks.1.hook_in", halve)])),
        ("without padding", lambda: ours(LINES, attention_mask=torch.tensor([[0] + [1] * 6, [1] * 7]))),
        (r"ln_final\.hook_out", lambda: ours.run_with_hooks(LINES, fwd_hooks=[("ln_final.hook_scale", halve)])),
        (r"ln2\.hook_out", lambda: ours.run_with_hooks(LINES, fwd_hooks=[("blocks.1.hook_resid_mid", halve)])),
        ("does not take 'inputs_embeds'", lambda: ours(torch.zeros(1, 3, 128))),
        ("runs the line that it is given", lambda: ours._driver.forward(LINES, max_new_tokens=2)),
    ]
    for match, call in refused:
        with pytest.raises(NotImplementedError, match=match):
            call()
    assert torch.equal(ours(LINES), before)


def test_another_model_is_refused(demo: tuple[Any, Any], tmp_path: Path) -> None:
    from djinn_jupyter.integrations.transformer_lens import boot_djinn

    other = tmp_path / "other"
    shutil.copytree(MODEL_PATH, other)
    model = type(demo[1].original_model).from_pretrained(other)
    model.model.norm.weight.data *= 1.5
    model.save_pretrained(other)
    engine = demo[0]._driver.engine
    there = len(engine.sessions())
    with pytest.raises(UsageError, match="other logits on a line"):
        boot_djinn(engine, other)
    with pytest.raises(UsageError, match="does not say where its model is"):
        boot_djinn(engine)
    assert len(engine.sessions()) == there


@pytest.mark.parametrize("tool", ["TransformerLens", "TransformerLens on an engine"])
def test_the_lines_of_the_page_run(tool: str, tmp_path: Path) -> None:
    left = coming_from.run(tool, tmp_path)
    assert left["logits"].shape[-1] == 1393
    assert left["parts"].numel() > 8
    for entry in running_engines():
        dj.attach(entry).stop(force=True, forget=True)
