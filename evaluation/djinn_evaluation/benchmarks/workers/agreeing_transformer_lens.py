"""TransformerLens: its bridge over the same files. In its own environment."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformer_lens.model_bridge import TransformerBridge

from djinn_evaluation.benchmarks.workers.agreeing import SITES, answer


class Lens:
    def load(self, folder: str) -> None:
        torch.set_num_threads(1)
        self.model: Any = TransformerBridge.boot_transformers(folder, device="cpu").eval()

    @torch.inference_mode()
    def look(self, tokens: list[int], layer: int) -> dict[str, Tensor]:
        logits, cache = self.model.run_with_cache(torch.tensor([tokens]))
        found = {site: cache[site, layer][0] for site in SITES}
        return {**found, "pattern": found["pattern"].transpose(0, 1), "logits": logits[0]}

    @torch.inference_mode()
    def add(self, tokens: list[int], layer: int, vector: list[float]) -> Tensor:
        along = torch.tensor(vector)
        hook = (f"blocks.{layer}.hook_resid_post", lambda value, hook: value + along)
        logits: Tensor = self.model.run_with_hooks(torch.tensor([tokens]), fwd_hooks=[hook])[0]
        return logits


if __name__ == "__main__":
    lens = Lens()
    answer(lens.load, lens.look, lens.add)
