"""A bridge of TransformerLens whose forwards run on a Djinn engine, and the comparison that decides which hook points
the engine serves: those at which both have the same values on a line."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor
from transformer_lens.model_bridge import TransformerBridge
from transformer_lens.model_bridge.sources.transformers_driver import TransformersDriver

from djinn_jupyter.api.engine import RemoteEngine
from djinn_jupyter.demo import MODEL_PATH
from djinn_jupyter.errors import UsageError
from djinn_jupyter.integrations.transformer_lens.driver import DjinnDriver
from djinn_jupyter.integrations.transformer_lens.hooks import hook_sites
from djinn_jupyter.wire.nouns import AttentionName

LINE: Final = 6  # tokens of the line on which both are compared
LOGITS: Final = "logits"
MASKED: Final = -1e30  # smaller values are the mask of a score
CLOSE: Final = {"float32": 1e-4, "bfloat16": 0.05, "float16": 0.01}  # of the largest number of a value: rounding


WEIGHTS: Final = (
    "an engine computes with its own weights, and what is here is a copy for the analysis that multiplies by them: "
)
FLAG: Final = "an engine has no point before the split of queries, keys and values, nor results by head: "
REFUSED: Final = {
    "hf_generate": "it would run the copy of the model here, and not the engine: call `generate`.",
    "diffusion_generate": "an engine writes one token after the other: call `generate`.",
    "process_weights": WEIGHTS + "change the value at a hook point, or start an engine with the model that you mean.",
    "init_weights": WEIGHTS + "start an engine with the model that you mean.",
    "load_state_dict": WEIGHTS + "start an engine with the model that you mean.",
    "_apply": WEIGHTS + "its device and dtype are set where the engine is started.",
    "set_use_attn_result": FLAG + "multiply `hook_z` by `W_O`, or call `cache.stack_head_results()`.",
    "set_use_split_qkv_input": FLAG + "change `hook_q`, `hook_k` or `hook_v`.",
    "set_use_attn_in": FLAG + "change `ln1.hook_out`.",
    "set_use_hook_mlp_in": "an engine has the input of an MLP behind its norm: change `ln2.hook_out`.",
    "compile": "forwards run on the engine, which is not compiled: leave this out.",
    "train": "an engine computes without dropout and gradients: `dj.attribute` has gradients.",
}  # where they are given anything but False


class EngineBridge(TransformerBridge):  # type: ignore[misc]
    """TransformerLens's bridge with forwards on an engine. Everything that would run or change only the copy of the
    model in this process is refused (`REFUSED`)."""

    @property
    def original_model(self) -> Any:
        """The copy of the model in this process."""
        return self.__dict__["original_model"]

    def get_caching_hooks(self, names_filter: Any = None, *args: Any, **settings: Any) -> Any:
        """Return a cache and its functions, as TransformerLens does; as in `run_with_cache` an unserved point is left
        out, unless it was named."""
        cache, forward, backward = super().get_caching_hooks(names_filter, *args, **settings)
        if isinstance(names_filter, str | list):
            return cache, forward, backward
        refused, named = self._driver.non_fireable_hook_points, self.hook_dict
        served = [[one for one in hooks if named[one[0]].name not in refused] for hooks in (forward, backward)]
        return cache, *served

    def generate(self, *args: Any, use_past_kv_cache: bool = False, **settings: Any) -> Any:
        """Generate as TransformerLens does, one pass of the engine over the whole line for each token."""
        _require_no_cache(use_past_kv_cache)
        return super().generate(*args, use_past_kv_cache=False, **settings)

    def generate_stream(self, *args: Any, use_past_kv_cache: bool = False, **settings: Any) -> Any:
        """Generate as TransformerLens does, and yield tokens as they come."""
        _require_no_cache(use_past_kv_cache)
        return super().generate_stream(*args, use_past_kv_cache=False, **settings)

    def enable_compatibility_mode(self, *args: Any, no_processing: bool = False, **settings: Any) -> None:
        """Use the names of HookedTransformer. NotImplementedError unless the weights stay unchanged."""
        if not no_processing:
            raise NotImplementedError(
                "enable_compatibility_mode: folding and centering, which change no probability, would change the copy "
                "of the weights here, and not the engine's: call enable_compatibility_mode(no_processing=True)."
            )
        if any(point.fwd_hooks or point.bwd_hooks for point in self.hook_points()):
            raise UsageError("enable_compatibility_mode: hook points have functions: call `reset_hooks` first.")
        super().enable_compatibility_mode(*args, no_processing=True, **settings)
        _serve_what_is_equal(self, self._driver)

    def to(self, *args: Any, print_details: bool = False, **settings: Any) -> EngineBridge:
        """Return the bridge if it has this device and dtype. NotImplementedError for others."""
        device, dtype, *_ = torch._C._nn._parse_to(*args, **settings)
        if device not in (None, torch.device("cpu")) or dtype not in (None, self.cfg.dtype):
            raise NotImplementedError(f"to: {REFUSED['_apply']}")
        return self


def _refusal(name: str, why: str) -> Callable[..., Any]:
    theirs = getattr(TransformerBridge, name)

    def refused(self: Any, *args: Any, **given: Any) -> Any:
        if [*args, *given.values()] == [False]:
            return theirs(self, False)
        raise NotImplementedError(f"{name.replace('_apply', 'to')}: {why}")

    return refused


for _name, _why in REFUSED.items():
    setattr(EngineBridge, _name, _refusal(_name, _why))


def _require_no_cache(asked: bool) -> None:
    if asked:
        raise NotImplementedError("An engine is given whole lines by TransformerLens: leave out `use_past_kv_cache`.")


def boot_djinn(
    engine: RemoteEngine, model: str | Path | None = None, *, attention: AttentionName = "eager"
) -> TransformerBridge:
    """Return TransformerLens's bridge to the model of an engine. Forwards, with their hooks and caches, run on the
    engine; the weights that the analysis multiplies by are this process's own copy, from `model`, by default the
    engine's own folder or name. Attention is eager, as in TransformerLens's bridges, so that patterns can be changed.

    A hook point is served where the engine's value equals TransformerLens's own, but for rounding, on a line of a few
    tokens; the others are refused by name. UsageError where the two do not have the same logits."""
    given = engine.entry.identity.model if model is None and engine.entry is not None else model
    if given is None:
        raise UsageError("This engine does not say where its model is: name the folder or the hub's name as `model`.")
    bridge = TransformerBridge.boot_transformers(
        str(MODEL_PATH if given == "demo" else given), device="cpu", dtype=getattr(torch, engine.description.dtype)
    ).eval()
    driver = DjinnDriver(engine, bridge.adapter, bridge.tokenizer, {}, attention=attention, bridge=bridge)
    bridge.__class__ = EngineBridge
    try:
        _serve_what_is_equal(bridge, driver)
    except BaseException:
        driver.close()
        raise
    return bridge


def _serve_what_is_equal(bridge: TransformerBridge, driver: DjinnDriver) -> None:
    """Serve the hook points at which the bridge's own model has the same values as the engine on a line."""
    points, there = bridge.hook_dict, _sites_of(driver.engine)  # in compatibility mode a point's own name differs
    names = {point.name for point in points.values()}
    found = hook_sites(bridge.cfg.n_layers, points).items()
    known = {points[name].name: site for name, site in found if site.site in there}
    with torch.inference_mode():
        bridge._driver = TransformersDriver(bridge.original_model, bridge.adapter, bridge.tokenizer)
        try:
            theirs = _cached(bridge)
        finally:
            bridge._driver = driver
        driver.serve(known, ())
        equal = _served(driver, theirs, CLOSE[driver.engine.description.dtype])
    driver.serve({name: site for name, site in known.items() if name in equal}, names - equal)


def _sites_of(engine: RemoteEngine) -> set[str]:
    """Return all points of the engine's model, at every layer that has them."""
    points = engine.description.points
    inside = {f"{point.point}.{layer}" for point in points for layer in point.layers or ()}
    return inside | {point.point for point in points if point.layers is None and point.absent is None}


def _line(vocabulary: int) -> Tensor:
    return torch.arange(LINE)[None] % vocabulary


def _cached(bridge: TransformerBridge) -> dict[str, Tensor]:
    """Return the values on the line at every hook point, by its own name, and the logits, on the bridge's own model."""
    logits, cache = bridge.run_with_cache(_line(bridge.cfg.d_vocab), return_cache_object=False)
    return {bridge.hook_dict[name].name: value for name, value in cache.items()} | {LOGITS: logits}


def _served(driver: DjinnDriver, theirs: Mapping[str, Tensor], close: float) -> set[str]:
    """Return the hook points at which the engine has the same values. Raises UsageError where the logits differ."""
    names = [name for name in driver.sites if isinstance(theirs.get(name), Tensor)]
    passed = driver.forward(_line(driver.bridge_config.d_vocab), capture=names)
    if not _alike(theirs[LOGITS], passed.logits, close):
        raise UsageError(
            "The engine and the model that TransformerLens loaded have other logits on a line: name the same model, "
            "in the same dtype."
        )
    return {name for name, value in passed.captured.items() if _alike(theirs[name], value, close)}


def _alike(theirs: Tensor, ours: Tensor, close: float) -> bool:
    """Return whether two values are equal up to rounding; masked entries must match."""
    if theirs.shape != ours.shape:
        return False
    seen = theirs.float() > MASKED
    if not torch.equal(seen, ours.float() > MASKED):
        return False
    ours, theirs = ours.float()[seen], theirs.float()[seen]
    return bool((ours - theirs).abs().max() <= close * theirs.abs().max())
