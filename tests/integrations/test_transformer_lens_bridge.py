"""Every public method of TransformerLens's bridge on an engine: served as on its own model, or refused by name."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from djinn_jupyter.demo import MODEL_PATH
from djinn_jupyter.engine.model.loading.load import load_model
from djinn_jupyter.engine.system.config import EngineConfig
from djinn_jupyter.errors import UsageError
from tests.client.reached import reached
from tests.engine.desk import Desk, build_desk
from tests.families import build
from tests.integrations import coming_from
from tests.integrations.test_transformer_lens import TEXT, halve, of_demo, require_same_bits, saved
from tests.threads import one_thread

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not coming_from.has_transformer_lens(), reason="no TransformerLens 4 here: make peers"),
]
NAME = "blocks.1.hook_resid_post"
GREEDY: dict[str, Any] = {"max_new_tokens": 3, "do_sample": False, "verbose": False}


def alike(name: str, *args: Any, **given: Any) -> Callable[[Any], Any]:
    """Return a call whose result is the same on both."""
    return lambda bridge: getattr(bridge, name)(*args, **given)


def value(name: str) -> Callable[[Any], Any]:
    return lambda bridge: getattr(bridge, name)


def drawn(bridge: Any) -> Any:
    torch.manual_seed(3)
    return bridge.generate(TEXT, max_new_tokens=9, temperature=2.0, verbose=False)


def cached(bridge: Any, add: Callable[[Any], Any]) -> Any:
    """Return what functions that cache have kept at the points that an engine serves."""
    cache = add(bridge)
    try:
        bridge(TEXT)
    finally:
        bridge.reset_hooks()
    return {name: cache[name] for name in ("blocks.2.hook_out", "blocks.3.attn.hook_pattern")}


def kept(bridge: Any, name: str, *args: Any) -> Any:
    cache: dict[str, Any] = {}
    return cached(bridge, lambda bridge: getattr(bridge, name)(cache, *args) or cache)


SERVED: dict[str, list[Callable[[Any], Any]]] = {
    "generate": [
        alike("generate", TEXT, **GREEDY),
        alike("generate", [TEXT, TEXT], **GREEDY),
        alike("generate", TEXT, **GREEDY, use_past_kv_cache=False, output_logits=True, return_type="tokens"),
        drawn,
    ],
    "generate_stream": [lambda bridge: list(map(str, bridge.generate_stream(TEXT, **GREEDY)))],
    "get_caching_hooks": [lambda bridge: kept_by_hooks(bridge)],
    "add_caching_hooks": [lambda bridge: cached(bridge, lambda bridge: bridge.add_caching_hooks())],
    "cache_all": [lambda bridge: kept(bridge, "cache_all")],
    "cache_some": [lambda bridge: kept(bridge, "cache_some", lambda name: True)],
    "run_with_cache": [lambda bridge: bridge.run_with_cache(TEXT)[1]["resid_post", 3]],
    "run_with_hooks": [alike("run_with_hooks", TEXT, fwd_hooks=[(NAME, halve)])],
    "hooks": [lambda bridge: within(bridge)],
    "forward": [
        alike("forward", TEXT),
        alike("forward", TEXT, return_type="loss"),
        alike("forward", [TEXT, "Paris"]),  # padded on the right, as TransformerLens does
    ],
    "add_hook": [lambda bridge: changed(bridge, bridge.add_hook), lambda bridge: seen_everywhere(bridge)],
    "add_perma_hook": [lambda bridge: changed(bridge, bridge.add_perma_hook)],
    "list_hooks": [lambda bridge: sorted(bridge.list_hooks(NAME))],
    "check_hooks_to_add": [lambda bridge: bridge.check_hooks_to_add(bridge.get_hook_point(NAME), NAME, halve)],
    "get_hook_point": [lambda bridge: bridge.get_hook_point(NAME).name],
    "loss_fn": [lambda bridge: bridge.loss_fn(bridge(TEXT), bridge.to_tokens(TEXT))],
    "input_to_embed": [lambda bridge: bridge.input_to_embed(TEXT)[0]],
    "parameters": [lambda bridge: list(bridge.parameters())],
    "named_parameters": [lambda bridge: dict(bridge.named_parameters())],
    "state_dict": [lambda bridge: dict(bridge.state_dict())],
    "get_params": [alike("get_params")],
    "tl_parameters": [alike("tl_parameters")],
    "tl_named_parameters": [lambda bridge: dict(bridge.tl_named_parameters())],
    "accumulated_bias": [alike("accumulated_bias", 3)],
    "all_composition_scores": [lambda bridge: bridge.all_composition_scores("Q").scores],
    "stack_params_for": [alike("stack_params_for", "attn", "attn.W_Q")],
    "tokens_to_residual_directions": [alike("tokens_to_residual_directions", " Paris")],
    "to_tokens": [alike("to_tokens", TEXT)],
    "to_string": [alike("to_string", torch.tensor([5, 6]))],
    "to_str_tokens": [alike("to_str_tokens", TEXT)],
    "to_single_token": [alike("to_single_token", " Paris")],
    "to_single_str_token": [alike("to_single_str_token", 5)],
    "get_token_position": [alike("get_token_position", " France", TEXT)],
    "block_hooks": [alike("block_hooks", 1)],
    "block_submodules": [alike("block_submodules", 1)],
    "blocks_with": [lambda bridge: len(bridge.blocks_with("attn"))],
    "composition_layer_indices": [alike("composition_layer_indices")],
    "layer_types": [alike("layer_types")],
    "all_head_labels": [value("all_head_labels")],
    "attn_head_labels": [value("attn_head_labels")],
    "OV_for_attn_layers": [lambda bridge: len(bridge.OV_for_attn_layers()[0])],
    "QK_for_attn_layers": [lambda bridge: len(bridge.QK_for_attn_layers()[0])],
    "cpu": [lambda bridge: bridge.cpu() is bridge],
    "to": [lambda bridge: bridge.to("cpu") is bridge],
    "set_use_attn_result": [alike("set_use_attn_result", False)],
    "set_use_split_qkv_input": [alike("set_use_split_qkv_input", False)],
    "set_use_attn_in": [alike("set_use_attn_in", False)],
    "set_use_hook_mlp_in": [alike("set_use_hook_mlp_in", False)],
    "train": [lambda bridge: bridge.train(False) is bridge],
    "eval": [lambda bridge: bridge.eval() is bridge],
    "hook_points": [lambda bridge: [point.name for point in bridge.hook_points()]],
    "clear_contexts": [alike("clear_contexts")],
    "remove_all_hook_fns": [alike("remove_all_hook_fns", including_permanent=True)],
    "reset_hooks": [alike("reset_hooks")],
}
REFUSED: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "generate": ("leave out `use_past_kv_cache`", alike("generate", TEXT, use_past_kv_cache=True)),
    "generate_stream": ("leave out `use_past", lambda bridge: list(bridge.generate_stream(use_past_kv_cache=True))),
    "hf_generate": ("call `generate`", alike("hf_generate", TEXT)),
    "diffusion_generate": ("call `generate`", alike("diffusion_generate", TEXT)),
    "enable_compatibility_mode": (r"no_processing=True\)", alike("enable_compatibility_mode")),
    "process_weights": ("its own weights", alike("process_weights")),
    "init_weights": ("its own weights", alike("init_weights")),
    "load_state_dict": ("its own weights", alike("load_state_dict", {})),
    "set_use_attn_result": ("stack_head_results", alike("set_use_attn_result", True)),
    "set_use_split_qkv_input": ("change `hook_q`", alike("set_use_split_qkv_input", use_split_qkv_input=True)),
    "set_use_attn_in": (r"change `ln1\.hook_out`", alike("set_use_attn_in", True)),
    "set_use_hook_mlp_in": (r"change `ln2\.hook_out`", alike("set_use_hook_mlp_in", True)),
    "train": (r"dj\.attribute", alike("train")),
    "to": ("its own weights", alike("to", torch.float16)),
    "cuda": ("its own weights", alike("cuda")),
    "mps": ("its own weights", alike("mps")),
    "half": ("its own weights", alike("half")),
    "double": ("its own weights", alike("double")),
    "bfloat16": ("its own weights", alike("bfloat16")),
    "float": ("its own weights", alike("float")),
    "type": ("its own weights", alike("type", torch.float16)),
    "to_empty": ("its own weights", alike("to_empty", device="cpu")),
    "share_memory": ("its own weights", alike("share_memory")),
    "compile": ("not compiled", alike("compile")),
    "run_with_cache": ("cannot fire", alike("run_with_cache", TEXT, names_filter="embed.hook_in")),
    "forward": ("position_ids", alike("forward", TEXT, position_ids=torch.arange(6)[None])),
}
# Of other kinds of model, of loading, and of torch: nothing runs, or it says so itself.
ELSEWHERE = frozenset(
    "boot_native boot_tl_legacy boot_transformers check_model_support list_supported_models clear_hook_registry close "
    "encoder_output predict_next_sentence prepare_multimodal_inputs to_sentence_pair_tokens".split()
)


def within(bridge: Any) -> Any:
    with bridge.hooks(fwd_hooks=[(NAME, halve)]):
        return bridge(TEXT)


def changed(bridge: Any, add: Callable[..., Any]) -> Any:
    add(NAME, halve)
    try:
        return bridge(TEXT)
    finally:
        bridge.reset_hooks(including_permanent=True)


def seen_everywhere(bridge: Any) -> Any:
    """Return what a function of the user's sees that is added at every point at once."""
    seen: dict[str, Any] = {}

    def look(value: Any, hook: Any) -> None:
        seen[hook.name] = value

    bridge.add_hook(lambda name: name not in getattr(bridge._driver, "non_fireable_hook_points", ()), look)
    try:
        bridge(TEXT)
    finally:
        bridge.reset_hooks()
    return {name: seen[name] for name in ("blocks.2.ln1.hook_in", "blocks.2.hook_out", "blocks.3.attn.hook_pattern")}


def kept_by_hooks(bridge: Any) -> Any:
    cache, hooks, _ = bridge.get_caching_hooks()
    bridge.run_with_hooks(TEXT, fwd_hooks=hooks)
    return {name: cache[name] for name in ("blocks.2.hook_out", "blocks.3.attn.hook_pattern")}


def same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[name], other[name]) for name in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


@pytest.fixture
def demo() -> Iterator[tuple[Any, Any]]:
    with of_demo() as bridges:
        yield bridges


def test_every_public_method_is_served_or_refused(demo: tuple[Any, Any]) -> None:
    from transformer_lens.model_bridge import TransformerBridge

    ours, own = demo
    theirs = {
        name
        for base in TransformerBridge.__mro__[: TransformerBridge.__mro__.index(torch.nn.Module)]
        for name, one in vars(base).items()
        if not name.startswith("_") and callable(getattr(one, "__func__", one))
    }
    assert theirs <= {*SERVED, *REFUSED, *ELSEWHERE}
    for name, calls in SERVED.items():
        for call in calls:
            assert same(call(ours), call(own)), name
    before = ours(TEXT)
    for match, call in REFUSED.values():
        with pytest.raises(NotImplementedError, match=match):
            call(ours)
    assert torch.equal(ours(TEXT), before)
    require_same_bits(dict(ours.run_with_cache(TEXT)[1]), dict(own.run_with_cache(TEXT)[1]))


def test_compatibility_mode_without_processing_has_the_names_and_the_bits(demo: tuple[Any, Any]) -> None:
    ours = demo[0]
    served = len(ours.run_with_cache(TEXT)[1])
    ours.add_hook(NAME, halve)
    with pytest.raises(UsageError, match="call `reset_hooks` first"):
        ours.enable_compatibility_mode(no_processing=True)
    ours.reset_hooks()
    for bridge in demo:
        bridge.enable_compatibility_mode(disable_warnings=True, no_processing=True)
    found, theirs = (dict(bridge.run_with_cache(TEXT)[1]) for bridge in demo)
    assert len(found) == served
    for name in found:
        if name.endswith("attn_scores"):  # what is hidden is -inf here, and the lowest number on an engine
            found[name] = found[name].masked_fill(theirs[name].isinf(), -torch.inf)
    require_same_bits(found, theirs)
    for name in ("hook_embed", "blocks.1.attn.hook_q", "blocks.2.mlp.hook_post", "blocks.3.hook_attn_out"):
        changed, theirs = (bridge.run_with_hooks(TEXT, fwd_hooks=[(name, halve)]) for bridge in demo)
        assert torch.equal(changed, theirs), name
    with pytest.raises(NotImplementedError, match=r"blocks\.1\.ln2\.hook_out"):
        ours.run_with_hooks(TEXT, fwd_hooks=[("blocks.1.hook_resid_mid", halve)])
    with pytest.raises(NotImplementedError, match="cannot fire"):
        ours.run_with_hooks(TEXT, fwd_hooks=[("blocks.1.hook_q_input", halve)])


def test_the_page_lists_the_points_that_are_not_served(tmp_path: Path) -> None:
    """The table is what this test makes."""
    folder = saved("gpt2", tmp_path / "gpt2")
    loaded = load_model(EngineConfig(model="demo"))
    llama = unserved(build_desk(loaded.model, loaded.tokenizer), MODEL_PATH)
    gpt2 = unserved(build_desk(build("gpt2", layers=3)), folder)
    rows = [f"| `{name}` | {_mark(name in llama)} | {_mark(name in gpt2)} |" for name in sorted(llama | gpt2)]
    table = "\n".join(["| not served | Llama | GPT-2 |", "|---|---|---|", *rows])
    assert table in coming_from.PAGE.read_text(encoding="utf-8"), table


def _mark(there: bool) -> str:
    return "x" if there else ""


def unserved(desk: Desk, folder: Path) -> set[str]:
    """Return the points that an engine does not serve of this model, `N` for a layer's number."""
    from djinn_jupyter.integrations.transformer_lens import boot_djinn

    with one_thread(), reached(desk) as [engine]:
        bridge = boot_djinn(engine, folder)
        try:
            return {re.sub(r"\.\d+\.", ".N.", name) for name in bridge._driver.non_fireable_hook_points}
        finally:
            bridge.close()
