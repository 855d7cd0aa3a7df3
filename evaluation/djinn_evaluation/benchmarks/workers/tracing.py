"""nnsight's own traces, over its own model and over an engine: in an environment that has both."""

from __future__ import annotations

from typing import Any

import torch
from nnsight import NNsight
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

import djinn_jupyter as dj
from djinn_evaluation.baselines.answering import serve
from djinn_jupyter.demo import MODEL_PATH
from djinn_jupyter.integrations.nnsight import LanguageModel

SHOWN = 8


class Tracing:
    """`models` are nnsight's own and the one on the engine."""

    models: dict[str, Any]

    def load(self, folder: str, threads: int) -> dict[str, Any]:
        torch.set_num_threads(threads)
        own: Any = AutoModelForCausalLM.from_pretrained(folder)
        words = AutoTokenizer.from_pretrained(MODEL_PATH)  # of another model: these lines are token ids
        ours = LanguageModel(dj.attach(*dj.engines()), folder, tokenizer=words)
        self.models = {"own": NNsight(own.eval()), "djinn": ours}
        return {}

    @torch.no_grad()
    def patch(self, side: str, clean: list[int], corrupted: list[int]) -> dict[str, Any]:
        """Patch the last position of the residual after each layer, in a trace of its own."""
        model, found = self.models[side], list[Tensor]()
        kept = self._residuals(model, clean)
        for block, residual in zip(model.transformer.h, kept, strict=True):
            with model.trace(torch.tensor([corrupted])):
                block.output[:, -1] = residual[:, -1]
                logits = model.lm_head.output[0, -1, :SHOWN].save()
            found.append(logits)
        return {"values": torch.stack(found).tolist()}

    @torch.no_grad()
    def read(self, side: str, line: list[int]) -> dict[str, Any]:
        """Read the residual after every layer, in one trace."""
        kept = self._residuals(self.models[side], line)
        return {"values": torch.stack(kept)[:, 0, -1, :SHOWN].tolist()}

    @torch.no_grad()
    def change(self, side: str, line: list[int]) -> dict[str, Any]:
        """Run a line whose MLPs are halved, in one trace."""
        model = self.models[side]
        with model.trace(torch.tensor([line])):
            for block in model.transformer.h:
                block.mlp.output[:] = block.mlp.output * 0.5
            logits = model.lm_head.output[0, -1, :SHOWN].save()
        return {"values": logits.tolist()}

    def _residuals(self, model: Any, line: list[int]) -> list[Tensor]:
        with model.trace(torch.tensor([line])):
            kept = [block.output.clone() for block in model.transformer.h].save()
        found: list[Tensor] = kept
        return found


if __name__ == "__main__":
    tracing = Tracing()
    serve({name: getattr(tracing, name) for name in ("load", "patch", "read", "change")})
