"""The matrices of a model's layers that are split, by transformers' own plan for it, and the cut.

Of a matrix split by columns a rank keeps some outputs, of one split by rows some inputs: such a matrix gives a part of
a sum. Embedding, final norm and head stay whole on rank 0. Knows no processes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch.nn.functional as F
from torch import Tensor, nn

from djinn_jupyter.errors import ModelRefused

COLUMNS: Final = "colwise"
ROWS: Final = "rowwise"
WHOLE: Final = ("replicated_with_grad_allreduce", "replicate")  # in a forward pass each rank has all of it


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitPlan:
    """The paths of the layers, and within them of the matrices that are split by columns and by rows."""

    layers: tuple[str, ...]
    columns: tuple[str, ...]
    rows: tuple[str, ...]


def split_plan(model: Any, layers: Sequence[str], ranks: int) -> SplitPlan:
    """Return transformers' plan for the layers at these paths. Raises ModelRefused where it has none for this family,
    splits another way than djinn can gather, or does not come out even."""
    found: dict[str, list[str]] = {COLUMNS: [], ROWS: []}
    known = {path for path, _ in model.named_modules()}
    for path, style in _planned(model, layers):
        if style in WHOLE:
            continue
        module = model.get_submodule(path) if path in known else None
        if style not in found or type(module) is not nn.Linear:
            raise refused(model, f"its plan splits {path} as {style}, which djinn cannot put together again")
        _require_even(model, path, module.out_features if style == COLUMNS else module.in_features, ranks)
        found[style].append(path)
    if not found[COLUMNS]:
        raise refused(model, "transformers has no plan to split its layers")
    return SplitPlan(layers=tuple(layers), columns=tuple(found[COLUMNS]), rows=tuple(found[ROWS]))


def refused(model: Any, why: str) -> ModelRefused:
    return ModelRefused(
        f"{type(model).__name__} cannot be split by --tensor-parallel: {why}. Load it without, on one device or with "
        "--devices."
    )


def cut(model: nn.Module, plan: SplitPlan, rank: int, ranks: int, total: Callable[[Tensor], None]) -> None:
    """Keep one rank's part of each matrix of the plan. `total` replaces a part of a sum by the sum over all ranks."""
    for path in plan.columns:
        matrix: Any = model.get_submodule(path)
        matrix.register_parameter("weight", _part(matrix.weight, 0, rank, ranks))
        if matrix.bias is not None:
            matrix.register_parameter("bias", _part(matrix.bias, 0, rank, ranks))
    for path in plan.rows:
        matrix = model.get_submodule(path)
        matrix.register_parameter("weight", _part(matrix.weight, 1, rank, ranks))
        matrix.forward = SummedRows(matrix, total)


class SummedRows:
    """The forward of a matrix that is split by rows: the product with this rank's inputs, summed over the ranks, and
    then the bias, as transformers adds it."""

    def __init__(self, matrix: nn.Linear, total: Callable[[Tensor], None]) -> None:
        self._matrix, self._total = matrix, total

    def __call__(self, given: Tensor) -> Tensor:
        summed = F.linear(given, self._matrix.weight)
        self._total(summed)
        return summed if self._matrix.bias is None else summed + self._matrix.bias


def _part(weight: Tensor, along: int, rank: int, ranks: int) -> nn.Parameter:
    return nn.Parameter(weight.detach().chunk(ranks, dim=along)[rank].clone(), requires_grad=False)


def _planned(model: Any, layers: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield the modules and parameters within the layers that the plan names, with their style."""
    plan = model.tp_plan or {}
    paths = [*(path for path, _ in model.named_modules()), *(path for path, _ in model.named_parameters())]
    for path in paths:
        style = plan.get(re.sub(r"\d+", "*", path))
        if style is not None and any(path.startswith(f"{layer}.") for layer in layers):
            yield path, style


def _require_even(model: Any, path: str, size: int, ranks: int) -> None:
    if size % ranks:
        raise refused(model, f"{path} has {size} features, which {ranks} ranks cannot share out evenly")
