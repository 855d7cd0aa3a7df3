"""TransformerLens's own analysis, over its own model and over an engine: in an environment that has both."""

from __future__ import annotations

from typing import Any

import pandas
import torch
from torch import Tensor
from transformer_lens.model_bridge import TransformerBridge
from transformer_lens.patching import generic_activation_patch, layer_pos_patch_setter

import djinn_jupyter as dj
from djinn_evaluation.baselines.answering import serve
from djinn_jupyter.integrations.hooked_lines import place_of
from djinn_jupyter.integrations.transformer_lens import boot_djinn

SHOWN = 8


class Analysis:
    """`bridges` are TransformerLens's own and the one on the engine."""

    bridges: dict[str, Any]

    def load(self, folder: str, threads: int) -> dict[str, Any]:
        torch.set_num_threads(threads)
        own = TransformerBridge.boot_transformers(folder, device="cpu").eval()
        self.bridges = {"own": own, "djinn": boot_djinn(dj.attach(*dj.engines()), folder)}
        return {}

    @torch.inference_mode()
    def patch(self, side: str, clean: list[int], corrupted: list[int], every: int) -> dict[str, Any]:
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
        """Return how many bytes the values of a cache of every hook point have that an engine serves: each place of a
        pass once, however many hook points are there."""
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
    analysis = Analysis()
    serve({name: getattr(analysis, name) for name in ("load", "patch", "cached_bytes", "analyse", "hook")})
