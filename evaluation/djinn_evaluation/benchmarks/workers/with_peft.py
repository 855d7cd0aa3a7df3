"""PEFT: a LoRA adapter, drawn and saved by it, and `generate` with that adapter. In its own environment."""

from __future__ import annotations

from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import GPT2LMHeadModel

from djinn_evaluation.baselines.asking import serve
from djinn_evaluation.baselines.weights import Decoding, device_for, digest, settle
from djinn_evaluation.benchmarks.workers import plain

RANK, ALPHA = 8, 16
TARGETS = ["c_attn", "c_fc", "c_proj"]


class Peft(Decoding):
    def load(self, folder: str, shape: dict[str, int], threads: int) -> dict[str, Any]:
        plain.load(folder, shape, threads)  # which draws and saves it, where it is not there
        return {}

    def draw(self, folder: str, adapter: str) -> dict[str, Any]:
        """Draw an adapter of the model in a folder, both of its matrices at random, and save it as PEFT does."""
        torch.manual_seed(0)
        config = LoraConfig(
            r=RANK, lora_alpha=ALPHA, target_modules=TARGETS, fan_in_fan_out=True, init_lora_weights=False
        )
        get_peft_model(GPT2LMHeadModel.from_pretrained(folder), config).save_pretrained(adapter)
        return {}

    def adapt(self, folder: str, adapter: str, dtype: str) -> dict[str, Any]:
        """Load the model in a folder with the adapter saved in another."""
        base = GPT2LMHeadModel.from_pretrained(folder, dtype=getattr(torch, dtype))
        self.device = device_for(None)
        self.model = PeftModel.from_pretrained(base, adapter).eval().requires_grad_(False).to(self.device)
        return {}

    @torch.inference_mode()
    def logits(self, tokens: list[int], *, adapted: bool = True) -> dict[str, Any]:
        """Return the digest of the logits behind a prompt, and their largest by size."""
        given = torch.tensor([tokens], device=self.device)
        if adapted:
            row = self.model(given, logits_to_keep=1).logits[0, -1]
        else:
            with self.model.disable_adapter():
                row = self.model(given, logits_to_keep=1).logits[0, -1]
        settle(self.device)
        return {"digest": digest(row), "largest": float(row.abs().max())}


if __name__ == "__main__":
    serve(Peft)
