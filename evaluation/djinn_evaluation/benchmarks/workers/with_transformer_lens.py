"""TransformerLens over the saved model, and over an engine too, in its own environment, which sees Djinn's."""

from __future__ import annotations

from time import perf_counter
from typing import Any

import pandas
import torch
from torch import Tensor
from transformer_lens.model_bridge import TransformerBridge
from transformer_lens.patching import (
    generic_activation_patch,
    layer_head_vector_patch_setter,
    layer_pos_patch_setter,
)

import djinn_jupyter as dj
from djinn_evaluation.baselines.asking import serve
from djinn_evaluation.baselines.weights import device_for, settle
from djinn_evaluation.benchmarks.workers.with_plain_hooks import SITES, AgreeingSide
from djinn_jupyter.integrations.lines import place_of
from djinn_jupyter.integrations.transformer_lens import boot_djinn

SHOWN = 8
WAYS: dict[str, tuple[Any, tuple[str, str]]] = {
    "resid_post": (layer_pos_patch_setter, ("layer", "pos")),
    "z": (layer_head_vector_patch_setter, ("layer", "head_index")),
}


class Lens(AgreeingSide):
    model: Any
    _clean: Any
    _corrupted_1T: Tensor

    def load(self, folder: str, shape: dict[str, int] | None = None, threads: int = 1) -> dict[str, Any]:
        torch.set_num_threads(threads)
        self._device = device_for(None)
        self.model = TransformerBridge.boot_transformers(folder, device=self._device).eval()
        return {}

    @torch.inference_mode()
    def prepare_patching(self, clean: list[int], corrupted: list[int]) -> dict[str, Any]:
        self._clean = self.model.run_with_cache(torch.tensor([clean], device=self._device))[1]
        self._corrupted_1T = torch.tensor([corrupted], device=self._device)
        return {}

    @torch.inference_mode()
    def patch_layer(self, layer: int) -> dict[str, Any]:
        found: list[Tensor] = []

        def keep(logits: Tensor) -> Tensor:
            found.append(logits[0, -1])
            return logits[0, -1, 0]

        length = self._corrupted_1T.shape[1]
        places = pandas.DataFrame({"layer": [layer] * length, "pos": range(length)})
        begun = perf_counter()
        generic_activation_patch(
            self.model,
            self._corrupted_1T,
            self._clean,
            keep,
            layer_pos_patch_setter,
            "resid_post",
            index_df=places,
        )
        settle(self._device)
        return {"seconds": perf_counter() - begun, "rows": [row[:SHOWN].tolist() for row in found]}

    @torch.inference_mode()
    def patch(
        self, site: str, token: int, every: int, clean: list[list[int]], corrupted: list[list[int]]
    ) -> dict[str, Any]:
        """Patch each position or head of every `every`-th layer, all pairs as one batch; return logits."""
        found: list[Tensor] = []

        def keep(logits: Tensor) -> Tensor:
            found.append(logits[:, -1, token])
            return logits[0, -1, 0]

        cache = self.model.run_with_cache(torch.tensor(clean, device=self._device))[1]
        setter, axes = WAYS[site]
        lines = torch.tensor(corrupted, device=self._device)
        count = self.model.cfg.n_heads if site == "z" else lines.shape[1]
        layers = range(0, self.model.cfg.n_layers, every)
        places = pandas.DataFrame([{axes[0]: layer, axes[1]: at} for layer in layers for at in range(count)])
        generic_activation_patch(self.model, lines, cache, keep, setter, site, index_df=places)
        settle(self._device)
        return {"values": torch.stack(found, 1).tolist()}

    @torch.inference_mode()
    def _look(self, tokens: list[int], layer: int) -> dict[str, Tensor]:
        logits, cache = self.model.run_with_cache(torch.tensor([tokens], device=self._device))
        found = {site: cache[site, layer][0] for site in SITES}
        return {**found, "pattern": found["pattern"].transpose(0, 1), "logits": logits[0]}

    @torch.inference_mode()
    def _add(self, tokens: list[int], layer: int, vector: list[float]) -> Tensor:
        along = torch.tensor(vector, device=self._device)
        hook = (f"blocks.{layer}.hook_resid_post", lambda value, hook: value + along)
        logits: Tensor = self.model.run_with_hooks(torch.tensor([tokens], device=self._device), fwd_hooks=[hook])[0]
        return logits


class Analysis:
    """`bridges` are TransformerLens's own and the one on the engine."""

    bridges: dict[str, Any]

    def load_both(self, folder: str, threads: int) -> dict[str, Any]:
        torch.set_num_threads(threads)
        own = TransformerBridge.boot_transformers(folder, device="cpu").eval()
        self.bridges = {"own": own, "djinn": boot_djinn(dj.attach(*dj.engines()), folder)}
        return {}

    @torch.inference_mode()
    def patch_on(self, side: str, clean: list[int], corrupted: list[int], every: int) -> dict[str, Any]:
        """Patch the residual before each layer at every so many positions, by their own function."""
        model, found = self.bridges[side], list[Tensor]()

        def keep(logits: Tensor) -> Tensor:
            found.append(logits[0, -1, :SHOWN])
            return logits[0, -1, 0]

        cache = model.run_with_cache(torch.tensor([clean]))[1]
        layers, positions = range(model.cfg.n_layers), range(0, len(corrupted), every)
        places = pandas.DataFrame([{"layer": layer, "pos": at} for layer in layers for at in positions])
        lines = torch.tensor([corrupted])
        generic_activation_patch(model, lines, cache, keep, layer_pos_patch_setter, "resid_pre", index_df=places)
        return {"values": torch.stack(found).tolist()}

    @torch.inference_mode()
    def cached_bytes(self, line: list[int]) -> dict[str, Any]:
        """Return the bytes of a cache of every hook point that an engine serves, each place once."""
        own, sites = self.bridges["own"], self.bridges["djinn"]._driver.sites
        cache = own.run_with_cache(torch.tensor([line]), return_cache_object=False)[1]
        of_place: dict[str, int] = {}
        for key, value in cache.items():
            site = sites.get(own.hook_dict[key].name)
            if site is not None:
                place = place_of(site.site)
                of_place[place] = max(of_place.get(place, 0), value.nbytes)
        return {"bytes": sum(of_place.values())}

    @torch.inference_mode()
    def analyse(self, side: str, line: list[int]) -> dict[str, Any]:
        """Keep every value of a pass, and attribute a logit to the parts of the residual and to the heads."""
        cache = self.bridges[side].run_with_cache(torch.tensor([line]))[1]
        parts = torch.cat([cache.decompose_resid(), cache.stack_head_results()])
        return {"values": cache.logit_attrs(parts, tokens=3)[:, 0, -1].tolist()}

    @torch.inference_mode()
    def hook(self, side: str, line: list[int]) -> dict[str, Any]:
        """Run a line whose MLPs are halved by a function at every layer."""
        model = self.bridges[side]
        hooks = [(f"blocks.{n}.hook_mlp_out", lambda value, hook: value * 0.5) for n in range(model.cfg.n_layers)]
        return {"values": model.run_with_hooks(torch.tensor([line]), fwd_hooks=hooks)[0, -1, :SHOWN].tolist()}


if __name__ == "__main__":
    serve(Lens, Analysis)
