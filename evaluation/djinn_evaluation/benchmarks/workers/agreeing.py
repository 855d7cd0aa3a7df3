"""Values and edited logits of one line, from whichever tool answers: the work of the benchmark `agreement`.

A tool is asked for the values at sites, then for the logits where a vector is added to a layer's output at all
positions. Values are [positions, ...], fp32, as nested lists, which JSON keeps bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from djinn_evaluation.baselines.answering import Verb

SITES = ("resid_post", "attn_out", "mlp_out", "z", "pattern")


def answered(
    load: Callable[[str], object], look: Callable[..., dict[str, Tensor]], add: Callable[..., Tensor]
) -> dict[str, Verb]:
    """Return the three verbs: `open` a folder, `look` at a layer of a line, `add` a vector to it."""

    def opened(folder: str) -> dict[str, Any]:
        load(folder)
        return {}

    def looked(tokens: list[int], layer: int) -> dict[str, Any]:
        return {site: value.float().tolist() for site, value in look(tokens, layer).items()}

    def added(tokens: list[int], layer: int, vector: list[float]) -> dict[str, Any]:
        return {"logits": add(tokens, layer, vector).float().tolist()}

    return {"open": opened, "look": looked, "add": added}
