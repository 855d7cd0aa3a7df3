"""The engine double's sweeps: values that count the cells."""

from __future__ import annotations

from typing import Any

import msgspec

from djinn_jupyter.methods.sweep.request import Recipe, Sweep
from djinn_jupyter.wire import replies
from djinn_jupyter.wire.greeting import Checked
from djinn_jupyter.wire.provenance import Provenance
from tests.widgets.swept import swept

PROVENANCE = Provenance(
    model="demo", revision=None, architecture="LlamaForCausalLM", configuration="c", weights="w", dtype="float32",
    attention="sdpa", device="cpu", processor="one", threads=1, torch="2", transformers="4", djinn="0",
)  # fmt: skip


class Sweeping:
    def _checksweep(self, _: Any) -> replies.Reply:
        return Checked()

    def _sweep(self, request: Sweep) -> replies.Reply:
        reply = swept(
            mode=request.mode, seed=request.seed, metric=request.metrics, over=request.over, in_pairs=request.in_pairs
        )
        meant = msgspec.structs.replace(request, corrupted=(1, 2, 3), continued=None)
        return msgspec.structs.replace(reply, made=Recipe(asked=meant, attention=None, by=PROVENANCE))
