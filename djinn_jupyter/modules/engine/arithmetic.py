"""The arithmetic of added modules and adapters. Input normalizations are those of SAELens (`saes/sae.py`), each with
the scale that undoes it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.functional import linear

from djinn_jupyter.errors import UsageError
from djinn_jupyter.wire.modules import TRANSCODERS, AdapterIdentity, ModuleForm, Normalization

EPSILON = 1e-5


def normalized(x_TD: Tensor, form: ModuleForm) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Return the input of the encoder, and the scale [T, 1] and the shift [T, 1] that turn a reconstruction of it into
    one of x."""
    if not form.centered:
        return _scaled(x_TD, form.normalization)
    mean_T1 = x_TD.mean(-1, keepdim=True)
    given_TD, scale_T1, shift_T1 = _scaled(x_TD - mean_T1, form.normalization)
    return given_TD, scale_T1, mean_T1 if shift_T1 is None else shift_T1 + mean_T1


def _scaled(x_TD: Tensor, kind: Normalization) -> tuple[Tensor, Tensor | None, Tensor | None]:
    if kind == "layer_norm":
        mean_T1 = x_TD.mean(-1, keepdim=True)
        centred = x_TD - mean_T1
        deviation_T1 = centred.std(-1, keepdim=True)
        return centred / (deviation_T1 + EPSILON), deviation_T1, mean_T1
    if kind == "constant_norm_rescale":
        scale_T1 = x_TD.norm(dim=-1, keepdim=True) / x_TD.shape[-1] ** 0.5
        return x_TD / scale_T1, scale_T1, None
    return x_TD, None, None


# Read units of one value: heads or features, as tensors or, for a single one, as numbers.

Units = tuple[int, ...]


class OfUnits(Protocol):
    """Reads the units that it was made for."""

    def __call__(self, units: Units) -> Tensor:
        """Return the units' numbers, [T, m, ...]."""

    def numbers(self, unit: Units) -> list[float] | None:
        """Return the numbers of a single unit, one for each position; None where it has several."""


@dataclass(frozen=True, slots=True)
class UnitParts:
    """Units whose tensors a function returns."""

    part: Callable[[Units], Tensor]

    def __call__(self, units: Units) -> Tensor:
        return self.part(units)

    def numbers(self, unit: Units) -> list[float] | None:
        part = self.part(unit)
        return part.flatten().tolist() if part.numel() == len(part) else None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FeatureRows:
    """The encoder rows of some features, with their biases and thresholds. With a `floor` a single feature is its row's
    product above that number and zero otherwise."""

    encoder_Dm: Tensor
    bias_m: Tensor
    threshold_m: Tensor | None
    gate: tuple[Tensor, Tensor] | None
    floor: float | None = None


class Products:
    """Features that are products of a value [T, D] with rows of an encoder, made `active`. Rows are the `kept` ones, or
    else are sliced. A single feature's numbers are not made tensors: making one takes longer than the product."""

    __slots__ = ("_active", "_before_T1", "_cut_out", "_kept", "_single", "_value_TD")

    def __init__(
        self,
        value_TD: Tensor,
        kept: Mapping[Units, FeatureRows],
        cut_out: Callable[[Units], FeatureRows],
        active: Callable[[FeatureRows, Tensor], Tensor],
    ) -> None:
        self._value_TD, self._kept, self._cut_out, self._active = value_TD, kept, cut_out, active
        self._before_T1, self._single = value_TD.new_empty(len(value_TD), 1), len(value_TD) == 1

    def __call__(self, units: Units) -> Tensor:
        return self._active(self._kept.get(units) or self._cut_out(units), self._value_TD)

    def numbers(self, unit: Units) -> list[float]:
        rows, before_T1 = self._kept.get(unit) or self._cut_out(unit), self._before_T1
        floor = rows.floor
        if floor is None:
            return self._active(rows, self._value_TD).flatten().tolist()
        torch.addmm(rows.bias_m, self._value_TD, rows.encoder_Dm, out=before_T1)
        if self._single:  # as at every token of a generation
            number = before_T1.item()
            return [0.0 if number <= floor else number]
        return [0.0 if number <= floor else number for number in before_T1.flatten().tolist()]


# The arithmetic of added modules: a value to features, and features back. Standard SAEs (Bricken et al. 2023),
# JumpReLU (2407.14435), TopK (2406.04093), gated (2404.16014), transcoders (2406.11944), with a skip (2501.18823) or
# across layers (Lindsey et al. 2024), linear probes, tuned lenses (2303.08112). Shapes: T positions, D features of the
# point, F of the module, O of what is written, L layers written to later.

Chosen = slice | list[int]

KEPT: Final = 4096  # features whose rows are kept ready
FEW: Final = 4  # where less than a quarter of the features changed, only their rows are multiplied


def rows_of(units: Units) -> Chosen:
    """Return units as an index. A single unit, or several in a row, is a slice, which copies nothing: an index of
    numbers takes as long as the row's product itself."""
    in_a_row = len(units) > 0 and units == tuple(range(units[0], units[-1] + 1))
    return slice(units[0], units[-1] + 1) if in_a_row else list(units)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Dictionary:
    """An SAE or a transcoder. A feature's row of the encoder is contiguous, so that one feature costs one row. In a
    gated SAE, `gate` has the logarithm of the scale and the bias of the magnitude."""

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
        """Return the reader of the features of units. Only their rows are computed, except for topk; the steps before
        the rows are computed once."""
        if self.form.activation == "topk":
            return UnitParts(partial(_columns, self.read(x_TD)))
        return Products(self._given(x_TD), self._kept, self._rows_of, self._active)

    def _rows_of(self, units: Units) -> FeatureRows:
        """Return the rows of features, and keep a single one: a view, which takes as long to make as its product."""
        rows = self._cut(rows_of(units))
        if len(units) == 1:
            if len(self._kept) >= KEPT:
                self._kept.clear()
            self._kept[units] = rows = replace(rows, floor=self._floor(rows))
        return rows

    def _floor(self, row: FeatureRows) -> float | None:
        """Return the number above which a feature equals its row's product; None for other activations."""
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
        """Return the encoder's input."""
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
        """Return the reconstruction [T, O] that the features make of x; for a cross-layer transcoder, its own layer's
        part."""
        scale, shift = self._way_back(x_TD)
        made = self._written(features_TF) + self.decoder_bias_O
        made = made if self.skip_OD is None else made + linear(x_TD.to(self.encoder_FD.dtype), self.skip_OD)
        made = made if scale is None else made * scale
        return made if shift is None else made + shift

    def difference(self, x_TD: Tensor, before_TF: Tensor, after_TF: Tensor) -> Tensor:
        """Return the change of the reconstruction for this change of the features: biases cancel."""
        scale, _ = self._way_back(x_TD)
        changed = after_TF - before_TF
        units = changed.any(0).nonzero().flatten()
        few = units.numel() * FEW < changed.shape[1]
        made = self._written(changed[:, units], units) if few else self._written(changed)
        return made if scale is None else made * scale

    def handed_on(self, features_TF: Tensor) -> list[Tensor]:
        """Return what features write [T, O] into each later layer."""
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
    """Return the module with the same features of x as this one's of (x - offset) / gain, both float32. Its
    reconstruction is one of x; a transcoder's output is unchanged."""
    dtype, encoder_FD = module.encoder_FD.dtype, module.encoder_FD.float() / gain_D
    bias_F, gate, decoder_FO, skip_OD = module.bias_F, module.gate, module.decoder_FO, module.skip_OD
    decoder_bias_O = module.decoder_bias_O
    if not module.form.subtracts_decoder_bias:  # else b_dec includes the offset
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
    """A linear probe, or a tuned lens, which adds its result to x. Nothing is written back."""

    weight_FD: Tensor
    bias_F: Tensor
    adds: bool

    def read(self, x_TD: Tensor) -> Tensor:
        """Return [T, F]."""
        return self._made(x_TD.to(self.weight_FD.dtype), slice(None))

    def reading(self, x_TD: Tensor) -> OfUnits:
        """Return the reader of the columns of units; only these are computed."""
        given = x_TD.to(self.weight_FD.dtype)
        return UnitParts(lambda units: self._made(given, rows_of(units)))

    def _made(self, given_TD: Tensor, chosen: Chosen) -> Tensor:
        made = linear(given_TD, self.weight_FD[chosen], self.bias_F[chosen])
        return given_TD[:, chosen] + made if self.adds else made


def _columns(features_TF: Tensor, units: Units) -> Tensor:
    return features_TF[:, list(units)]


Arithmetic = Dictionary | Linear


# A low-rank product beside linear modules (LoRA, Hu et al. 2021): added to the output of each during a pass. The order
# of operations and the dtypes are PEFT's (`tuners/lora/layer.py`), so that sums round alike. Between passes the model
# is unchanged. Shapes: I inputs, O outputs, R rank.


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LowRank:
    """The product beside the module at `path`, in fp32 also where the model computes in 16 bits."""

    path: str
    module: nn.Module
    down_RI: Tensor
    up_OR: Tensor
    factor: float

    def beside(self, base: Callable[..., Tensor], x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """Return the output of `base` for x plus the product, in the dtype of that output."""
        made = base(x, *args, **kwargs)
        product = functional.linear(functional.linear(x.to(self.down_RI.dtype), self.down_RI), self.up_OR)
        return (made + product * self.factor).to(made.dtype)


@dataclass(slots=True, kw_only=True, eq=False, weakref_slot=True)
class HeldAdapter:
    """An adapter that sessions refer to. `parts` are None where it is not there, for the reason `missing`."""

    identity: AdapterIdentity
    parts: Sequence[LowRank] | None = None
    bytes_held: int = 0
    missing: str | None = None

    @property
    def name(self) -> str:
        return self.identity.name

    @property
    def present(self) -> Sequence[LowRank]:
        """The products. Raises UsageError where they are missing."""
        if self.parts is None:
            raise UsageError(self.missing or "The adapter is not there yet.")
        return self.parts

    def make_present(self, parts: Sequence[LowRank], size: int) -> None:
        """Make the adapter present."""
        self.parts, self.bytes_held, self.missing = parts, size, None

    def let_go(self, missing: str) -> None:
        """Make the adapter missing, for the reason given."""
        self.parts, self.bytes_held, self.missing = None, 0, missing

    @contextmanager
    def on(self) -> Iterator[None]:
        """Make the model's modules use it inside this block."""
        parts = self.present
        before = [vars(part.module).get("forward") for part in parts]
        try:
            for part in parts:
                vars(part.module)["forward"] = partial(part.beside, part.module.forward)
            yield
        finally:
            for part, forward in zip(parts, before, strict=True):
                _restore(part.module, forward)


def _restore(module: nn.Module, forward: Any) -> None:
    """Restore a module's own forward, or its class's."""
    if forward is None:
        vars(module).pop("forward", None)
    else:
        vars(module)["forward"] = forward
