"""A head that computes the logits of a few tokens alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn


@contextmanager
def head_columns(model: Any, tokens: Sequence[int]) -> Iterator[None]:
    """Have the model's head compute the logits of `tokens` alone inside this block. Raises TypeError where it is no
    plain linear map."""
    found: object = model.get_output_embeddings()
    if type(found) is not nn.Linear:
        raise TypeError(f"the head is a {type(found).__name__}")
    head: Any = found
    some = list(tokens)

    def forward(hidden: Tensor) -> Tensor:  # the weights are read here: before, those of a ring may not be there
        return nn.functional.linear(hidden, head.weight[some], None if head.bias is None else head.bias[some])

    before = vars(head).get("forward")
    head.forward = forward
    try:
        yield
    finally:
        if before is None:
            del head.forward
        else:
            head.forward = before
