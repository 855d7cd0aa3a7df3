"""Attention patterns of the plain model, where attention is eager: what its softmax gives, read and put in place."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor

Change = Callable[[Tensor], Tensor]  # of a pattern [1, heads, S, S]


@contextmanager
def pattern_changed(attention: Any, change: Change) -> Iterator[None]:
    """Change what the softmax gives inside this module, in every pass."""
    inside = False

    def entering(module: Any, args: Any) -> None:
        nonlocal inside
        inside = True

    def leaving(module: Any, args: Any, output: Any) -> None:
        nonlocal inside
        inside = False

    softmax = torch.nn.functional.softmax

    def changed(*given: Any, **options: Any) -> Tensor:
        pattern = softmax(*given, **options)
        return change(pattern) if inside else pattern

    hooks = attention.register_forward_pre_hook(entering), attention.register_forward_hook(leaving)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.nn.functional, "softmax", changed)
        yield
    for hook in hooks:
        hook.remove()
