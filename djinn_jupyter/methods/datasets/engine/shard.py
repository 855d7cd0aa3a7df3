"""A shard in memory: the values of some prompts, put in prompt by prompt, each once. Knows no file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate

import torch
from torch import Tensor

TensorsByName = Mapping[str, Tensor]


class Shard:
    """`rows` is how many rows each prompt has, where all have equally many; None where it has one for each token."""

    def __init__(self, prompts: tuple[tuple[int, ...], ...], rows: int | None) -> None:
        self.prompts, self.rows = prompts, rows
        self.tensors: dict[str, Tensor] = {}
        counts = [len(tokens) if rows is None else rows for tokens in prompts]
        self._starts = [0, *accumulate(counts)]
        self._missing = set(range(len(prompts)))

    def put(self, index: int, values: TensorsByName) -> None:
        """Put in the values of a prompt, [rows, ...] by site. Raises RuntimeError where it has them already."""
        if index not in self._missing:
            raise RuntimeError(f"prompt {index} of the shard was computed twice")
        for name, value in values.items():
            if name not in self.tensors:
                self.tensors[name] = torch.empty((self._starts[-1], *value.shape[1:]), dtype=value.dtype)
            self.tensors[name][self._starts[index] : self._starts[index + 1]] = value
        self._missing.remove(index)

    def put_many(self, indices: Sequence[int], values: TensorsByName) -> None:
        """Put in the values of several prompts, [rows of all of them, ...] by site."""
        counts = [self._starts[index + 1] - self._starts[index] for index in indices]
        parts = {name: value.split(counts) for name, value in values.items()}
        for at, index in enumerate(indices):
            self.put(index, {name: part[at] for name, part in parts.items()})

    def values_of(self, index: int) -> TensorsByName:
        """Return the values of a prompt, as they were put in."""
        return {name: whole[self._starts[index] : self._starts[index + 1]] for name, whole in self.tensors.items()}

    def bytes_for(self, values: TensorsByName) -> int:
        """Return the bytes of the whole shard, where these are the values of one of its prompts."""
        return sum(value[0].nbytes * self._starts[-1] for value in values.values())

    def whole(self) -> dict[str, Tensor]:
        """Return the tensors of the file: a site's values by its name, tokens and where each prompt's begin. Raises
        RuntimeError where a prompt is missing."""
        if self._missing:
            raise RuntimeError(f"prompt {min(self._missing)} of the shard was not computed")
        return {**tokens_of(self.prompts), **{name: self._shaped(tensor) for name, tensor in self.tensors.items()}}

    def _shaped(self, tensor: Tensor) -> Tensor:
        if self.rows in (None, 1):
            return tensor
        return tensor.reshape(len(self.prompts), self.rows, *tensor.shape[1:])


def tokens_of(prompts: tuple[tuple[int, ...], ...]) -> dict[str, Tensor]:
    """Return the prompts as two tensors: all tokens in a row, and where each prompt begins and the last one ends."""
    flat = [token for tokens in prompts for token in tokens]
    starts = [0, *accumulate(len(tokens) for tokens in prompts)]
    return {"tokens": torch.tensor(flat, dtype=torch.int64), "starts": torch.tensor(starts, dtype=torch.int64)}
