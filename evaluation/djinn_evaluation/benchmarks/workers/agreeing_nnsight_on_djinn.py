"""nnsight: traces whose passes are an engine's, the one that runs. In its own environment."""

from __future__ import annotations

import torch
from torch import Tensor

import djinn_jupyter as dj
from djinn_evaluation.benchmarks.workers.agreeing import answer
from djinn_jupyter.integrations.nnsight import LanguageModel


class SightOnDjinn:
    def load(self, folder: str) -> None:
        torch.set_num_threads(1)
        self.model = LanguageModel(dj.attach(*dj.engines()), folder, attention="eager")

    def look(self, tokens: list[int], layer: int) -> dict[str, Tensor]:
        model, block, found = self.model, self.model.model.layers[layer], dict[str, Tensor]()
        with model.trace(torch.tensor([tokens])):
            found["pattern"] = model.attention_probabilities[layer][0].transpose(0, 1)
            found["z"] = block.self_attn.o_proj.input[0].unflatten(-1, (found["pattern"].shape[1], -1))
            found["attn_out"] = block.self_attn.output[0][0]
            found["mlp_out"] = block.mlp.output[0]
            found["resid_post"] = block.output[0]
            found["logits"] = model.lm_head.output[0]
        return found

    def add(self, tokens: list[int], layer: int, vector: list[float]) -> Tensor:
        block, along, found = self.model.model.layers[layer], torch.tensor(vector), list[Tensor]()
        with self.model.trace(torch.tensor([tokens])):
            block.output[:] = block.output + along
            found.append(self.model.lm_head.output[0])
        return found[0]


if __name__ == "__main__":
    sight = SightOnDjinn()
    answer(sight.load, sight.look, sight.add)
