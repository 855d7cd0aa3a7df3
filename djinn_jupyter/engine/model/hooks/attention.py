"""The torch functions that compute attention, and the attention maps that a fused function does not expose.

Shapes: query_BHTd, key_BGKd with G key heads, mask broadcastable to [B, H, T, K].
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from djinn_jupyter.engine.memory.weights.host_weights import is_packed

SOFTMAX: Final[frozenset[Any]] = frozenset({F.softmax, torch.softmax, Tensor.softmax})
SDPA: Final[frozenset[Any]] = frozenset({F.scaled_dot_product_attention})
_BATCHED: Final[frozenset[Any]] = frozenset({torch.baddbmm, Tensor.baddbmm})
PRODUCTS: Final[frozenset[Any]] = _BATCHED | {torch.matmul, Tensor.matmul, Tensor.__matmul__, torch.bmm, Tensor.bmm}
_SDPA_ARGUMENTS: Final = inspect.Signature(
    [
        inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=default)
        for name, default in (
            ("query", None),
            ("key", None),
            ("value", None),
            ("attn_mask", None),
            ("dropout_p", 0.0),
            ("is_causal", False),
            ("scale", None),
            ("enable_gqa", False),
        )
    ]
)


def query_slot(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int | str:
    """Return the position or keyword of a product's left factor among its arguments."""
    if func in _BATCHED:
        return "batch1" if "batch1" in kwargs else 1
    return "input" if "input" in kwargs else 0


def factors(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """Return the two factors of a product."""
    left = query_slot(func, args, kwargs)
    if func in _BATCHED:
        right: int | str = "batch2" if "batch2" in kwargs else 2 if left == 1 else 1
    else:
        right = next((name for name in ("other", "mat2") if name in kwargs), 1 if left == 0 else 0)
    one, other = (args[key] if isinstance(key, int) else kwargs[key] for key in (left, right))
    return one, other


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SdpaCall:
    """The arguments of one call of `scaled_dot_product_attention`."""

    query_BHTd: Tensor
    key_BGKd: Tensor
    value_BGKd: Tensor
    mask: Tensor | None
    is_causal: bool
    scale: float | None

    @classmethod
    def of(cls, args: tuple[Any, ...], kwargs: dict[str, Any]) -> SdpaCall:
        bound = _SDPA_ARGUMENTS.bind(*args, **kwargs)
        bound.apply_defaults()
        given = bound.arguments
        return cls(
            query_BHTd=given["query"],
            key_BGKd=given["key"],
            value_BGKd=given["value"],
            mask=given["attn_mask"],
            is_causal=given["is_causal"],
            scale=given["scale"],
        )

    def scores(self) -> Tensor:
        """Return fp32 [B, H, T, K], masked: the input that the softmax would get."""
        query, key = self.query_BHTd.float(), self.key_BGKd.float()
        key = key.repeat_interleave(query.shape[1] // key.shape[1], dim=1)
        scale = 1 / math.sqrt(query.shape[-1]) if self.scale is None else self.scale
        scores = query @ key.transpose(-1, -2) * scale
        if self.is_causal:
            seen = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
            scores = scores.masked_fill(~seen, -torch.inf)
        if self.mask is None:
            return scores
        if self.mask.dtype == torch.bool:
            return scores.masked_fill(~self.mask, -torch.inf)
        return scores + self.mask.float()

    def pattern(self) -> Tensor:
        """Return fp32 [B, H, T, K], rows summing to 1 (0 for a row with every key masked)."""
        return self.scores().softmax(-1).nan_to_num(0.0)


BLOCK: Final = 64  # columns of one product: with as many as fill the registers of a CPU, a column has the whole's bits


@contextmanager
def head_columns(model: Any, tokens: Sequence[int]) -> Iterator[None]:
    """Make the model's head return only the logits of `tokens` inside this block. TypeError unless it is a plain linear
    map."""
    head, some = _linear_head(model), list(tokens)

    def forward(hidden: Tensor) -> Tensor:  # the weights are read here: those of a ring may be missing before
        return nn.functional.linear(hidden, head.weight[some], None if head.bias is None else head.bias[some])

    with _computed_by(head, forward):
        yield


@contextmanager
def head_blocks(model: Any, tokens: Sequence[int]) -> Iterator[None]:
    """Make the model's head compute, inside this block, only the blocks of columns with `tokens`, and return NaN for
    all others. Raises TypeError where it is not a plain linear map."""
    head, firsts = _linear_head(model), sorted({token // BLOCK * BLOCK for token in tokens})

    def forward(hidden: Tensor) -> Tensor:
        logits = hidden.new_full((*hidden.shape[:-1], len(head.weight)), torch.nan)
        for first in firsts:
            logits[..., first : first + BLOCK] = _block(head, hidden, slice(first, first + BLOCK))
        return logits

    with _computed_by(head, forward):
        yield


def _block(head: Any, hidden: Tensor, block: slice) -> Tensor:
    return nn.functional.linear(hidden, head.weight[block], None if head.bias is None else head.bias[block])


def _linear_head(model: Any) -> Any:
    head: object = model.get_output_embeddings()
    if type(head) is not nn.Linear or is_packed(head.weight):
        raise TypeError(f"the head is a {type(head).__name__} without a plain matrix")
    return head


@contextmanager
def _computed_by(head: Any, forward: Callable[[Tensor], Tensor]) -> Iterator[None]:
    before = vars(head).get("forward")
    head.forward = forward
    try:
        yield
    finally:
        if before is None:
            del head.forward
        else:
            head.forward = before
