"""A bridge of TransformerLens whose forwards run on a Djinn engine, and the comparison by which it is told which hook
points the engine serves: those at which both have the same values on a line."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import torch
from torch import Tensor
from transformer_lens.model_bridge import TransformerBridge

from djinn_jupyter.client.engine import RemoteEngine
from djinn_jupyter.demo import MODEL_PATH
from djinn_jupyter.errors import UsageError
from djinn_jupyter.integrations.transformer_lens.driver import DjinnDriver
from djinn_jupyter.integrations.transformer_lens.hook_sites import hook_sites
from djinn_jupyter.wire.nouns import AttentionName

LINE: Final = 6  # tokens of the line on which both are compared
LOGITS: Final = "logits"
MASKED: Final = -1e30  # what is below is the mask of a score
CLOSE: Final = {"float32": 1e-4, "bfloat16": 0.05, "float16": 0.01}  # of the largest number of a value: rounding


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
    dtype = engine.description.dtype
    bridge = TransformerBridge.boot_transformers(
        str(MODEL_PATH if given == "demo" else given), device="cpu", dtype=getattr(torch, dtype)
    ).eval()
    there = _sites_of(engine)
    with torch.inference_mode():
        theirs = _cached(bridge)
        names = {point.name for point in bridge.hook_points()}
        known = {name: site for name, site in hook_sites(bridge.cfg.n_layers, names).items() if site.site in there}
        driver = DjinnDriver(engine, bridge.adapter, bridge.tokenizer, known, attention=attention, bridge=bridge)
        bridge._driver = driver
        try:
            equal = _served(driver, theirs, CLOSE[dtype])
        except BaseException:
            driver.close()
            raise
    driver.serve({name: site for name, site in known.items() if name in equal}, names - equal)
    return bridge


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
    """Return whether two values are equal but for rounding; entries that are masked are so in both."""
    if theirs.shape != ours.shape:
        return False
    seen = theirs.float() > MASKED
    if not torch.equal(seen, ours.float() > MASKED):
        return False
    ours, theirs = ours.float()[seen], theirs.float()[seen]
    return bool((ours - theirs).abs().max() <= close * theirs.abs().max())
