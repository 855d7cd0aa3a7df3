"""TransformerLens: its own patching function over its bridge to the same saved model. Runs in its own environment."""

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

from djinn_evaluation.baselines.answering import serve
from djinn_evaluation.baselines.weights import device_for, settle

SHOWN = 8
WAYS: dict[str, tuple[Any, tuple[str, str]]] = {
    "resid_post": (layer_pos_patch_setter, ("layer", "pos")),
    "z": (layer_head_vector_patch_setter, ("layer", "head_index")),
}


class Lens:
    model: Any
    _clean: Any
    _corrupted_1T: Tensor

    def load(self, folder: str, shape: dict[str, int], threads: int) -> dict[str, Any]:
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
        """Patch every position, or every head, of each layer whose number `every` divides, of all pairs as one batch;
        return each pair's logits of the token, a cell after the other."""
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


if __name__ == "__main__":
    lens = Lens()
    serve({name: getattr(lens, name) for name in ("load", "prepare_patching", "patch_layer", "patch")})
