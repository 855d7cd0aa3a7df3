"""nnsight: traces over the modules of a Llama. In its own environment."""

from __future__ import annotations

from typing import Any

import torch
from nnsight import NNsight
from torch import Tensor
from transformers import AutoModelForCausalLM

from djinn_evaluation.benchmarks.workers.agreeing import answer


class Sight:
    def load(self, folder: str) -> None:
        torch.set_num_threads(1)
        loaded = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").eval()
        self.heads = loaded.config.num_attention_heads
        self.model: Any = NNsight(loaded)

    @torch.inference_mode()
    def look(self, tokens: list[int], layer: int) -> dict[str, Tensor]:
        block, line, heads = self.model.model.layers[layer], torch.tensor([tokens]), self.heads
        with self.model.trace(line):
            z = block.self_attn.o_proj.input.save()
            attention = block.self_attn.output.save()
            mlp = block.mlp.output.save()
            residual = block.output.save()
            logits = self.model.lm_head.output.save()
        return {
            "resid_post": residual[0],
            "attn_out": attention[0][0],
            "mlp_out": mlp[0],
            "z": z[0].unflatten(-1, (heads, -1)),
            "pattern": attention[1][0].transpose(0, 1),
            "logits": logits[0],
        }

    @torch.inference_mode()
    def add(self, tokens: list[int], layer: int, vector: list[float]) -> Tensor:
        block, line, along = self.model.model.layers[layer], torch.tensor([tokens]), torch.tensor(vector)
        with self.model.trace(line):
            block.output[:] = block.output + along
            logits = self.model.lm_head.output.save()
        found: Tensor = logits[0]
        return found


if __name__ == "__main__":
    sight = Sight()
    answer(sight.load, sight.look, sight.add)
