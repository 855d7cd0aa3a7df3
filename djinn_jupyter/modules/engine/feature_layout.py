"""The layout of a point for an added module: its features are read from the point's value, and edits of them are
written into it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from djinn_jupyter.engine.model.hooks.layout import PositionLayout, written
from djinn_jupyter.errors import UnknownSite
from djinn_jupyter.modules.engine.arithmetic import Arithmetic, Dictionary, OfUnits
from djinn_jupyter.wire.modules import ModuleIdentity


@dataclass(slots=True, kw_only=True, eq=False, weakref_slot=True)
class HeldModule:
    """An added module that taps refer to. `arithmetic` is None where it was removed or is not there, for the reason
    `missing`."""

    identity: ModuleIdentity
    arithmetic: Arithmetic | None = None
    missing: str | None = None

    @property
    def present(self) -> Arithmetic:
        """The arithmetic. Raises UnknownSite where it is missing."""
        if self.arithmetic is None:
            raise UnknownSite(self.missing or "The module is not there yet.")
        return self.arithmetic

    def make_present(self, arithmetic: Arithmetic) -> None:
        """Make the module present."""
        self.arithmetic, self.missing = arithmetic, None

    def let_go(self, missing: str) -> None:
        """Make the module missing, for the reason given."""
        self.arithmetic, self.missing = None, missing


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FeatureLayout:
    """`point` is the layout of the point's own value [T, D] or [T, H, D]. With its error term a position keeps the
    reconstruction error, so that a position with unchanged features keeps its bits."""

    point: PositionLayout
    module: HeldModule

    def read(self, raw: Tensor) -> Tensor:
        """Return the features [T, F]."""
        return self.module.present.read(self._given(raw))

    def reading(self, raw: Tensor) -> OfUnits:
        """Return the reader of the features of units [T, m], which computes only these."""
        return self.module.present.reading(self._given(raw))

    def _given(self, raw: Tensor) -> Tensor:
        """Return the module's input, [T, D]."""
        return self.point.read(raw).flatten(1)

    @property
    def written_width(self) -> int | None:
        """The width of what features write; None for a module that writes nothing."""
        dictionary = self.module.present
        return dictionary.decoder_FO.shape[1] if isinstance(dictionary, Dictionary) else None

    def written_by(self, raw: Tensor, units: tuple[int, ...] | None) -> Tensor:
        """Return what features of `raw` write [T, O]: the reconstruction, or the part of it that `units` make."""
        dictionary, x_TD = self.module.present, self._given(raw)
        assert isinstance(dictionary, Dictionary)  # others have no width written
        if units is None:
            return dictionary.decode(x_TD, dictionary.read(x_TD)).to(raw.dtype)
        features = dictionary.read(x_TD)
        alone = torch.zeros_like(features)
        alone[:, list(units)] = features[:, list(units)]
        return dictionary.difference(x_TD, torch.zeros_like(features), alone).to(raw.dtype)

    def spliced(self, raw: Tensor, features: Tensor, met: Tensor | None, site: str) -> Tensor:
        """Return a copy of `raw` with these features; `met` are the features read from it, or None."""
        dictionary, value = self.module.present, self.point.read(raw)
        assert isinstance(dictionary, Dictionary)  # others are not editable
        x_TD = value.flatten(1)
        before = dictionary.read(x_TD) if met is None else met
        if self.module.identity.error_term:
            made = _added(x_TD, dictionary.difference(x_TD, before, features), (features != before).any(1))
        else:
            made = dictionary.decode(x_TD, features)
        return written(self.point, raw, made.to(raw.dtype).reshape(value.shape), site)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ThroughLayout(FeatureLayout):
    """The layout of a transcoder, whose raw value has the MLP's input before its output: features are read from the
    first `inputs` columns and written into the next `outputs`, where `point` is too. A cross-layer transcoder has as
    many more columns for each later layer, with what is added to the output of the MLP there."""

    inputs: int
    outputs: int

    def _given(self, raw: Tensor) -> Tensor:
        return self.point.read(raw[..., : self.inputs])

    def spliced(self, raw: Tensor, features: Tensor, met: Tensor | None, site: str) -> Tensor:
        """Return a copy of `raw` in which the MLP's output is what these features make of it."""
        dictionary, x_TD = self.module.present, self._given(raw)
        assert isinstance(dictionary, Dictionary)
        keeps, first = self.module.identity.error_term, self.part(raw, 0)
        if keeps:
            before = dictionary.read(x_TD) if met is None else met
            changed = (features != before).any(1)
            values = [_added(self.point.read(first), dictionary.difference(x_TD, before, features), changed)]
            features = features - before
        else:
            values = [dictionary.decode(x_TD, features)]
        for number, later in enumerate(dictionary.handed_on(features), 1):
            values.append(self.point.read(self.part(raw, number)) + later if keeps else later)
        parts = [
            written(self.point, self.part(raw, number), value.to(raw.dtype), site)
            for number, value in enumerate(values)
        ]
        return torch.cat([raw[..., : self.inputs], *parts], -1)

    def part(self, raw: Tensor, number: int) -> Tensor:
        """Return the MLP's output (0), or what is added to the output of that many layers later, a view."""
        start = self.inputs + number * self.outputs
        return raw[..., start : start + self.outputs]

    def handed(self, raw: Tensor, number: int, there: Tensor) -> Tensor:
        """Return a copy of the raw value `there`, at the MLP that many layers later, plus the part of `raw` for it;
        where that is zero the bits stay."""
        added, made = self.part(raw, number), there[..., -self.outputs :]
        sum_there = torch.where((added != 0).any(-1, keepdim=True), made + added, made)
        return torch.cat([there[..., : -self.outputs], sum_there], -1)


def _added(x_TD: Tensor, difference_TD: Tensor, changed_T: Tensor) -> Tensor:
    """Return x plus the difference at changed positions: a zero added elsewhere would turn -0 to 0."""
    sum_TD = x_TD.to(torch.promote_types(x_TD.dtype, difference_TD.dtype)) + difference_TD
    return torch.where(changed_T[:, None], sum_TD, x_TD.to(sum_TD.dtype))
