"""Products of many rows with a model's matrices, in calls that lines share: by oneDNN, where that is faster here.

PyTorch multiplies float32 on a CPU by MKL, which leaves half of an AMD processor's vector units unused: on one core of
an EPYC it makes 50e9 multiplications a second with 32 rows and 55e9 with 128, oneDNN 95e9 and 120e9. oneDNN adds in
another order, so the last bits of a row are others than those of a line alone. Rows among others have that anyway;
a line alone is never computed so, and what is computed again alone compares the two.

The operator is the one that PyTorch's compiler calls for a linear layer (torch/_inductor, mkldnn_ir.py). It has no
gradient, and is not used where one may be asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import cache, partial
from time import perf_counter
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

LEAST_ROWS: Final = 4  # of fewer a product is read from memory, as fast by either
LEAST_WORK: Final = 2e6  # multiplications; below, oneDNN's call takes longer than its product
FASTER: Final = 1.25  # times as fast, from which on it is taken: no noise of a processor that MKL serves as well
TRIED: Final = (64, 512)  # rows and width of the products that are timed
ROUNDS: Final = 7
CLOSE: Final = 1e-4  # of the norm
_PLAIN: Final = (Tensor, nn.Parameter)


class ManyRows:
    """Products of the rows of many lines with one model's matrices."""

    def __init__(self, model: nn.Module) -> None:
        matrices = [one for one in model.parameters() if one.ndim == 2 and one.dtype is torch.float32]
        self._largest = max((one.numel() for one in matrices if one.device.type == "cpu"), default=0)

    def multiplied(self, rows: int) -> AbstractContextManager[object]:
        """Return a context in which calls with so many rows multiply as is fastest. It must not be entered twice."""
        worth = rows >= LEAST_ROWS and rows * self._largest >= LEAST_WORK and not torch.is_grad_enabled()
        return _OneDnn() if worth and is_faster(torch.get_num_threads()) else nullcontext()


class _OneDnn(TorchFunctionMode):
    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        given = kwargs or {}
        found = None
        if func is nn.functional.linear:
            found = _linear(*args, **given)
        elif func is torch.addmm:
            found = _added(*args, **given)
        return func(*args, **given) if found is None else found


def _linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor | None:
    """Return the product of the rows of `input` with a matrix [out, in]; None where it is not worth a call, or none of
    plain float32."""
    if weight.ndim != 2 or type(weight) not in _PLAIN or not _is_float32_on_cpu(input, weight):
        return None
    rows = input.numel() // max(1, input.shape[-1])
    if rows < LEAST_ROWS or rows * weight.numel() < LEAST_WORK or not _is_read(bias, weight.shape[0]):
        return None
    return _multiply(input, weight, bias)


def _is_read(bias: Tensor | None, width: int) -> bool:
    """Return whether oneDNN adds such a bias. It looks at its first element and at `width`, and at no stride: one that
    is expanded it reads past its end, and one of no axes it leaves out."""
    return bias is None or (bias.shape == (width,) and bias.is_contiguous() and _is_float32_on_cpu(bias))


def _added(
    input: Tensor, mat1: Tensor, mat2: Tensor, *, beta: float = 1, alpha: float = 1, **others: Any
) -> Tensor | None:
    """Return likewise a bias and the product with a matrix [in, out], as GPT-2 keeps them."""
    if not beta == alpha == 1 or others or mat1.ndim != 2 or mat2.ndim != 2:
        return None
    return _linear(mat1, mat2.t(), input)


def _is_float32_on_cpu(*tensors: Tensor) -> bool:
    return all(
        one.dtype is torch.float32 and one.device.type == "cpu" and one.layout is torch.strided for one in tensors
    )


def _multiply(rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    product: Tensor = torch.ops.mkldnn._linear_pointwise.default(rows, weight, bias, "none", [], "")
    return product


@cache
def is_faster(threads: int) -> bool:
    """Return whether oneDNN is there, multiplies right, and is FASTER on this machine with so many threads; measured
    when it is first asked, in some ten milliseconds."""
    count, width = TRIED
    generator = torch.Generator().manual_seed(0)
    rows, weight = (torch.randn(n, width, generator=generator) for n in (count, width))
    try:
        ours, theirs = _multiply(rows, weight, None), nn.functional.linear(rows, weight)
    except (AttributeError, NotImplementedError, RuntimeError):
        return False  # PyTorch was built without it
    if not bool((ours - theirs).norm() <= CLOSE * theirs.norm()):
        return False
    mkl, onednn = partial(nn.functional.linear, rows, weight), partial(_multiply, rows, weight, None)
    return _least_seconds(mkl) > FASTER * _least_seconds(onednn)


def _least_seconds(work: Callable[[], Any]) -> float:
    found = []
    for _ in range(ROUNDS):
        begun = perf_counter()
        work()
        found.append(perf_counter() - begun)
    return min(found)
