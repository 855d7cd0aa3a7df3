"""The attention scores of one layer as functions of what enters it, with its norms held: the directions along which a
head's score for a pair of positions reads the residual at either position.

Shapes: 1 sequence, S positions, D features of the residual, H heads, G heads of keys, d features of a head.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from djinn_jupyter.engine.model.hooks.taps import Tap, catch
from djinn_jupyter.engine.passes.epilogue import on_host
from djinn_jupyter.engine.passes.forward import Forward
from djinn_jupyter.errors import UnknownSite
from djinn_jupyter.methods.attribution.engine.line import LayerArguments, recording
from djinn_jupyter.methods.graphs.engine.frozen_line import FrozenNorms, norms_in

ROUNDING: Final = {torch.float32: 1e-4, torch.float64: 1e-6}  # of the largest term
ROUNDING_IN_16_BITS: Final = 3e-2
NO_SUM: Final = "no score of layer {layer} is a sum over what enters it: {why}."
POINTS: Final = ("q_rot", "k_rot", "attn_scores")
Caught = Mapping[str, Tensor]
"""Values [S, ...] of these points, positions first."""


def rounding(dtype: torch.dtype) -> float:
    """Return how far two computations of a score may differ, as a share of its largest term."""
    return ROUNDING.get(dtype, ROUNDING_IN_16_BITS)


class _ScoresMet(Exception):
    """Raised at the scores of a layer, behind which nothing is read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreOf:
    """A head's score for a query and a key, by their rows."""

    head: int
    query: int
    key: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ScoreDirection:
    """A score is `direction_D` . x + `constant` for what enters the layer at one position, float64 on the host."""

    direction_D: Tensor
    constant: float

    def of(self, value_D: Tensor) -> float:
        return float(self.direction_D @ on_host(value_D))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ScoreForm:
    """A score is `scale` times the product of its query with the key of head `group`; `by_key` and `by_query` read it
    at the two positions. `bias` is what is added to it whatever the query is, as a bias of distance or a mask."""

    scale: float
    group: int
    bias: float
    by_key: ScoreDirection
    by_query: ScoreDirection


class HeldLayer:
    """A layer of a sequence, run by itself from `entry_1SD` with its norms held as they are there."""

    def __init__(
        self, forward: Forward, arguments: LayerArguments, layer: int, entry_1SD: Tensor, taps: Mapping[str, Tap]
    ) -> None:
        self._forward, self._arguments, self._layer, self._taps = forward, arguments, layer, taps
        self._norms, self._within = FrozenNorms(), norms_in(forward.anatomy.layers[layer])
        with recording(False):
            self._entry_1SD = entry_1SD.clone()

    def form(self, of: ScoreOf) -> ScoreForm:
        """Return the form of a score. Raises UnknownSite where it is no such product, or no sum over the entry."""
        scale, group, bias = self._scale(of)
        by_key, by_query = self._directions(of, group, scale)
        return ScoreForm(scale=scale, group=group, bias=bias, by_key=by_key, by_query=by_query)

    def _scale(self, of: ScoreOf) -> tuple[float, int, float]:
        """Return the factor of the product, the head of its key, and the bias: the slope of what the softmax gets at a
        query of zero, where a soft-cap does nothing, is the factor times the key."""
        nothing: list[Tensor] = []

        def put(tap: Tap, raw: Tensor) -> Tensor | None:
            if tap is not self._taps["q_rot"]:
                return None
            nothing.append(torch.zeros_like(raw).requires_grad_(True))
            return nothing[0]

        with recording(True):
            seen = self._run(self._entry_1SD, self._norms.noted(self._within), put)
            reached = seen["attn_scores"][of.query, of.head, of.key]
            [slope] = torch.autograd.grad(reached, nothing)
        slope_d = on_host(self._taps["q_rot"].read(slope)[of.query, of.head])
        keys_Gd = on_host(seen["k_rot"][of.key])
        factors_G = (keys_Gd @ slope_d) / keys_Gd.square().sum(1).clamp_min(1e-30)
        misses_G = (slope_d - factors_G[:, None] * keys_Gd).norm(dim=1)
        group = int(misses_G.argmin())
        if not bool(misses_G[group] <= rounding(self._entry_1SD.dtype) * slope_d.norm()):
            raise self._no_sum("what its softmax gets is no multiple of a query's product with a key")
        return float(factors_G[group]), group, float(reached.detach())

    def _directions(self, of: ScoreOf, group: int, scale: float) -> tuple[ScoreDirection, ScoreDirection]:
        with recording(True):
            entry = self._entry_1SD.clone().requires_grad_(True)
            query_d, key_d = self._pair(entry, of, group)
            by_key, by_query = (
                torch.autograd.grad(product, entry, retain_graph=True, allow_unused=True)[0]
                for product in ((query_d.detach() @ key_d) * scale, (query_d @ key_d.detach()) * scale)
            )
        with recording(False):
            none_query_d, none_key_d = self._pair(torch.zeros_like(self._entry_1SD), of, group)
        query, key, none_query, none_key = map(on_host, (query_d, key_d, none_query_d, none_key_d))
        at_key = self._direction(by_key, of.key, scale * float(query @ none_key), scale * float(query @ key))
        at_query = self._direction(by_query, of.query, scale * float(none_query @ key), scale * float(query @ key))
        return at_key, at_query

    def _pair(self, entry_1SD: Tensor, of: ScoreOf, group: int) -> tuple[Tensor, Tensor]:
        """Return the query and the key, float32 [d], of another entry."""
        seen = self._run(entry_1SD, self._norms.held(self._within), lambda tap, raw: None)
        return seen["q_rot"][of.query, of.head].float(), seen["k_rot"][of.key, group].float()

    def _direction(self, gradient_1SD: Tensor | None, row: int, constant: float, score: float) -> ScoreDirection:
        """Return a score's direction at a row. Raises UnknownSite where it is not affine in that row alone."""
        if gradient_1SD is None:
            raise self._no_sum("it depends on nothing that enters")
        elsewhere = gradient_1SD[0].abs().amax(1)
        elsewhere[row] = 0
        if bool(elsewhere.any()):
            raise self._no_sum("a query or a key has parts of other positions")
        found = ScoreDirection(direction_D=on_host(gradient_1SD[0, row]), constant=constant)
        made = found.of(self._entry_1SD[0, row])
        size = max(abs(score), abs(constant), float((found.direction_D * on_host(self._entry_1SD[0, row])).norm()))
        if abs(made + constant - score) > rounding(self._entry_1SD.dtype) * size:
            raise self._no_sum("with the scales of its norms held it is not linear")
        return found

    def _run(
        self, entry_1SD: Tensor, norms: AbstractContextManager[None], put: Callable[[Tap, Tensor], Tensor | None]
    ) -> Caught:
        """Run the layer as far as its scores, and return the values at the points."""
        seen: dict[str, Tensor] = {}

        def meet(tap: Tap, raw: Tensor) -> Tensor | None:
            seen[tap.site.point] = tap.read(raw)
            if tap.site.point == "attn_scores":
                raise _ScoresMet
            return put(tap, raw)

        form = self._forward.anatomy.forms[self._layer]
        args, kwargs = form.put(*self._arguments.of_layer[self._layer], entry_1SD.clone())
        try:
            with torch.inference_mode(False), norms, self._forward.calling(), catch(self._taps.values(), meet):
                self._forward.anatomy.layers[self._layer](*args, **kwargs)
        except _ScoresMet:
            return seen
        raise self._no_sum("run by itself the layer makes no scores")

    def _no_sum(self, why: str) -> UnknownSite:
        return UnknownSite(f"There is no explanation here: {NO_SUM.format(layer=self._layer, why=why)}")
