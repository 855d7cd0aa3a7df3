"""Plain transformers with a whole saved model on the device: `generate`, and the speed of copies beside it."""

from __future__ import annotations

from typing import Any

import torch

from djinn_evaluation.baselines.answering import serve
from djinn_evaluation.baselines.copies import seconds_of
from djinn_evaluation.baselines.decoding import Decoding
from djinn_evaluation.baselines.weights import ModelAsked, device_for, settle

TIMES = 5


class Whole(Decoding):
    def load(self, model: str, threads: int) -> dict[str, Any]:
        """Return the bytes of weights that a token reads: all but the embeddings, of which it reads one row."""
        self.device = device_for(None)
        self.model = ModelAsked(model=model, dtype=None, threads=threads).read().to(self.device)
        self.model.generation_config.eos_token_id = None
        table = self.model.get_input_embeddings().weight
        return {"read": sum(p.nbytes for p in self.model.parameters() if p is not table)}

    def copy(self, nbytes: int) -> dict[str, Any]:
        """Return the bytes a second that a copy on the device reads and writes, the best of some."""
        source, target = (torch.ones(nbytes, dtype=torch.uint8, device=self.device) for _ in range(2))
        settle(self.device)
        return {"rate": 2 * nbytes / min(seconds_of(source, target) for _ in range(TIMES))}


if __name__ == "__main__":
    whole = Whole()
    serve({"load": whole.load, "generate": whole.generate, "copy": whole.copy})
