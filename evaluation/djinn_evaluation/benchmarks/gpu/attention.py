"""The step of attention: which kernels give the same bits each time, also for rows in a buffer of another capacity.

One query over many keys, as in a decode. The engine does not use cuDNN's kernel (docs/design.md, *Attention by cuDNN is
off*); its figure shows whether that is still needed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from typing import Final

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention, softmax

from djinn_evaluation.benchmarks.harness import Figure, Result, Setting, Spread, at_least
from tests.device import DEVICE

BACKENDS: Final = {
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "math": SDPBackend.MATH,
}
KERNELS: Final = (*BACKENDS, "eager")
LEFT_OUT: Final = "cudnn"
DTYPES: Final = (torch.float16, torch.bfloat16, torch.float32)
HEADS: Final = ((32, 32), (40, 40), (32, 8))  # of the query, of the keys
WIDTH: Final = 128
LENGTHS: Final = (16, 64, 65, 127, 128, 200, 256, 257, 500, 512, 777, 1000, 1024, 1025, 1500, 2048)
LENGTHS_IF_QUICK: Final = (16, 65)
TIMES: Final = 4  # in each buffer
Attention = Callable[[Tensor, Tensor, Tensor], Tensor]


def run_attention(setting: Setting) -> Result:
    lengths = LENGTHS_IF_QUICK if setting.quick else LENGTHS
    figures: list[Figure] = []
    with torch.inference_mode():
        for dtype, kernel in product(DTYPES, KERNELS):
            figures.append(_figure(kernel, dtype, lengths))
            setting.so_far(figures, f"up to {kernel} attention in {dtype}")
    settings = {"heads": HEADS, "width": WIDTH, "lengths": lengths, "times_in_each_buffer": TIMES, "buffers": 4}
    return Result(benchmark="attention", settings=settings, figures=tuple(figures))


def _figure(kernel: str, dtype: torch.dtype, lengths: tuple[int, ...]) -> Figure:
    cases = [(heads, length) for heads in HEADS for length in lengths]
    repeated: list[bool] = []
    why = None
    for heads, length in cases:
        try:
            repeated.append(repeats(_attention(kernel), dtype, heads, length))
        except RuntimeError as error:  # this kernel cannot compute it here
            why = str(error).splitlines()[0]
    some = "" if len(repeated) in (0, len(cases)) else f" ({len(repeated)} of {len(cases)}, the others it refuses)"
    return Figure(
        name=f"cases of {kernel} attention in {str(dtype).removeprefix('torch.')} that repeat their bits{some}",
        unit="of those it computes",
        value=Spread.of([sum(repeated) / len(repeated)]) if repeated else None,
        bar=None if kernel == LEFT_OUT else at_least(1.0),
        not_run=None if repeated else why,
    )


def repeats(attention: Attention, dtype: torch.dtype, heads: tuple[int, int], length: int) -> bool:
    """Return whether the bits are the same each time, and in buffers of four capacities."""
    query = torch.randn(1, heads[0], 1, WIDTH, device=DEVICE, dtype=dtype)
    keys, values = (torch.randn(1, heads[1], length, WIDTH, device=DEVICE, dtype=dtype) for _ in range(2))
    expected = attention(query, keys, values)
    return all(
        torch.equal(attention(query, _within(keys, capacity), _within(values, capacity)), expected)
        for capacity in (length, length + 1, 2 * length, 4096)
        for _ in range(TIMES)
    )


def _within(rows: Tensor, capacity: int) -> Tensor:
    """Return the same rows at the beginning of a buffer of `capacity` rows."""
    length = rows.shape[2]
    return rows.new_empty(*rows.shape[:2], capacity, rows.shape[3])[:, :, :length].copy_(rows)


def _attention(kernel: str) -> Attention:
    return _eager if kernel == "eager" else partial(_by, BACKENDS[kernel])


def _by(backend: SDPBackend, query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    with sdpa_kernel(backend):
        return scaled_dot_product_attention(query, *_for_each_head(query, keys, values))


def _eager(query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """As the eager attention of transformers computes it."""
    keys, values = _for_each_head(query, keys, values)
    weights = softmax(torch.matmul(query, keys.transpose(2, 3)) * WIDTH**-0.5, dim=-1, dtype=torch.float32)
    return torch.matmul(weights.to(query.dtype), values)


def _for_each_head(query: Tensor, *rows: Tensor) -> Iterator[Tensor]:
    """Yield keys and values with a copy for each head of the query that shares them; where none does, as they lie."""
    group = query.shape[1] // rows[0].shape[1]
    return (each.repeat_interleave(group, dim=1) if group > 1 else each for each in rows)
