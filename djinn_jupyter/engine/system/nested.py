"""Find tensors in nested mappings and sequences. Knows nothing of their meaning."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor


def tensors_within(value: Any) -> Iterator[Tensor]:
    """Yield the tensors in `value` in order; skip anything else."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for part in value.values():
            yield from tensors_within(part)
    elif isinstance(value, list | tuple):
        for part in value:
            yield from tensors_within(part)
