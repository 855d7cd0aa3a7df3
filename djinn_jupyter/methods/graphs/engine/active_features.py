"""The features of transcoders that are active on a line, what each writes to the MLPs, and what they leave out.

Shapes: S positions, D features of the residual, F of a transcoder, A active features of one layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import linear

from djinn_jupyter.engine.model.added.arithmetic import Dictionary
from djinn_jupyter.engine.session.added_modules import AddedModule
from djinn_jupyter.errors import UsageError
from djinn_jupyter.wire.module_form import TRANSCODERS


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ActiveFeatures:
    """Those of one layer, in order of positions. `before_A` is what each has before its activation."""

    layer: int
    site: str
    dictionary: Dictionary
    positions_A: Tensor
    units_A: Tensor
    values_A: Tensor
    before_A: Tensor

    @classmethod
    def of(cls, module: AddedModule, x_SD: Tensor) -> ActiveFeatures:
        """Return the features of a module that are active where it reads x."""
        dictionary = dictionary_of(module)
        x_SD = x_SD.to(dictionary.encoder_FD.dtype)
        features_SF = dictionary.read(x_SD)
        positions_A, units_A = features_SF.nonzero().unbind(1)
        before_SF = linear(x_SD, dictionary.encoder_FD, dictionary.bias_F)
        return cls(
            layer=module.layer,
            site=str(module.site),
            dictionary=dictionary,
            positions_A=positions_A,
            units_A=units_A,
            values_A=features_SF[positions_A, units_A].float(),
            before_A=before_SF[positions_A, units_A].float(),
        )

    def __len__(self) -> int:
        return len(self.units_A)

    def written(self, layer: int) -> Tensor | None:
        """Return what each writes to the MLP of a layer, float32 [A, D]; None where that is not among those written."""
        decoder_FO = self._decoder(layer)
        return None if decoder_FO is None else decoder_FO[self.units_A].float() * self.values_A[:, None]

    def _decoder(self, layer: int) -> Tensor | None:
        if layer == self.layer:
            return self.dictionary.decoder_FO
        later = self.dictionary.later_LFO
        return None if later is None or layer < self.layer else later[layer - self.layer - 1]

    def encoder_row(self, number: int) -> Tensor:
        """Return the direction [D] by which a feature reads, float32."""
        return self.dictionary.encoder_FD[self.units_A[number]].float()

    def bias_before(self, x_SD: Tensor) -> Tensor:
        """Return what each has before its activation where its module reads another x, float64 [A]."""
        rows_AD = self.dictionary.encoder_FD[self.units_A].double()
        bias_A = self.dictionary.bias_F[self.units_A].double()
        return (rows_AD * x_SD[self.positions_A].double()).sum(-1) + bias_A


def dictionary_of(module: AddedModule) -> Dictionary:
    """Return a transcoder's arithmetic. Raises UsageError for a module whose features are no sum of what it reads."""
    form, found = module.identity.form, module.held.present
    if form.kind not in TRANSCODERS or not isinstance(found, Dictionary):
        kind = form.kind.replace("_", " ")
        raise UsageError(f"{module.site} is of kind {kind}; an attribution graph goes through transcoders of MLPs.")
    strange = {
        "gated": form.activation == "gated",
        "by_decoder_norm": form.by_decoder_norm,
        "center_writing_weights": form.centered,
        f"normalization {form.normalization}": form.normalization != "none",
    }
    why = next((name for name, there in strange.items() if there), None)
    if why is not None:
        raise UsageError(f"{module.site} has {why}, with which a feature is no sum of what it reads: it has no graph.")
    return found


def biases(modules: Sequence[AddedModule], layer: int, like_SD: Tensor) -> Tensor:
    """Return what transcoders add to the MLP of a layer without any feature."""
    own = [dictionary_of(one).decoder_bias_O for one in modules if one.layer == layer]
    return torch.zeros_like(like_SD) + own[0].to(like_SD.dtype) if own else torch.zeros_like(like_SD)


def reconstructed(features: Sequence[ActiveFeatures], layer: int, like_SD: Tensor) -> Tensor:
    """Return what all active features write to the MLP of a layer, float32 [S, D]."""
    found_SD = torch.zeros_like(like_SD, dtype=torch.float32)
    for one in features:
        written_AD = one.written(layer)
        if written_AD is not None:
            found_SD.index_add_(0, one.positions_A, written_AD)
    return found_SD
