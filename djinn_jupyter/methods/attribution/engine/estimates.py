"""Changes of queries and keys, propagated through attention before they are estimated: AtP*'s correction of saturated
attention (the QK fix of Kramar et al. 2024, arXiv 2403.00745).

A saturated softmax has almost no gradient, and a change of a query or key may still flip it. So attention itself
propagates the change to z, the heads' output, and gradients continue from there. A query changes only its own row of
the pattern, so one run of a layer propagates all its queries. A key changes one column: its scores come from one run
with all keys changed, and the rest of each row follows from the closed form of a softmax with one other entry.

Shapes: S positions (T of queries, K of keys), H heads, G heads of keys and values, d features of a head.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import torch
from torch import Tensor

from djinn_jupyter.engine.model.hooks.taps import Tap
from djinn_jupyter.engine.model.loading.tokenizer import TokenText
from djinn_jupyter.engine.passes.conditions import READINGS, Metric, TokenReading, of_token
from djinn_jupyter.engine.passes.forward import Forward
from djinn_jupyter.errors import InvalidCondition, UnknownSite
from djinn_jupyter.methods.attribution.engine.line import GradedLine, GradientStream
from djinn_jupyter.methods.sweep.engine.places import Part, SweptPlaces
from djinn_jupyter.wire.sites import Site

QUERIES: Final = ("q", "q_rot")
KEYS: Final = ("k", "k_rot")
ALIKE: Final = {torch.float32: 1e-3, torch.float64: 1e-3}  # of the largest entry: z, and the pattern times the values
ALIKE_IN_16_BITS: Final = 5e-2


class Carried(Protocol):
    """A change propagated to z."""

    def effect(self, gradient_SHd: Tensor) -> Tensor:
        """Return the change of the metric, float64 [S, units], by its gradient at z."""


@dataclass(frozen=True, slots=True, eq=False)
class CarriedQueries:
    change_SHd: Tensor

    def effect(self, gradient_SHd: Tensor) -> Tensor:
        return (self.change_SHd * gradient_SHd).sum(-1, dtype=torch.float64)


@dataclass(frozen=True, slots=True, eq=False)
class CarriedKeysTogether:
    """The keys of all positions changed at once; the effect of each head is reported at position `row`."""

    change_SHd: Tensor
    groups: Sequence[int]
    row: int

    def effect(self, gradient_SHd: Tensor) -> Tensor:
        by_head_SH = (self.change_SHd * gradient_SHd).sum(-1, dtype=torch.float64)
        found = torch.zeros_like(by_head_SH)
        found[self.row] = by_head_SH.sum(0)
        return _by_group(found, self.groups)


@dataclass(frozen=True, slots=True, eq=False)
class CarriedKeys:
    """The key of each position changed alone. `scores_THK` are the original scores, `changed_THK` have all keys
    changed."""

    scores_THK: Tensor
    changed_THK: Tensor
    values_SHd: Tensor
    groups: Sequence[int]

    def effect(self, gradient_SHd: Tensor) -> Tensor:
        scores, by_value = self.scores_THK.double(), _reads(gradient_SHd, self.values_SHd)
        pattern = torch.softmax(scores, -1)
        first = pattern.argmax(-1, keepdim=True)
        others = torch.softmax(scores.scatter(-1, first, -torch.inf), -1).nan_to_num(0.0)
        rest = torch.logsumexp(scores.scatter(-1, first, -torch.inf), -1, keepdim=True)
        # Beside the largest entry of a row the others are summed directly: 1 - its share would lose all digits.
        odds = torch.log_softmax(scores, -1) - torch.log1p(-pattern)
        odds = odds.scatter(-1, first, scores.gather(-1, first) - rest)
        mean = (pattern * by_value).sum(-1, keepdim=True)
        without = (mean - pattern * by_value) / (1 - pattern)
        without = without.scatter(-1, first, (others * by_value).sum(-1, keepdim=True))
        by = torch.where(scores.isinf(), 0.0, self.changed_THK.double() - scores)
        moved = torch.sigmoid(odds + by) - pattern
        return _by_group((moved * (by_value - without)).nan_to_num(0.0).sum(0).T, self.groups)


def carry(forward: Forward, line: GradedLine, tap: Tap, change: Tensor, row: int | None) -> Carried:
    """Return the change of the queries or keys at a tap, propagated to z; for all keys at once `row` is the position of
    the report. Raises UnknownSite where that is impossible."""
    layer, point = tap.stage, tap.site.point
    z = z_of(forward, tap)
    scores, values = (forward.anatomy.taps[name, layer] for name in ("attn_scores", "v"))
    seen = [z]
    if point in KEYS and row is None:
        seen += [one for one in (scores, values) if isinstance(one, Tap)]
    before, after = _values(line, layer, seen, None, None), _values(line, layer, seen, tap, change)
    moved_SHd = after[z.site].float() - before[z.site].float()
    if point in QUERIES:
        return CarriedQueries(moved_SHd)
    groups = _groups(forward, tap, z)
    if row is not None:
        return CarriedKeysTogether(moved_SHd, groups, row)
    for one in (scores, values):
        if not isinstance(one, Tap):
            raise UnknownSite(f"The keys of layer {layer} are not carried through attention here: {one}.")
    assert isinstance(scores, Tap) and isinstance(values, Tap)
    found = CarriedKeys(
        before[scores.site].float(), after[scores.site].float(), before[values.site].float()[:, groups], groups
    )
    _require_sum(found, before[z.site], layer)
    return found


def z_of(forward: Forward, tap: Tap) -> Tap:
    """Return the tap of a layer's heads' output. Raises UnknownSite where there is none by head."""
    z = forward.anatomy.taps["z", tap.stage]
    if isinstance(z, str) or z.heads is None:
        why = z if isinstance(z, str) else "what its attention gives is not divided into heads"
        raise UnknownSite(f"Attention of layer {tap.stage} is not corrected here: {why}.")
    return z


def _values(
    line: GradedLine, layer: int, seen: Sequence[Tap], tap: Tap | None, change: Tensor | None
) -> dict[Site, Tensor]:
    """Run a layer once more, with a change at a tap if given. Return the values at the taps `seen`."""
    found: dict[Site, Tensor] = {}

    def put(met: Tap, raw: Tensor) -> Tensor | None:
        if met is not tap or change is None:
            found[met.site] = met.read(raw).clone()
            return None
        value = met.read(raw)
        return met.write(raw, (value.float() + change).to(value.dtype))

    line.again(layer, [*([] if tap is None else [tap]), *seen], put)
    return found


def _groups(forward: Forward, tap: Tap, z: Tap) -> Sequence[int]:
    """Return the head of keys that each head reads. Raises UnknownSite."""
    if tap.heads == z.heads:
        return range(z.heads or 0)
    found = forward.anatomy.groups[tap.stage]
    if isinstance(found, str) or len(found) != z.heads:
        why = found if isinstance(found, str) else "its heads are others behind the softmax"
        raise UnknownSite(f"The keys of layer {tap.stage} are not carried through attention here: {why}.")
    return found


def _require_sum(keys: CarriedKeys, z_SHd: Tensor, layer: int) -> None:
    """Raise UnknownSite unless the heads' output is the pattern times their values."""
    pattern = torch.softmax(keys.scores_THK, -1)
    fits = pattern.shape[1] == z_SHd.shape[1] and pattern.shape[2] == keys.values_SHd.shape[0]
    fits = fits and keys.values_SHd.shape == z_SHd.shape
    if fits:
        far = torch.einsum("thk,khd->thd", pattern, keys.values_SHd) - z_SHd.float()
        fits = bool(far.abs().max() <= ALIKE.get(z_SHd.dtype, ALIKE_IN_16_BITS) * z_SHd.float().abs().max())
    if not fits:
        raise UnknownSite(
            f"The keys of layer {layer} are not carried through attention here, one by one: what its heads give is not "
            "the sum of values by their pattern. Leave the axis position out, or the correction."
        )


def _reads(gradient_SHd: Tensor, values_SHd: Tensor) -> Tensor:
    """Return the metric's change [T, H, K], float64, for what each query reads at each key."""
    return torch.einsum("thd,khd->thk", gradient_SHd.double(), values_SHd.double())


def _by_group(found_SH: Tensor, groups: Sequence[int]) -> Tensor:
    """Return the sums over the heads that read each head of keys, [S, G]."""
    summed = found_SH.new_zeros((found_SH.shape[0], max(groups) + 1))
    return summed.index_add_(1, torch.tensor(list(groups), device=found_SH.device), found_SH)


# The estimates of a sweep's cells: the change at each place, times the gradient there. To first order the changes at
# several places add up, so a cell is the sum over its places: a few sums of one tensor. Shapes: S positions, U heads or
# features, M metrics.

SUMMED: Final[tuple[Part, ...]] = ("point", "layer", "row", "unit")  # the parts of an edit along which changes add up


@dataclass(slots=True, kw_only=True, eq=False)
class Estimates:
    """Takes gradients at the taps of `places`. `changes` are the values' changes, float32, by site, set during the
    forward pass; `weight` is the share of each gradient. Changes `carried` to another site count there, by that site's
    gradient, and not at their own. With `dropping` a score is the mean magnitude over gradients that bypass each of the
    `layers` in turn."""

    places: SweptPlaces
    layers: int
    weight: float = 1.0
    dropping: bool = False
    changes: dict[Site, Tensor] = field(default_factory=dict)
    carried: dict[Site, dict[Site, Carried]] = field(default_factory=dict)
    _found: dict[tuple[Site, GradientStream], Tensor] = field(default_factory=dict)

    def take(self, stream: GradientStream, tap: Tap, raw_gradient: Tensor) -> None:
        """Add the estimates of a tap's places for one stream."""
        gradient = tap.read(raw_gradient.contiguous()).to(torch.float32)
        for site, carried in self.carried.get(tap.site, {}).items():
            self._add(site, stream, carried.effect(gradient))
        if tap.site in self.changes and not any(tap.site in made for made in self.carried.values()):
            # Hidden scores can be infinite.
            product = (self.changes[tap.site] * gradient).masked_fill_(gradient == 0, 0.0)
            summed = product.flatten(2).sum(-1, dtype=torch.float64) if product.ndim > 2 else product.double()
            self._add(tap.site, stream, summed)

    def _add(self, site: Site, stream: GradientStream, product_SU: Tensor) -> None:
        rows = self.places.alignment.rows
        part = product_SU if rows is None else product_SU[list(rows)]
        if "unit" not in self.places.parts:
            units = self.places.units
            part = (part if units is None else part[:, list(units)]).sum(1, keepdim=True)
        if "row" not in self.places.parts:
            part = part.sum(0, keepdim=True)
        key = site, stream
        self._found[key] = self.weight * part + self._found.get(key, 0.0)

    def values(self, metrics: int) -> Tensor:
        """Return the estimates [cells along each axis, M], float64, on the host; 0 without a gradient."""
        return torch.stack([self._grid(metric) for metric in range(metrics)], dim=-1)

    def _grid(self, metric: int) -> Tensor:
        found = [self._of(tap, metric) for tap in self.places.taps.values()]
        shape = next((one.shape for one in found if one is not None), torch.Size(self._missing()))
        parts = [torch.zeros(shape, dtype=torch.float64) if one is None else one.cpu() for one in found]
        points = len({point for point, _ in self.places.taps})
        by_tap = torch.stack(parts).reshape(-1, points, *shape).transpose(0, 1)  # taps go by layer, then by point
        for number, part in enumerate(SUMMED):
            by_tap = _of_places(by_tap, number, self._places(part))
        along = [SUMMED.index(part) for part in self.places.parts]
        others = [number for number in range(len(SUMMED)) if number not in along]
        cells = by_tap.permute(*along, *others).reshape([len(of) for of in self.places.axes.values()])
        return _in_pairs(cells) if self.places.in_pairs else cells

    def _places(self, part: Part) -> list[list[int]]:
        """Return for each place of the axis that divides a part the indices of its elements among the sums; only the
        first without an axis."""
        if part not in self.places.parts:
            return [[0]]
        points, layers = zip(*self.places.taps, strict=True)
        counted = {"point": points, "layer": layers, "row": self.places.alignment.rows}.get(part)
        number = None if counted is None else {one: at for at, one in enumerate(dict.fromkeys(counted))}
        edited = self.places.edited(self.places.parts[part])
        return [[one if number is None else number[one] for one in elements] for elements in edited]

    def _of(self, tap: Tap, metric: int) -> Tensor | None:
        """Return the estimates of a tap's places. Bypassing a layer below changes nothing there; bypassing its own
        leaves nothing, and is not counted."""
        plain = self._found.get((tap.site, GradientStream(metric)))
        if plain is None or not self.dropping:
            return plain
        past = (self._found.get((tap.site, GradientStream(metric, layer))) for layer in range(self.layers))
        below, counted = (tap.stage, self.layers - 1) if tap.boundary is None else (tap.boundary, self.layers)
        total = below * plain.abs() + sum(one.abs() for one in past if one is not None)
        return total / counted if counted else plain.abs()

    def _missing(self) -> list[int]:
        """Return the existing rows and units, by their places."""
        return [1 + max(map(max, self._places(part))) for part in SUMMED[2:]]


def _of_places(cells: Tensor, axis: int, places: Sequence[Sequence[int]]) -> Tensor:
    """Return along `axis` the sum at each of `places`, in the order of its numbers."""
    if [*places] == [[number] for number in range(cells.shape[axis])]:
        return cells
    summed = cells.index_select(axis, torch.tensor([numbers[0] for numbers in places]))
    for step in range(1, max(map(len, places))):
        more = {at: numbers[step] for at, numbers in enumerate(places) if len(numbers) > step}
        summed.index_add_(axis, torch.tensor([*more]), cells.index_select(axis, torch.tensor([*more.values()])))
    return summed


def _in_pairs(cells: Tensor) -> Tensor:
    """Return the sums of every two cells, with every axis twice; a cell with itself is that cell."""
    flat = cells.reshape(-1)
    summed = flat[:, None] + flat[None]
    summed.diagonal().copy_(flat)
    return summed.reshape(*cells.shape, *cells.shape)


# The gradient of a metric with respect to the logits: the metric is computed on numbers that carry their derivatives
# (forward mode). These numbers are floats, so the same compiled expression takes them.

Reading = tuple[TokenReading, int]  # of a token


class Slope(float):
    """A number, and its derivative by each reading that it was computed from."""

    by: Mapping[Reading, float]

    @classmethod
    def of(cls, value: float, *parts: tuple[float, object]) -> Slope:
        """Return `value` with the slopes of its parts, each times its own factor."""
        made = cls(value)
        by: dict[Reading, float] = {}
        for factor, part in parts:
            for reading, slope in part.by.items() if isinstance(part, Slope) else ():
                by[reading] = by.get(reading, 0.0) + factor * slope
        made.by = by
        return made

    @classmethod
    def read(cls, value: float, reading: Reading) -> Slope:
        made = cls(value)
        made.by = {reading: 1.0}
        return made

    def __neg__(self) -> Slope:
        return Slope.of(float.__neg__(self), (-1.0, self))

    def __abs__(self) -> Slope:
        return Slope.of(float.__abs__(self), (math.copysign(1.0, self) if self else 0.0, self))

    def __add__(self, other: float) -> Slope:
        return Slope.of(float.__add__(self, other), (1.0, self), (1.0, other))

    __radd__ = __add__

    def __sub__(self, other: float) -> Slope:
        return Slope.of(float.__sub__(self, other), (1.0, self), (-1.0, other))

    def __rsub__(self, other: float) -> Slope:
        return Slope.of(float.__rsub__(self, other), (-1.0, self))

    def __mul__(self, other: float) -> Slope:
        return Slope.of(float.__mul__(self, other), (float(other), self), (float(self), other))

    __rmul__ = __mul__

    def __truediv__(self, other: float) -> Slope:
        return _quotient(self, other)

    def __rtruediv__(self, other: float) -> Slope:
        return _quotient(other, self)

    def __mod__(self, other: float) -> Slope:
        return Slope.of(float.__mod__(self, other), (1.0, self), (-(float(self) // float(other)), other))

    def __rmod__(self, other: float) -> Slope:
        return Slope.of(float.__rmod__(self, other), (-(float(other) // float(self)), self))


def _quotient(one: float, other: float) -> Slope:
    above, below = float(one), float(other)
    value = above / below
    return Slope.of(value, (1.0 / below, one), (-value / below, other))


def require_slopes(metric: Metric) -> None:
    """Raise InvalidCondition for a metric that has no gradient."""
    for name in sorted(metric.condition.names):
        if READINGS[name].add_slope is None:
            raise InvalidCondition(
                f"The metric {metric.condition.text!r} has no gradient, because {READINGS[name].why_none}; attribute "
                "logit() or prob(), or sweep."
            )


def metric_gradient(metric: Metric, logits_V: Tensor) -> Tensor:
    """Return the derivatives [V], float32, of a metric with respect to these logits."""
    value: Any = metric.condition.value(_SlopedRow(logits_V, metric.tokenizer))
    row_V = logits_V.to(torch.float32)
    found_V = torch.zeros_like(row_V)
    for (reading, token), slope in value.by.items() if isinstance(value, Slope) else ():
        assert reading.add_slope is not None
        reading.add_slope(found_V, slope, row_V, token)
    return found_V


@dataclass(frozen=True, slots=True)
class _SlopedRow:
    """A row of logits whose readings carry their slopes."""

    logits_V: Tensor
    tokenizer: TokenText

    def read(self, name: str) -> Any:
        raise InvalidCondition(f"A metric knows no {name!r}.")

    def of_token(self, name: str, token: str | int) -> float:
        number = self.tokenizer.token_id(token) if isinstance(token, str) else token
        return Slope.read(of_token(name, self.logits_V, number), (READINGS[name], number))
