"""Plain PyTorch that collects: batches of prompts sorted by length, a hook that leaves at the layer, one file."""

from __future__ import annotations

import os
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from djinn_evaluation.baselines.answering import serve
from djinn_evaluation.baselines.weights import leaving_after
from djinn_evaluation.benchmarks.workers import gpt2

BATCH = 32


class Batched:
    def load(self, folder: str, shape: dict[str, int], threads: int) -> dict[str, Any]:
        self.model = gpt2.load(folder, shape, threads)
        return {"threads": torch.get_num_threads()}

    @torch.inference_mode()
    def collect(self, prompts: list[list[int]], layer: int, path: str) -> dict[str, Any]:
        """Write the residual after `layer` at each prompt's last position; the CPU seconds of this process, on a GPU
        those of the wall clock."""
        clock = perf_counter if self.model.device.type == "cuda" else process_time
        begun = clock()
        rows_PD = torch.empty(len(prompts), self.model.config.n_embd)
        order = sorted(range(len(prompts)), key=lambda number: -len(prompts[number]))
        for at in range(0, len(order), BATCH):
            batch = order[at : at + BATCH]
            rows_PD[batch] = self._last([prompts[number] for number in batch], layer)
        tokens = [token for prompt in prompts for token in prompt]
        starts = [0, *torch.tensor([len(prompt) for prompt in prompts]).cumsum(0).tolist()]
        values = {f"resid_post.{layer}": rows_PD, "tokens": torch.tensor(tokens), "starts": torch.tensor(starts)}
        _save(values, Path(path))
        return {"seconds": clock() - begun}

    def _last(self, prompts: list[list[int]], layer: int) -> Tensor:
        longest = len(prompts[0])
        device = self.model.device
        filled = torch.tensor([[*prompt, *[0] * (longest - len(prompt))] for prompt in prompts], device=device)
        ends = torch.tensor([len(prompt) for prompt in prompts], device=device)
        mask = (torch.arange(longest, device=device) < ends[:, None]).long()
        with leaving_after(self.model.transformer.h[layer]) as found:
            self.model(filled, attention_mask=mask, use_cache=False)
        return found[0][torch.arange(len(prompts), device=device), ends - 1].cpu()


def _save(values: dict[str, Tensor], path: Path) -> None:
    """Write the file and force it to the disk, as the engine does."""
    save_file(values, path)
    with path.open("rb") as file:
        os.fdatasync(file.fileno())


if __name__ == "__main__":
    batched = Batched()
    serve({"load": batched.load, "collect": batched.collect})
