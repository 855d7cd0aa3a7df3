"""Plain PyTorch with an SAE: generation with a hook that puts its reconstruction in place of a block's output, and the
time of one row of its encoder."""

from __future__ import annotations

import json
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn.functional import linear

from djinn_evaluation.baselines.answering import serve
from djinn_evaluation.baselines.decoding import Timestamps, decoded
from djinn_evaluation.benchmarks.workers.plain import Plain

SEED = 3


class Features(Plain):
    _encoder_FD: Tensor
    _decoder_FD: Tensor
    _bias_F: Tensor
    _decoder_bias_D: Tensor

    def save_sae(self, folder: str, features: int) -> dict[str, Any]:
        """Draw an SAE of standard form, keep it, and save it as SAELens does."""
        width, draw = self.model.config.n_embd, torch.Generator().manual_seed(SEED)
        encoder_DF = torch.randn(width, features, generator=draw) * width**-0.5
        self._decoder_FD = torch.randn(features, width, generator=draw) * features**-0.5
        self._encoder_FD, self._bias_F = encoder_DF.T.contiguous(), torch.zeros(features)
        self._decoder_bias_D = torch.zeros(width)
        Path(folder).mkdir(parents=True, exist_ok=True)
        declared = {"architecture": "standard", "d_in": width, "d_sae": features, "dtype": "float32"}
        (Path(folder) / "cfg.json").write_text(json.dumps(declared))
        tensors = {"W_enc": encoder_DF, "b_enc": self._bias_F, "W_dec": self._decoder_FD, "b_dec": self._decoder_bias_D}
        save_file(tensors, Path(folder) / "sae_weights.safetensors")
        return {}

    @torch.inference_mode()
    def generate_spliced(self, tokens: list[int], new: int, layer: int) -> dict[str, Any]:
        """Generate, with the reconstruction in place of the block's output at every position of every pass."""

        def splice(module: Any, args: Any, output: Any) -> Any:
            hidden = output[0] if isinstance(output, tuple) else output
            made = self._active(hidden, slice(None)) @ self._decoder_FD + self._decoder_bias_D
            return (made, *output[1:]) if isinstance(output, tuple) else made

        hook = self._blocks[layer].register_forward_hook(splice)
        try:
            return decoded(self.model, tokens, new, self.model.device, Timestamps())
        finally:
            hook.remove()

    @torch.inference_mode()
    def row(self, calls: int, features: int) -> dict[str, Any]:
        """Compute one feature of one position, `calls` times: each of so many in turn, so that a row is no nearer to
        the processor than those of as many breakpoints are."""
        x_1D = torch.ones(1, self.model.config.n_embd)
        begun = perf_counter()
        for call in range(calls):
            self._active(x_1D, slice(call % features, call % features + 1))
        return {"seconds": perf_counter() - begun}

    def _active(self, x: Tensor, chosen: slice) -> Tensor:
        return linear(x - self._decoder_bias_D, self._encoder_FD[chosen], self._bias_F[chosen]).relu()


if __name__ == "__main__":
    features = Features()
    serve({name: getattr(features, name) for name in ("load", "save_sae", "generate_spliced", "generate", "row")})
