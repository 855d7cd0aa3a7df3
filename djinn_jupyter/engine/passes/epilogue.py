"""The model's epilogue (final norm, head) as a linear map at one residual value, with the norm's factor held fixed.

Derived by arithmetic, not from a table of names: the norm's output over its input, and a factor between the head's
logits and the model's. UnknownSite where the result is not linear. Shapes: x_D a residual, D features; V tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from copy import deepcopy
from dataclasses import dataclass
from functools import cache, partial
from time import perf_counter
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from transformers import PreTrainedModel

from djinn_jupyter.engine.memory.weights.host_weights import is_packed
from djinn_jupyter.engine.model.discovery.model_map import Anatomy, discover
from djinn_jupyter.engine.model.hooks.gates import Gates
from djinn_jupyter.engine.model.hooks.taps import Tap
from djinn_jupyter.engine.model.loading.other_parts import sections
from djinn_jupyter.errors import ModelRefused, UnknownSite, UsageError

ALIKE: Final = {torch.float32: 1e-5, torch.float64: 1e-5}  # relative to the largest entry
ALIKE_IN_16_BITS: Final = 2e-2  # bfloat16 keeps eight bits
CENTERED: Final = 1e-2  # of the norm's output: what remains of equal features once their mean is subtracted
NOT_LINEAR = "no logit is a sum of contributions here: {why}."


@dataclass(frozen=True, slots=True, kw_only=True)
class Readout:
    """The logit of a token (or a difference) is `direction_D` . x + `constant`, in float64 on the host."""

    direction_D: Tensor
    constant: float

    def minus(self, other: Readout) -> Readout:
        return Readout(direction_D=self.direction_D - other.direction_D, constant=self.constant - other.constant)

    def of(self, value_D: Tensor) -> float:
        return float(self.direction_D @ on_host(value_D))


def on_host(value: Tensor) -> Tensor:
    return value.detach().to("cpu", torch.float64)


@torch.inference_mode()
def readout(model: nn.Module, norm: Tap | str, lens: Callable[[Tensor], Tensor], x_D: Tensor, token: int) -> Readout:
    """Return the Readout of `token` at the residual x_D; `lens` is the model's epilogue. UnknownSite unless linear."""
    head: Any = model.get_output_embeddings()  # type: ignore[operator]
    if isinstance(norm, str) or norm.module is None or not isinstance(head, nn.Linear) or is_packed(head.weight):
        raise UnknownSite(NOT_LINEAR.format(why="this model does not end in one norm and one linear head"))
    weight_VD, bias = head.weight, head.bias
    normed_D = norm.module(x_D[None, None])[0, 0]
    if normed_D.shape != x_D.shape:  # as in OPT of 350 million, which ends in a projection
        raise UnknownSite(NOT_LINEAR.format(why="this model narrows the residual before its head"))
    gain_D, mean, shift_D = _norm(norm.module, x_D, normed_D)
    scale = _scale(lens(x_D[None])[0], head(normed_D))  # of the same bits, so that rounding is not taken for a scale
    row_D = on_host(weight_VD[token])
    direction_D = row_D * gain_D * scale
    constant = float(row_D @ shift_D) + (0.0 if bias is None else float(bias[token]))
    return Readout(direction_D=direction_D - (direction_D.mean() if mean else 0.0), constant=constant * scale)


def _norm(norm: nn.Module, x_D: Tensor, y_D: Tensor) -> tuple[Tensor, bool, Tensor]:
    """Return gain_D, whether the mean is subtracted first, and shift_D: the norm at x_D, whose output is y_D, with its
    factor held fixed. The gain is measured at another value of the same size, which has no feature near zero."""
    wide, x = deepcopy(norm).float(), on_host(x_D)

    def normed(value_D: Tensor) -> Tensor:
        return on_host(wide(value_D.to(x_D.device, torch.float32)[None, None])[0, 0])

    shift = normed(torch.zeros_like(x))
    even = torch.ones_like(x) * x.square().mean().sqrt()
    mean = bool((normed(even) - shift).abs().max() < CENTERED * on_host(y_D).abs().max())
    centered = x - x.mean() if mean else x
    if mean:
        signs = 1.0 - 2.0 * (torch.arange(len(x)) % 2)
        signs -= signs.mean()  # zero but for an odd number of features
        even = signs * x.std(correction=0) / signs.std(correction=0)
    gain = (normed(even) - shift) / even
    if not _alike(on_host(y_D), gain * centered + shift, y_D.dtype):
        raise UnknownSite(NOT_LINEAR.format(why=f"{type(norm).__name__} is neither a LayerNorm nor an RMS norm"))
    return gain, mean, shift


def _scale(logits_V: Tensor, plain_V: Tensor) -> float:
    """Return the factor from the head's logits to the model's. UnknownSite where none fits, as with a soft-cap."""
    model_V, head_V = on_host(logits_V), on_host(plain_V)
    factor = float((model_V @ head_V) / (head_V @ head_V))
    if not _alike(model_V, head_V * factor, plain_V.dtype):
        raise UnknownSite(NOT_LINEAR.format(why="the model bends its logits after the head, as a soft-cap does"))
    return factor


def _alike(one: Tensor, other: Tensor, computed_in: torch.dtype) -> bool:
    """True where two values differ by no more than the rounding of the dtype of their computation."""
    largest = max(float(one.abs().max()), float(other.abs().max()))
    return float((one - other).abs().max()) <= ALIKE.get(computed_in, ALIKE_IN_16_BITS) * largest


# Products of many rows with a model's matrices, in calls that sequences share: by oneDNN, where that is faster here.
# PyTorch multiplies float32 on a CPU by MKL, which leaves half of an AMD processor's vector units unused: on one core
# of an EPYC it makes 50e9 multiplications a second with 32 rows and 55e9 with 128, oneDNN 95e9 and 120e9. oneDNN adds
# in another order, so the last bits of a row differ from those of a sequence alone. In a batch they differ anyway; a
# sequence alone is never computed so, and a recheck compares the two. The operator is the one that PyTorch's compiler
# calls for a linear layer (torch/_inductor, mkldnn_ir.py). It has no gradient, and is not used where one may be asked
# for.

LEAST_ROWS: Final = 4  # of fewer a product is read from memory, as fast by either
LEAST_WORK: Final = 2e6  # multiplications; below, oneDNN's call takes longer than its product
FASTER: Final = 1.25  # times as fast, from which on it is taken: no noise of a processor that MKL serves as well
TRIED: Final = (64, 512)  # rows and width of the products that are timed
ROUNDS: Final = 7
CLOSE: Final = 1e-4  # of the norm
_PLAIN: Final = (Tensor, nn.Parameter)


class ManyRows:
    """Products of the rows of many sequences with one model's matrices."""

    def __init__(self, model: nn.Module) -> None:
        matrices = [one for one in model.parameters() if one.ndim == 2 and one.dtype is torch.float32]
        self._largest = max((one.numel() for one in matrices if one.device.type == "cpu"), default=0)

    def multiplied(self, rows: int) -> AbstractContextManager[object]:
        """Return a context in which calls with so many rows multiply in the fastest way. Not reentrant."""
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
    """Return the product of the rows of `input` with a matrix [out, in]; None unless worthwhile and plain float32."""
    if weight.ndim != 2 or type(weight) not in _PLAIN or not _is_float32_on_cpu(input, weight):
        return None
    rows = input.numel() // max(1, input.shape[-1])
    if rows < LEAST_ROWS or rows * weight.numel() < LEAST_WORK or not _is_read(bias, weight.shape[0]):
        return None
    return _multiply(input, weight, bias)


def _is_read(bias: Tensor | None, width: int) -> bool:
    """Return whether oneDNN adds such a bias. It reads its first element and `width`, and no stride: it reads an
    expanded one past its end, and omits one without axes."""
    return bias is None or (bias.shape == (width,) and bias.is_contiguous() and _is_float32_on_cpu(bias))


def _added(
    input: Tensor, mat1: Tensor, mat2: Tensor, *, beta: float = 1, alpha: float = 1, **others: Any
) -> Tensor | None:
    """Return the sum of a bias and the product with a matrix [in, out], GPT-2's layout; None for other calls."""
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
    """Return whether oneDNN is available, multiplies correctly, and is FASTER on this machine with so many threads;
    measured at the first call, in some ten milliseconds."""
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


# The model's other way to compute attention, for the passes of the sessions that chose it. transformers looks the name
# of the attention up in the configurations at every pass. So one model serves both: the names are replaced for the time
# of a pass, which one computing thread makes safe, and are the former ones between any two. The points are found again
# under it, because maps that a fused function does not expose are tensors there. Knows no session.


class AttentionSwitch:
    """The configurations of a model that name its attention, and the name under `wanted` for each."""

    def __init__(self, model: PreTrainedModel, wanted: str) -> None:
        self.model, self.wanted = model, wanted
        if not model._can_set_attn_implementation():
            raise self.refused("its layers were built with one")
        configs = _configs(model)
        before = [one._attn_implementation_internal for one in configs]
        try:
            model.set_attn_implementation(wanted)
            after = [one._attn_implementation_internal for one in configs]
        except (ValueError, ImportError) as error:
            raise self.refused(str(error).rstrip(".")) from None
        finally:
            for one, name in zip(configs, before, strict=True):
                one._attn_implementation_internal = name
        self._named = [(*each,) for each in zip(configs, before, after, strict=True) if each[1] != each[2]]

    @contextmanager
    def on(self) -> Iterator[None]:
        """Make the model compute the wanted attention inside this block."""
        try:
            for config, _, wanted in self._named:
                config._attn_implementation_internal = wanted
            yield
        finally:
            for config, before, _ in self._named:
                config._attn_implementation_internal = before

    def refused(self, why: str) -> UsageError:
        """Return the refusal of a session of this attention."""
        return UsageError(
            f"{type(self.model).__name__} cannot compute {self.wanted} attention for one session: {why}. Load the "
            f"model in an engine of its own, with --attention {self.wanted}."
        )


@torch.inference_mode()
def anatomy_under(switch: AttentionSwitch, gates: Gates, held: Sequence[int], before: Anatomy) -> Anatomy:
    """Return the anatomy under the other attention. Raises UsageError where stops there would not be exact."""
    with switch.on(), gates.lifted():
        try:
            found = discover(switch.model, held)
        except ModelRefused as error:
            raise switch.refused(str(error).rstrip(".")) from None
    if found.forms != before.forms or found.mappings != before.mappings or found.handed != before.handed:
        raise switch.refused("its layers are called otherwise then")
    if switch.wanted == "eager" and any(getattr(tap, "kind", None) == "recomputed" for tap in found.taps.values()):
        raise switch.refused("its layers call a fused function all the same")
    return found


def _configs(model: PreTrainedModel) -> list[Any]:
    """Return each configuration that a module of the model has, and those within them, once."""
    found: dict[int, Any] = {}
    waiting: list[Any] = [module.config for module in model.modules() if hasattr(module, "config")]
    while waiting:
        config = waiting.pop()
        if id(config) in found or not hasattr(config, "_attn_implementation_internal"):
            continue
        found[id(config)] = config
        waiting += sections(config)
    return list(found.values())
