"""interp-engine, its eager backend. In its own environment."""

from __future__ import annotations

from typing import Any

import interp_engine
import torch
from torch import Tensor

from djinn_evaluation.baselines.asking import serve
from djinn_evaluation.benchmarks.workers.with_plain_hooks import AgreeingSide


class Interp(AgreeingSide):
    def load(self, folder: str) -> None:
        torch.set_num_threads(1)
        self.model: Any = interp_engine.load_model(folder, backend="eager")

    @torch.inference_mode()
    def _look(self, tokens: list[int], layer: int) -> dict[str, Tensor]:
        points = {"resid_post": "resid_post", "attn_out": "attn_out", "mlp_out": "mlp_out", "z": "z"}
        line = torch.tensor([tokens])
        cache = interp_engine.capture(self.model, line, [f"{p}.{layer}" for p in (*points, "attn_probs")])
        found = {site: cache[f"{point}.{layer}"][0] for site, point in points.items()}
        return {
            **found,
            "z": found["z"].unflatten(-1, (self.model.n_heads, -1)),
            "pattern": cache[f"attn_probs.{layer}"][0].transpose(0, 1),
            "logits": self.model.hf_model(line).logits[0],
        }

    @torch.inference_mode()
    def _add(self, tokens: list[int], layer: int, vector: list[float]) -> Tensor:
        spec = interp_engine.SteerSpec(vector=torch.tensor(vector), layer=layer)
        with interp_engine.steer(self.model, [spec]):
            logits: Tensor = self.model.hf_model(torch.tensor([tokens])).logits[0]
        return logits


if __name__ == "__main__":
    serve(Interp)
