"""nnsight: one trace per patch over the same model, with or without its lower layers. In its own environment."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import Any

import torch
from nnsight import NNsight
from torch import Tensor

from djinn_evaluation.baselines.answering import serve
from djinn_evaluation.baselines.weights import digest, settle
from djinn_evaluation.benchmarks.workers import gpt2

SHOWN = 8


class Sight:
    model: Any
    _clean: list[Tensor]
    _below: list[Tensor]
    _corrupted_1T: Tensor

    def load(self, folder: str, shape: dict[str, int], threads: int) -> dict[str, Any]:
        loaded = gpt2.load(folder, shape, threads)
        self.model, self._device = NNsight(loaded), loaded.device
        return {}

    @torch.inference_mode()
    def prepare_patching(self, clean: list[int], corrupted: list[int]) -> dict[str, Any]:
        self._corrupted_1T = torch.tensor([corrupted], device=self._device)
        self._clean = self._residuals(torch.tensor([clean], device=self._device))
        self._below = self._residuals(self._corrupted_1T)
        return {}

    def _residuals(self, tokens_1T: Tensor) -> list[Tensor]:
        found: list[Tensor] = []
        for block in self.model.transformer.h:
            with self.model.trace(tokens_1T, use_cache=False, logits_to_keep=1):
                after = block.output.save()
            found.append(after.clone())
        return found

    @torch.inference_mode()
    def patch_layer(self, layer: int) -> dict[str, Any]:
        """Patch each position by a whole forward."""
        return self._each_position(lambda position: self._patched(layer, position))

    @torch.inference_mode()
    def patch_layer_skipping(self, layer: int) -> dict[str, Any]:
        """Patch each position by passing in the patched residual and skipping the layers up to it."""
        return self._each_position(lambda position: self._skipped(layer, position))

    def _each_position(self, patched: Callable[[int], Tensor]) -> dict[str, Any]:
        begun = perf_counter()
        found = [patched(position) for position in range(self._corrupted_1T.shape[1])]
        settle(self._device)
        seconds = perf_counter() - begun
        digests = [digest(row) for row in found]
        return {"seconds": seconds, "rows": [row[:SHOWN].tolist() for row in found], "digests": digests}

    def _patched(self, layer: int, position: int) -> Tensor:
        clean = self._clean[layer][:, position]
        with self.model.trace(self._corrupted_1T, use_cache=False, logits_to_keep=1):
            self.model.transformer.h[layer].output[:, position] = clean
            logits = self.model.lm_head.output[0, -1].save()
        row: Tensor = logits
        return row

    def _skipped(self, layer: int, position: int) -> Tensor:
        hidden = self._below[layer].clone()
        hidden[:, position] = self._clean[layer][:, position]
        with self.model.trace(self._corrupted_1T, use_cache=False, logits_to_keep=1):
            for below in range(layer + 1):
                self.model.transformer.h[below].skip(hidden)
            logits = self.model.lm_head.output[0, -1].save()
        row: Tensor = logits
        return row


if __name__ == "__main__":
    sight = Sight()
    names = ("load", "prepare_patching", "patch_layer", "patch_layer_skipping")
    serve({name: getattr(sight, name) for name in names})
