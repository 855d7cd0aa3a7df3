"""Plain transformers with a whole saved model on the device: `generate`, and the speed of copies beside it."""

from __future__ import annotations

from time import perf_counter
from typing import Any

import torch

from djinn_evaluation.baselines.answering import serve
from djinn_evaluation.baselines.decoding import Timestamps, decoded
from djinn_evaluation.baselines.weights import ModelAsked, device_for, settle

TIMES = 5


class Whole:
    model: Any

    def load(self, model: str, threads: int) -> dict[str, Any]:
        """Return the bytes of weights that a token reads: all but the embeddings, of which it reads one row."""
        self.model = ModelAsked(model=model, dtype=None, threads=threads).read().to(device_for(None))
        self.model.generation_config.eos_token_id = None
        table = self.model.get_input_embeddings().weight
        return {"read": sum(p.nbytes for p in self.model.parameters() if p is not table)}

    @torch.inference_mode()
    def generate(self, tokens: list[int], new: int) -> dict[str, Any]:
        return decoded(self.model, tokens, new, self.model.device, Timestamps())

    def copy(self, nbytes: int) -> dict[str, Any]:
        """Return the bytes a second that a copy on the device reads and writes, the best of some."""
        device = self.model.device
        source, target = (torch.ones(nbytes, dtype=torch.uint8, device=device) for _ in range(2))
        seconds = []
        for _ in range(TIMES):
            settle(device)
            begun = perf_counter()
            target.copy_(source)
            settle(device)
            seconds.append(perf_counter() - begun)
        return {"rate": 2 * nbytes / min(seconds)}


if __name__ == "__main__":
    whole = Whole()
    serve({"load": whole.load, "generate": whole.generate, "copy": whole.copy})
