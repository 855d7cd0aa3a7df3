"""nnsight over the same saved model, and over an engine too, in its own environment, which sees Djinn's."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import Any

import torch
from nnsight import NNsight
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

import djinn_jupyter as dj
from djinn_evaluation.baselines.asking import serve
from djinn_evaluation.baselines.weights import digest, settle
from djinn_evaluation.benchmarks.workers import plain
from djinn_evaluation.benchmarks.workers.with_plain_hooks import AgreeingSide
from djinn_jupyter.demo import MODEL_PATH
from djinn_jupyter.integrations.nnsight import LanguageModel

SHOWN = 8


class Sight:
    model: Any
    _clean: list[Tensor]
    _below: list[Tensor]
    _corrupted_1T: Tensor

    def load(self, folder: str, shape: dict[str, int], threads: int) -> dict[str, Any]:
        loaded = plain.load(folder, shape, threads)
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


class Tracing:
    """`models` are nnsight's own and the one on the engine."""

    models: dict[str, Any]

    def load_both(self, folder: str, threads: int) -> dict[str, Any]:
        torch.set_num_threads(threads)
        own: Any = AutoModelForCausalLM.from_pretrained(folder)
        words = AutoTokenizer.from_pretrained(MODEL_PATH)  # of another model: these lines are token ids
        ours = LanguageModel(dj.attach(*dj.engines()), folder, tokenizer=words)
        self.models = {"own": NNsight(own.eval()), "djinn": ours}
        return {}

    @torch.no_grad()
    def patch_on(self, side: str, clean: list[int], corrupted: list[int]) -> dict[str, Any]:
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


class Agreeing(AgreeingSide):
    """A Llama under eager attention."""

    def load(self, folder: str) -> None:
        torch.set_num_threads(1)
        loaded = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").eval()
        self.heads = loaded.config.num_attention_heads
        self.model: Any = NNsight(loaded)

    @torch.inference_mode()
    def _look(self, tokens: list[int], layer: int) -> dict[str, Tensor]:
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
    def _add(self, tokens: list[int], layer: int, vector: list[float]) -> Tensor:
        block, line, along = self.model.model.layers[layer], torch.tensor([tokens]), torch.tensor(vector)
        with self.model.trace(line):
            block.output[:] = block.output + along
            logits = self.model.lm_head.output.save()
        found: Tensor = logits[0]
        return found


class AgreeingOnDjinn(AgreeingSide):
    """The same by the passes of the engine that runs."""

    def load(self, folder: str) -> None:
        torch.set_num_threads(1)
        self.model = LanguageModel(dj.attach(*dj.engines()), folder, attention="eager")

    def _look(self, tokens: list[int], layer: int) -> dict[str, Tensor]:
        model, block, found = self.model, self.model.model.layers[layer], dict[str, Tensor]()
        with model.trace(torch.tensor([tokens])):
            found["pattern"] = model.attention_probabilities[layer][0].transpose(0, 1)
            found["z"] = block.self_attn.o_proj.input[0].unflatten(-1, (found["pattern"].shape[1], -1))
            found["attn_out"] = block.self_attn.output[0][0]
            found["mlp_out"] = block.mlp.output[0]
            found["resid_post"] = block.output[0]
            found["logits"] = model.lm_head.output[0]
        return found

    def _add(self, tokens: list[int], layer: int, vector: list[float]) -> Tensor:
        block, along, found = self.model.model.layers[layer], torch.tensor(vector), list[Tensor]()
        with self.model.trace(torch.tensor([tokens])):
            block.output[:] = block.output + along
            found.append(self.model.lm_head.output[0])
        return found[0]


if __name__ == "__main__":
    serve(Sight, Tracing, Agreeing, AgreeingOnDjinn)
