"""The arithmetic of added modules: a value to features, and features back.

Standard SAEs (Bricken et al. 2023), JumpReLU (2407.14435), TopK (2406.04093), gated (2404.16014), transcoders
(2406.11944), with a skip (2501.18823) or across layers (Lindsey et al. 2024), linear probes, tuned lenses (2303.08112).
Shapes: T positions, D features of the point, F of the module, O of what is written, L layers written to later.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

import torch
from torch import Tensor
from torch.nn.functional import linear

from djinn_jupyter.engine.model.added.normalizing import normalized
from djinn_jupyter.engine.model.added.units import FeatureRows, OfUnits, Products, UnitParts, Units
from djinn_jupyter.wire.module_form import TRANSCODERS, ModuleForm

Chosen = slice | list[int]

KEPT: Final = 4096  # features whose rows are kept cut out
FEW: Final = 4  # where less than a quarter of the features changed, the rows of these alone are multiplied


def rows_of(units: Units) -> Chosen:
    """Return units as an index. Of one unit, or several in a row, it is a slice, which copies nothing: an index of
    numbers takes as long as the row's product itself."""
    in_a_row = len(units) > 0 and units == tuple(range(units[0], units[-1] + 1))
    return slice(units[0], units[-1] + 1) if in_a_row else list(units)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Dictionary:
    """An SAE or a transcoder. A feature's row of the encoder is contiguous, so that one feature costs one row. Those of
    `gate`, of a gated one, are the logarithm of the scale and the bias of the magnitude."""

    form: ModuleForm
    encoder_FD: Tensor
    bias_F: Tensor
    decoder_FO: Tensor
    decoder_bias_O: Tensor
    threshold_F: Tensor | None = None
    gate: tuple[Tensor, Tensor] | None = None
    length_F: Tensor | None = None  # of the decoder's rows, where features are measured by it
    skip_OD: Tensor | None = None
    later_LFO: Tensor | None = None  # of a cross-layer transcoder: the decoders into the layers after its own
    _kept: dict[Units, FeatureRows] = field(default_factory=dict, init=False, repr=False)

    def read(self, x_TD: Tensor) -> Tensor:
        """Return the features [T, F]."""
        return self._active(self._cut(slice(None)), self._given(x_TD))

    def reading(self, x_TD: Tensor) -> OfUnits:
        """Return what reads the features of units. The rows of these alone are computed, except of a topk; what comes
        before the rows is computed once."""
        if self.form.activation == "topk":
            return UnitParts(partial(_columns, self.read(x_TD)))
        return Products(self._given(x_TD), self._kept, self._rows_of, self._active)

    def _rows_of(self, units: Units) -> FeatureRows:
        """Return the rows of features, and keep that of a single one: a view, which takes as long to make as its
        product."""
        rows = self._cut(rows_of(units))
        if len(units) == 1:
            if len(self._kept) >= KEPT:
                self._kept.clear()
            self._kept[units] = rows = replace(rows, floor=self._floor(rows))
        return rows

    def _floor(self, row: FeatureRows) -> float | None:
        """Return the number above which a feature is what its row makes; None where it is something else."""
        if row.gate is not None or self.form.activation == "topk":
            return None
        return 0.0 if row.threshold_m is None else max(0.0, row.threshold_m.item())

    def _cut(self, chosen: Chosen) -> FeatureRows:
        return FeatureRows(
            encoder_Dm=self.encoder_FD[chosen].t(),
            bias_m=self.bias_F[chosen],
            threshold_m=None if self.threshold_F is None else self.threshold_F[chosen],
            gate=None if self.gate is None else (self.gate[0][chosen], self.gate[1][chosen]),
        )

    def _given(self, x_TD: Tensor) -> Tensor:
        """Return what the encoder multiplies."""
        normed, _, _ = normalized(x_TD.to(self.encoder_FD.dtype), self.form)
        return normed - self.decoder_bias_O if self.form.subtracts_decoder_bias else normed

    def _active(self, rows: FeatureRows, given_TD: Tensor) -> Tensor:
        if rows.gate is not None:
            scale, magnitude_bias = rows.gate
            shared = given_TD @ rows.encoder_Dm
            return ((shared + rows.bias_m) > 0) * (shared * scale.exp() + magnitude_bias).relu()
        before = torch.addmm(rows.bias_m, given_TD, rows.encoder_Dm)
        if rows.threshold_m is not None:
            return before.relu() * (before > rows.threshold_m)
        return before.relu() if self.form.activation == "relu" else self._largest(before)

    def _largest(self, before_TF: Tensor) -> Tensor:
        measured = before_TF if self.length_F is None else before_TF * self.length_F
        values, places = torch.topk(measured, self.form.k or 1, dim=-1, sorted=False)
        return torch.zeros_like(measured).scatter_(-1, places, values.relu())

    def decode(self, x_TD: Tensor, features_TF: Tensor) -> Tensor:
        """Return the reconstruction [T, O] that the features make of x; of a cross-layer transcoder, the part of it
        that its own layer has of them."""
        scale, shift = self._way_back(x_TD)
        made = self._written(features_TF) + self.decoder_bias_O
        made = made if self.skip_OD is None else made + linear(x_TD.to(self.encoder_FD.dtype), self.skip_OD)
        made = made if scale is None else made * scale
        return made if shift is None else made + shift

    def difference(self, x_TD: Tensor, before_TF: Tensor, after_TF: Tensor) -> Tensor:
        """Return what the reconstruction changes by where the features change so: biases cancel."""
        scale, _ = self._way_back(x_TD)
        changed = after_TF - before_TF
        units = changed.any(0).nonzero().flatten()
        few = units.numel() * FEW < changed.shape[1]
        made = self._written(changed[:, units], units) if few else self._written(changed)
        return made if scale is None else made * scale

    def handed_on(self, features_TF: Tensor) -> list[Tensor]:
        """Return what features write [T, O] into each layer after their own."""
        return [] if self.later_LFO is None else [features_TF @ decoder_FO for decoder_FO in self.later_LFO]

    def _way_back(self, x_TD: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """Return the scale and the shift that undo the normalization of x; a transcoder writes another value."""
        if self.form.kind in TRANSCODERS:
            return None, None
        return normalized(x_TD.to(self.encoder_FD.dtype), self.form)[1:]

    def _written(self, features: Tensor, units: Tensor | None = None) -> Tensor:
        length = self.length_F if self.length_F is None or units is None else self.length_F[units]
        features = features if length is None else features / length
        return features @ (self.decoder_FO if units is None else self.decoder_FO[units])


def of_processed(module: Dictionary, gain_D: Tensor, offset_D: Tensor) -> Dictionary:
    """Return the module that has of x the features which this one has of (x - offset) / gain, both float32. Its
    reconstruction is one of x; what a transcoder writes stays."""
    dtype, encoder_FD = module.encoder_FD.dtype, module.encoder_FD.float() / gain_D
    bias_F, gate, decoder_FO, skip_OD = module.bias_F, module.gate, module.decoder_FO, module.skip_OD
    decoder_bias_O = module.decoder_bias_O
    if not module.form.subtracts_decoder_bias:  # else b_dec has the offset
        shift_F = encoder_FD @ offset_D
        bias_F = bias_F - shift_F
        gate = None if gate is None else (gate[0], (gate[1] - shift_F * gate[0].exp()).to(dtype))
    if module.form.kind == "sae":
        decoder_FO, decoder_bias_O = decoder_FO * gain_D, decoder_bias_O * gain_D + offset_D
    elif skip_OD is not None:
        skip_OD = skip_OD.float() / gain_D
        decoder_bias_O = decoder_bias_O - skip_OD @ offset_D
    return replace(
        module,
        encoder_FD=encoder_FD.to(dtype),
        bias_F=bias_F.to(dtype),
        gate=gate,
        decoder_FO=decoder_FO.to(dtype),
        decoder_bias_O=decoder_bias_O.to(dtype),
        skip_OD=None if skip_OD is None else skip_OD.to(dtype),
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Linear:
    """A linear probe, or a tuned lens, which adds its result to x. Nothing of it is put back."""

    weight_FD: Tensor
    bias_F: Tensor
    adds: bool

    def read(self, x_TD: Tensor) -> Tensor:
        """Return [T, F]."""
        return self._made(x_TD.to(self.weight_FD.dtype), slice(None))

    def reading(self, x_TD: Tensor) -> OfUnits:
        """Return what reads the columns of units; these alone are computed."""
        given = x_TD.to(self.weight_FD.dtype)
        return UnitParts(lambda units: self._made(given, rows_of(units)))

    def _made(self, given_TD: Tensor, chosen: Chosen) -> Tensor:
        made = linear(given_TD, self.weight_FD[chosen], self.bias_F[chosen])
        return given_TD[:, chosen] + made if self.adds else made


def _columns(features_TF: Tensor, units: Units) -> Tensor:
    return features_TF[:, list(units)]


Arithmetic = Dictionary | Linear
