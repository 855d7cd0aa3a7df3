"""accelerate: the experiments' baseline, with the time of each token. In its own environment."""

from __future__ import annotations

from typing import Any

from djinn_evaluation.baselines.answering import serve
from djinn_evaluation.baselines.decoding import Timestamps, decoded
from djinn_evaluation.baselines.with_accelerate import Accelerated


class Timed(Accelerated):
    def generate(self, tokens: list[int], new: int) -> dict[str, Any]:
        return decoded(self.model, tokens, new, self.device, Timestamps())


if __name__ == "__main__":
    timed = Timed()
    serve({"load": timed.load, "generate": timed.generate})
