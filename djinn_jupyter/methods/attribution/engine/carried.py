"""Changes of queries and keys, carried through attention before they are estimated: AtP*'s correction of saturated
attention (the QK fix of Kramar et al. 2024, arXiv 2403.00745).

A softmax that is saturated has hardly a gradient, and a change of a query or key may still turn it over. So the change
is carried to z, what the heads give, by attention itself, and to first order it goes on from there. A query changes its
own row of the pattern alone, so all queries of a layer are carried by one run of it. A key changes one column: its
scores come from one run with all keys changed, and the rest of each row by the closed form of a softmax with one other
entry.

Shapes: S positions (T of queries, K of keys), H heads, G heads of keys and values, d features of a head.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import torch
from torch import Tensor

from djinn_jupyter.engine.forward.forward import Forward
from djinn_jupyter.engine.model.hooks.taps import Tap
from djinn_jupyter.errors import UnknownSite
from djinn_jupyter.methods.attribution.engine.line import GradedLine
from djinn_jupyter.wire.sites import Site

QUERIES: Final = ("q", "q_rot")
KEYS: Final = ("k", "k_rot")
ALIKE: Final = {torch.float32: 1e-3, torch.float64: 1e-3}  # of the largest entry: z, and the values by the pattern
ALIKE_IN_16_BITS: Final = 5e-2


class Carried(Protocol):
    """A change that was carried to z."""

    def effect(self, gradient_SHd: Tensor) -> Tensor:
        """Return by how much the metric changes, float64 [S, units], by its gradient at z."""


@dataclass(frozen=True, slots=True, eq=False)
class CarriedQueries:
    change_SHd: Tensor

    def effect(self, gradient_SHd: Tensor) -> Tensor:
        return (self.change_SHd * gradient_SHd).sum(-1, dtype=torch.float64)


@dataclass(frozen=True, slots=True, eq=False)
class CarriedKeysTogether:
    """The keys of all positions changed at once; the effect of each head is told at position `row`."""

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
    """The key of each position changed alone. `scores_THK` are those of the line, `changed_THK` those with all keys
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
        # Beside the largest entry of a row the others are summed by themselves: 1 - its share has no digits left.
        odds = torch.log_softmax(scores, -1) - torch.log1p(-pattern)
        odds = odds.scatter(-1, first, scores.gather(-1, first) - rest)
        mean = (pattern * by_value).sum(-1, keepdim=True)
        without = (mean - pattern * by_value) / (1 - pattern)
        without = without.scatter(-1, first, (others * by_value).sum(-1, keepdim=True))
        by = torch.where(scores.isinf(), 0.0, self.changed_THK.double() - scores)
        moved = torch.sigmoid(odds + by) - pattern
        return _by_group((moved * (by_value - without)).nan_to_num(0.0).sum(0).T, self.groups)


def carry(forward: Forward, line: GradedLine, tap: Tap, change: Tensor, row: int | None) -> Carried:
    """Return the change of the queries or keys at a tap, carried to z; that of keys all at once where `row` says at
    which position it is told. Raises UnknownSite where it cannot be carried."""
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
    """Return the tap of what the heads of a layer give. Raises UnknownSite where there is none by head."""
    z = forward.anatomy.taps["z", tap.stage]
    if isinstance(z, str) or z.heads is None:
        why = z if isinstance(z, str) else "what its attention gives is not divided into heads"
        raise UnknownSite(f"Attention of layer {tap.stage} is not corrected here: {why}.")
    return z


def _values(
    line: GradedLine, layer: int, seen: Sequence[Tap], tap: Tap | None, change: Tensor | None
) -> dict[Site, Tensor]:
    """Run a layer once more, with a change at a tap where one is given. Return the values at the taps `seen`."""
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
    """Raise UnknownSite where what heads give is not their values by the pattern."""
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
    """Return the metric's change [T, H, K], float64, by what each query reads at each key."""
    return torch.einsum("thd,khd->thk", gradient_SHd.double(), values_SHd.double())


def _by_group(found_SH: Tensor, groups: Sequence[int]) -> Tensor:
    """Return what the heads that read each head of keys sum to, [S, G]."""
    summed = found_SH.new_zeros((found_SH.shape[0], max(groups) + 1))
    return summed.index_add_(1, torch.tensor(list(groups), device=found_SH.device), found_SH)
