"""accelerate: the same model with its layers offloaded, to files or to host memory. In its own environment."""

from __future__ import annotations

import tempfile
from typing import Any

import torch
from accelerate import cpu_offload, infer_auto_device_map, init_empty_weights
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel

from benchmarks.workers import gpt2
from benchmarks.workers.decoding import Timestamps, decoded
from djinn_jupyter.experiments.baselines.answering import serve


class Offloaded:
    model: Any

    def load(self, folder: str, shape: dict[str, int], threads: int, budget: int, to: str) -> dict[str, Any]:
        """`to` disk: what is beyond `budget` bytes is read from files in every pass. `to` cpu: all is offloaded."""
        if to == "cpu":
            self.model = gpt2.load(folder, shape, threads)
            cpu_offload(self.model, execution_device=torch.device("cpu"))
            return {}
        torch.set_num_threads(threads)
        configuration = GPT2Config.from_pretrained(folder)
        with init_empty_weights():
            empty = GPT2LMHeadModel(configuration)
        empty.tie_weights()
        places = infer_auto_device_map(empty, max_memory={"cpu": budget}, no_split_module_classes=["GPT2Block"])
        self._files = tempfile.TemporaryDirectory(prefix="djb-accelerate-")
        model: Any = AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, device_map=places, offload_folder=self._files.name
        )
        self.model = model.eval().requires_grad_(False)
        return {"on_disk": sorted(name for name, place in places.items() if place == "disk")}

    @torch.inference_mode()
    def generate(self, tokens: list[int], new: int) -> dict[str, Any]:
        return decoded(self.model, tokens, new, Timestamps())


if __name__ == "__main__":
    offloaded = Offloaded()
    serve({"load": offloaded.load, "generate": offloaded.generate})
