"""The logits of a metric's tokens from a head that computes no others: only where it is proved that they then have the
bits that they have among all.

A product over fewer columns may add in another order. Blocks of 64 columns, as they lie in the weights, keep the order
of the whole on CPUs; that is tried for every block, and where one differs the head computes all logits."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Final

import torch
from torch import Tensor

from djinn_jupyter.engine.forward.forward import Forward
from djinn_jupyter.engine.model.hooks.head_columns import BLOCK, head_blocks
from djinn_jupyter.engine.system.counters import Counters

ROWS: Final = 3  # random rows: where the order differs, nearly every logit does, in bf16 one of some thousand


class FewLogits:
    """The proof for one model, made when the first sweep asks for it, for each number of threads that computes. By then
    a line has been seen."""

    def __init__(self, forward: Forward, counters: Counters) -> None:
        self._forward, self._counters = forward, counters
        self._proved: dict[int, bool] = {}
        self._distrusted = False
        self._row: tuple[int, ...] = (forward.anatomy.hidden_size,)

    def see(self, behind_1SD: Tensor) -> None:
        """Take the shape of a row from a line's behind the last layer: there may be several streams."""
        self._row = tuple(behind_1SD.shape[2:])

    def of(self, tokens: tuple[int, ...] | None) -> Generator[None, None, tuple[int, ...] | None]:
        """Return `tokens` where a pass may compute their logits alone, None where it has to compute those of all."""
        if tokens is None:
            return None
        if self._distrusted or not (yield from self._is_proved()):
            self._counters.count_whole_head()
            return None
        return tokens

    def distrust(self) -> None:
        """Compute all logits from here on: a recheck has found a line whose bits are others."""
        self._distrusted = True

    def _is_proved(self) -> Generator[None, None, bool]:
        threads = torch.get_num_threads()
        if threads not in self._proved:
            self._proved[threads] = yield from self._holds()
        return self._proved[threads]

    def _holds(self) -> Generator[None, None, bool]:
        """Return whether all blocks together have the bits of the whole head, and one alone has its own, for each of
        some random rows: nothing behind the head may mix a row's logits."""
        for row_1D in self._rows():
            whole = self._forward.lens(row_1D)
            last = whole.shape[1] - 1
            yield
            for tokens in (range(0, last + 1, BLOCK), [last]):
                first = tokens[0] // BLOCK * BLOCK
                some = self._in_blocks(row_1D, tokens)
                if some is None or not torch.equal(some[:, first:], whole[:, first:]):
                    return False
                yield
        return True

    def _in_blocks(self, row_1D: Tensor, tokens: Sequence[int]) -> Tensor | None:
        """Return the logits of a row by blocks; None where the head is no plain linear map."""
        try:
            with head_blocks(self._forward.model, tokens):
                return self._forward.lens(row_1D)
        except TypeError:
            return None

    def _rows(self) -> list[Tensor]:
        forward = self._forward
        drawn = torch.randn((ROWS, 1, *self._row), generator=torch.Generator().manual_seed(1))
        return list(drawn.to(forward.device, forward.model.dtype))
