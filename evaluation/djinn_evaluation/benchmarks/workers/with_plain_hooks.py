"""Values and edited logits of one line by forward hooks on a Llama, the work of the benchmark `agreement`."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from djinn_evaluation.baselines.asking import serve

SITES = ("resid_post", "attn_out", "mlp_out", "z", "pattern")


class AgreeingSide:
    """A tool that opens a folder (`load`), looks at a layer of a line, and adds a vector to its output."""

    load: Callable[[str], object]
    _look: Callable[[list[int], int], dict[str, Tensor]]
    _add: Callable[[list[int], int, list[float]], Tensor]

    def open(self, folder: str) -> dict[str, Any]:
        self.load(folder)
        return {}

    def look(self, tokens: list[int], layer: int) -> dict[str, Any]:
        return {site: value.float().tolist() for site, value in self._look(tokens, layer).items()}

    def add(self, tokens: list[int], layer: int, vector: list[float]) -> dict[str, Any]:
        return {"logits": self._add(tokens, layer, vector).float().tolist()}


class PlainHooks(AgreeingSide):
    def load(self, folder: str) -> None:
        torch.set_num_threads(1)
        self.model: Any = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").eval()

    @torch.inference_mode()
    def _look(self, tokens: list[int], layer: int) -> dict[str, Tensor]:
        block, found = self.model.model.layers[layer], dict[str, Tensor]()
        heads = self.model.config.num_attention_heads
        with ExitStack() as hooks:
            for site, module in {"resid_post": block, "mlp_out": block.mlp}.items():
                hook = module.register_forward_hook(lambda m, args, out, at=site: found.update({at: out[0]}))
                hooks.callback(hook.remove)
            hook = block.self_attn.register_forward_hook(
                lambda m, args, out: found.update(attn_out=out[0][0], pattern=out[1][0].transpose(0, 1))
            )
            hooks.callback(hook.remove)
            hook = block.self_attn.o_proj.register_forward_pre_hook(
                lambda m, args: found.update(z=args[0][0].unflatten(-1, (heads, -1)))
            )
            hooks.callback(hook.remove)
            logits = self.model(torch.tensor([tokens])).logits[0]
        return {**found, "logits": logits}

    @torch.inference_mode()
    def _add(self, tokens: list[int], layer: int, vector: list[float]) -> Tensor:
        along = torch.tensor(vector)
        hook = self.model.model.layers[layer].register_forward_hook(lambda module, args, out: out + along)
        logits: Tensor = self.model(torch.tensor([tokens])).logits[0]
        hook.remove()
        return logits


if __name__ == "__main__":
    serve(PlainHooks)
