"""The normalizations of a module's input, as SAELens computes them (`saes/sae.py`), and the scale that undoes each."""

from __future__ import annotations

from torch import Tensor

from djinn_jupyter.wire.module_form import ModuleForm, Normalization

EPSILON = 1e-5


def normalized(x_TD: Tensor, form: ModuleForm) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Return the input of the encoder, and the scale [T, 1] and the shift [T, 1] by which a reconstruction of it is one
    of x."""
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
