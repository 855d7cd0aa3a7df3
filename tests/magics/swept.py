"""The engine double's sweeps: values that count the cells."""

from __future__ import annotations

from djinn_jupyter.wire import replies, requests
from tests.widgets.swept import swept


class Sweeping:
    def _sweep(self, request: requests.Sweep) -> replies.Reply:
        return swept(
            mode=request.mode, seed=request.seed, metric=request.metrics, over=request.over, in_pairs=request.in_pairs
        )
