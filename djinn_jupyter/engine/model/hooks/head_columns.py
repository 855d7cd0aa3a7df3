"""A head that computes the logits of a few tokens alone: their columns gathered, or blocks of columns as they lie."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import torch
from torch import Tensor, nn

BLOCK: Final = 64  # columns of one product: of as many as fill the registers of a CPU, a column has the whole's bits


@contextmanager
def head_columns(model: Any, tokens: Sequence[int]) -> Iterator[None]:
    """Have the model's head return the logits of `tokens` alone inside this block. Raises TypeError where it is no
    plain linear map."""
    head, some = _linear_head(model), list(tokens)

    def forward(hidden: Tensor) -> Tensor:  # the weights are read here: before, those of a ring may not be there
        return nn.functional.linear(hidden, head.weight[some], None if head.bias is None else head.bias[some])

    with _computed_by(head, forward):
        yield


@contextmanager
def head_blocks(model: Any, tokens: Sequence[int]) -> Iterator[None]:
    """Have the model's head compute, inside this block, the blocks of columns that hold `tokens`, and return NaN for
    all others. Raises TypeError where it is no plain linear map."""
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
    if type(head) is not nn.Linear:
        raise TypeError(f"the head is a {type(head).__name__}")
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
