"""The matrices of a model's layers that are split, by transformers' own plan for it, and the cut.

A rank keeps some outputs of a matrix split by columns, and some inputs of one split by rows, which gives a part of a
sum. Embedding, final norm and head stay whole on rank 0. Knows no processes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import DynamicCache, PreTrainedModel

from djinn_jupyter.engine.model.discovery.model_map import Anatomy
from djinn_jupyter.engine.model.discovery.recording import LENGTHS, spread_tokens
from djinn_jupyter.engine.model.hooks.taps import OnValue, Tap, catch
from djinn_jupyter.errors import ModelRefused, UnknownSite
from djinn_jupyter.wire.sites import Site

COLUMNS: Final = "colwise"
ROWS: Final = "rowwise"
WHOLE: Final = ("replicated_with_grad_allreduce", "replicate")  # each rank has all of it during a forward pass


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitPlan:
    """The paths of the layers, and within them of the matrices that are split by columns and by rows."""

    layers: tuple[str, ...]
    columns: tuple[str, ...]
    rows: tuple[str, ...]


def split_plan(model: Any, layers: Sequence[str], ranks: int) -> SplitPlan:
    """Return transformers' plan for the layers at these paths. Raises ModelRefused where it has none for this family,
    splits in a way that djinn cannot gather, or does not divide evenly."""
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
    """The forward of a matrix that is split by rows: the product with this rank's inputs, summed over the ranks, plus
    the bias, in transformers' order."""

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


# The taps within layers at tensors of which each rank has a part, and the axis of the parts. A probe finds them, never
# names: the same taps on the same prompt, before the layers are split and after. A value of equal shape is whole on
# every rank; one that is shorter along one axis is gathered along it. The gathered value must equal the earlier one,
# within rounding. A tap where it does not (for example columns of several matrices side by side) is removed from the
# model's taps, and the logits must agree as well.

TapKey = tuple[Any, ...]
Values = dict[TapKey, Tensor]
Catching = Callable[[list[Tap], OnValue], AbstractContextManager[None]]
UNGATHERED: Final = "its parts on the ranks of a split model cannot be put together"
NEAR: Final = {torch.float32: 1e-3, torch.float64: 1e-3}  # of the norm
NEAR_IN_16_BITS: Final = 5e-2
MASKED: Final = 1e30


def key_of(tap: Tap) -> TapKey:
    """Return the key of a tap's tensor."""
    return tap.kind, tap.module, tap.stage, tap.key, tap.ordinal, tap.site.point == "attn_scores"


class Survey:
    """The values at all taps within layers, and the logits, for one prompt on an unsplit model."""

    def __init__(self, model: PreTrainedModel, anatomy: Anatomy, cache_argument: str) -> None:
        self._model, self._anatomy, self._cache_argument = model, anatomy, cache_argument
        self._taps = {key_of(tap): tap for tap in _taps_within(anatomy)}
        self._whole, self._logits = self._values(catch)

    def axes(self) -> dict[TapKey, int | None]:
        """Return the axis along which each tap's value is split, once the layers are; None where each rank has all."""
        parts, _ = self._values(catch)
        found = {key: _axis(self._whole[key], part) for key, part in parts.items() if key in self._whole}
        return {key: axis for key, axis in found.items() if not isinstance(axis, str)}

    def false(self, catching: Catching, axes: Mapping[TapKey, int | None]) -> set[TapKey]:
        """Return the taps whose values, gathered by `catching`, differ from before. Raises ModelRefused where the
        logits do."""
        gathered, logits = self._values(catching, axes)
        if not _near(self._logits, logits):
            raise refused(self._model, "split that way its logits are not what they were")
        return {key for key in axes if key not in gathered or not _near(self._whole[key], gathered[key])}

    def leave_out(self, axes: Mapping[TapKey, int | None]) -> None:
        """Mark the taps that cannot be gathered as absent, with the reason."""
        for point, tap in self._anatomy.taps.items():
            if isinstance(tap, Tap) and _within(tap, self._anatomy) and key_of(tap) not in axes:
                self._anatomy.taps[point] = UNGATHERED

    @torch.inference_mode()
    def _values(
        self, catching: Catching, only: Mapping[TapKey, Any] | None = None
    ) -> tuple[dict[TapKey, Tensor], Tensor]:
        found: Values = {}

        def note(tap: Tap, raw: Tensor) -> None:
            found[key_of(tap)] = raw.to("cpu", copy=True)

        taps = [tap for key, tap in self._taps.items() if only is None or key in only]
        model: Any = self._model
        cache = {self._cache_argument: DynamicCache(config=model.config)}
        tokens = spread_tokens(model, LENGTHS[0])[None].to(model.get_input_embeddings().weight.device)
        with catching(taps, note):
            logits: Tensor = model(tokens, use_cache=True, **cache).logits
        return found, logits.to("cpu", copy=True)


def _taps_within(anatomy: Anatomy) -> Iterator[Tap]:
    """Yield the taps of points and of modules within layers."""
    for tap in anatomy.taps.values():
        if isinstance(tap, Tap) and _within(tap, anatomy):
            yield tap
    for module in anatomy.modules:
        for side in ("input", "output"):
            with _without_unknown():
                tap = anatomy.resolve(Site(point=side, path=module.path))
                if _within(tap, anatomy):
                    yield tap


@contextmanager
def _without_unknown() -> Iterator[None]:
    try:
        yield
    except UnknownSite:
        pass


def _within(tap: Tap, anatomy: Anatomy) -> bool:
    return tap.boundary is None and 0 <= tap.stage < len(anatomy.layers)


def _axis(whole: Tensor, part: Tensor) -> int | str | None:
    if whole.shape == part.shape:
        return None
    if whole.ndim != part.ndim:
        return UNGATHERED
    differ = [axis for axis, (one, other) in enumerate(zip(whole.shape, part.shape, strict=True)) if one != other]
    return differ[0] if len(differ) == 1 else UNGATHERED


def _near(whole: Tensor, gathered: Tensor) -> bool:
    if whole.shape != gathered.shape:
        return False
    shown = whole.isfinite() & (whole.abs() < MASKED)
    if not torch.equal(shown, gathered.isfinite() & (gathered.abs() < MASKED)):
        return False
    before, after = (value[shown].double() for value in (whole, gathered))
    return bool((before - after).norm() <= NEAR.get(whole.dtype, NEAR_IN_16_BITS) * before.norm())
