"""The arithmetic of an added module whose files say that it reads a model with processed weights.

TransformerLens folds the weight and bias of a norm into the following maps, and the biases of values into the output's
bias (`fold_ln`, `fold_value_biases`). A module then reads (x - offset) / gain, which follow from the model's own
weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import torch
from torch import Tensor

from djinn_jupyter.engine.passes.forward import Forward
from djinn_jupyter.engine.passes.weight_reader import WeightReader
from djinn_jupyter.errors import UnknownSite, UsageError
from djinn_jupyter.modules.engine import checks
from djinn_jupyter.modules.engine.arithmetic import Arithmetic, Dictionary, of_processed
from djinn_jupyter.wire.modules import ModuleForm
from djinn_jupyter.wire.sites import Site

BEHIND_A_NORM: Final = {"attn_in": ("W_Q", "W_K", "W_V"), "mlp_in": ("W_in", "W_gate")}
OF_VALUES: Final = ("v", "z")
NORMALIZED: Final = ".hook_normalized"
Processed = tuple[Tensor, Tensor]


def arithmetic_of(form: ModuleForm, tensors: Mapping[str, Tensor], processed: Processed | None) -> Arithmetic:
    """Return the arithmetic of checked tensors, for the model's own value at a point."""
    made = checks.arithmetic_of(form, tensors)
    return of_processed(made, *processed) if processed is not None and isinstance(made, Dictionary) else made


def processed_at(forward: Forward, form: ModuleForm, at: Site) -> Processed | None:
    """Return gain and offset [D], float32, None where the module reads the point's own value. Wakes the weights. Raises
    UsageError, which names the field, where its input does not follow from that value."""
    bare = form.norm_folded or (form.trained_at or "").endswith(NORMALIZED)
    field = "fold_value_biases" if form.value_biases_folded else "fold_ln" if form.norm_folded else NORMALIZED[1:]
    if not bare and not form.value_biases_folded:
        return None
    if at.point not in (OF_VALUES if form.value_biases_folded else BEHIND_A_NORM):
        raise UsageError(
            f"The module's files have {field}, which is computed here at another point than {at}: leave it out."
        )
    if forward.split or form.normalization != "none":
        why = "a model that --tensor-parallel splits" if forward.split else f"normalization {form.normalization}"
        raise UsageError(f"The module's files have {field}, which is not computed here with {why}.")
    forward.weights.wake()
    try:
        return _of_values(forward, form, at) if form.value_biases_folded else _of_norm(forward, form, at)
    except UnknownSite as error:
        raise UsageError(f"The module's files have {field}, which is not computed here at {at}: {error}") from None


def _of_norm(forward: Forward, form: ModuleForm, at: Site) -> Processed:
    gain_D, shift_D, mean = WeightReader(forward).norm_before(BEHIND_A_NORM[at.point], at.layer or 0)
    if mean and not form.norm_folded:
        raise UnknownSite(
            "of a LayerNorm TransformerLens 3 has it before the weight, and earlier versions have it behind: say in "
            f"the file hook_name {at} for behind, or fold_ln in model_from_pretrained_kwargs for before."
        )
    if bool((gain_D == 0).any()):
        raise UnknownSite("a weight of the norm is zero, so what stood before it is not known.")
    return gain_D, shift_D


def _of_values(forward: Forward, form: ModuleForm, at: Site) -> Processed | None:
    """Return the biases of values, which their means share where a head's weights add up to 1; None where they are
    zero."""
    anatomy, layer = forward.anatomy, at.layer or 0
    offset_Hd = WeightReader(forward).value_biases(layer, norm_folded=form.norm_folded).float()
    if not bool(offset_Hd.any()):
        return None
    if at.point == "z":
        groups = anatomy.groups[layer]
        if isinstance(groups, str):
            raise UnknownSite(f"{groups}.")
        if not anatomy.means[layer]:
            raise UnknownSite("what its heads write are no means of their values: a sink takes a part, or a gate does.")
        offset_Hd = offset_Hd[list(groups)]
    chosen = offset_Hd if at.selector is None else offset_Hd[list(at.selector)]
    return torch.ones_like(chosen).flatten(), chosen.flatten()
