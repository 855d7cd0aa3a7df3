"""The matrices of a model's maps, found by the tensors that they make: in one layer's record, and before the layers.

Shapes: B one-token prompts, H heads, D features. A position attends to itself alone: a head's output is its value.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from djinn_jupyter.engine.model.discovery.heads import columns_by_bits, distinct, flat
from djinn_jupyter.engine.model.discovery.layer_list import same
from djinn_jupyter.engine.model.discovery.layer_record import LayerRecord, adds, has_matrix
from djinn_jupyter.engine.model.discovery.points import FoundPoints, ModuleTensor
from djinn_jupyter.engine.model.discovery.recording import PROMPTS, Call, RecordedTensor, Recording, kept, linears
from djinn_jupyter.engine.model.hooks.layout import Heads

ALIKE = 0.999  # cosine of a head's output with its value, in every prompt
NO_MAP = "no single linear map makes it from what its block is given"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Matrix:
    """The matrix of a linear map: `module` has `width` input features. `heads` divide its output, or with `ends` its
    input; `piece` is the part of its output, of so many equal ones. `norm` made its input; `normed`: another norm is
    between the map and the point; `rotated`: the rotary embedding precedes that."""

    module: nn.Module
    width: int
    heads: Heads | None = None
    ends: bool = False
    piece: tuple[int, int] = (0, 1)
    norm: nn.Module | None = None
    normed: bool = False
    rotated: bool = False


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PositionTable:
    """The rows of a matrix that are added to the embeddings, from `first` on; row `first` at position 0."""

    module: nn.Module
    parameter: str
    first: int


FoundMatrices = dict[str, Matrix | str]
"""Matrices of one layer; a string is the reason why one is absent."""


def find_matrices(record: LayerRecord, found: FoundPoints) -> FoundMatrices:
    """Return the matrices of one layer, from its record and its points."""
    return {**_attention(record, found), **_mlp(record, found)}


def find_groups(record: LayerRecord, found: FoundPoints) -> tuple[tuple[int, ...] | str, bool]:
    """Return for each head the number of the value that it reads, or a reason; and whether it writes exactly that value
    where it attends to nothing else: no sink takes a part of it, and no gate follows."""
    z, v = found["z"], found["v"]
    if isinstance(z, str) or isinstance(v, str):
        return z if isinstance(z, str) else str(v), False
    if not isinstance(z, ModuleTensor) or not isinstance(v, ModuleTensor) or z.heads is None or v.heads is None:
        return "what it writes is not divided into heads", False
    z_BHD, v_BGD = _by_head(record, z, z.heads), _by_head(record, v, v.heads)
    if z_BHD.shape[2] != v_BGD.shape[2]:
        return "its heads write other features than they read", False
    alike_BHG = torch.einsum("bhd,bgd->bhg", _unit(z_BHD), _unit(v_BGD))
    nearest = alike_BHG.amin(0).max(1)
    if float(nearest.values.min()) < ALIKE:
        return "what a head writes is no mean of its values", False
    groups, rounding = nearest.indices, 8 * torch.finfo(z_BHD.dtype).eps
    return tuple(groups.tolist()), torch.allclose(z_BHD, v_BGD[:, groups].to(z_BHD), rtol=rounding, atol=rounding)


def find_positions(recording: Recording, embedding: nn.Module, first_BD: Tensor) -> PositionTable | str:
    """Return the table whose row at position 0, added to the embedding, is the first layer's input."""
    made = next((call.first_output for call in recording.of(embedding)), None)
    if made is None or made.value is None or flat(made.value).shape != first_BD.shape:
        return "the first layer is given another width than the embedding's"
    for call in recording.calls:
        seen = call.first_output
        if call.module is embedding or seen is None or seen.value is None or not (seen.floating and seen.shape):
            continue
        row = seen.value.reshape(-1, seen.shape[-1])[:1]
        if row.shape[1] != first_BD.shape[1] or not adds(flat(made.value), row, first_BD):
            continue
        for name, table in (*call.module.named_parameters(recurse=False), *call.module.named_buffers(recurse=False)):
            if table.ndim == 2 and table.shape[1] == row.shape[1]:
                at = (table.detach().cpu() == row).all(1).nonzero()
                if len(at):
                    return PositionTable(module=call.module, parameter=name, first=int(at[0]))
    return "no table of positions is added to the embeddings"


def _attention(record: LayerRecord, found: FoundPoints) -> FoundMatrices:
    given = _value_at(record, found["attn_in"])
    matrices: FoundMatrices = {f"W_{name.upper()}": _read(record, found[name], given) for name in ("q", "k", "v")}
    return {**matrices, "W_O": _written(record, found["z"], found["attn_out"])}


def _read(record: LayerRecord, place: object, given: Tensor | None) -> Matrix | str:
    """Return the map from attention's input to one of its points; the map before a norm of queries or keys."""
    if not isinstance(place, ModuleTensor) or place.heads is None:
        return place if isinstance(place, str) else NO_MAP
    call, heads, rotated = _call_of(record, place.module), place.heads, False
    normed = call.module not in _maps(record)
    if normed:
        call, heads, rotated = _behind(record, call, heads) or (call, heads, rotated)
    seen = next(iter(call.inputs.values()), None)
    if call.module not in _maps(record) or seen is None or seen.value is None or given is None:
        return NO_MAP
    if not same(flat(seen.value), flat(given)):
        return NO_MAP
    norm = _norm(record, seen.value, call)
    return Matrix(module=call.module, width=seen.shape[-1], heads=heads, norm=norm, normed=normed, rotated=rotated)


def _behind(record: LayerRecord, norm: Call, heads: Heads) -> tuple[Call, Heads, bool] | None:
    """Return the map whose columns a norm got, the heads among them, and whether the norm's input had other numbers at
    later positions: not a view of the map's output, though equal to it at position 0."""
    seen = next((seen for seen in norm.inputs.values() if seen.floating and seen.value is not None), None)
    if has_matrix(norm.module) or seen is None or seen.shape[0] != PROMPTS:
        return None
    target_BHD = heads.read(flat(kept(seen)))
    for call in (one for one in record.calls if one.module in _maps(record) and one.left < norm.entered):
        made = call.first_output
        if made is None or made.value is None or made.shape[0] != PROMPTS:
            continue
        index = columns_by_bits(target_BHD, flat(made.value))
        if index is not None:
            return call, Heads.of_index(distinct(index)), made.storage != seen.storage
    return None


def _written(record: LayerRecord, z: object, out: object) -> Matrix | str:
    if not isinstance(z, ModuleTensor) or z.heads is None:
        return z if isinstance(z, str) else NO_MAP
    made = _value_at(record, out)
    seen = _call_of(record, z.module).first_output
    if made is None or seen is None or not same(flat(made), flat(kept(seen))):
        return "what its map returns is not what the attention module returns"
    width = next(seen.shape[-1] for seen in _call_of(record, z.module).inputs.values() if seen.floating)
    return Matrix(module=z.module, width=width, heads=z.heads, ends=True)


def _mlp(record: LayerRecord, found: FoundPoints) -> FoundMatrices:
    post, pre = found["mlp_post"], found["mlp_pre"]
    out: Matrix | str = post if isinstance(post, str) else NO_MAP
    if isinstance(post, ModuleTensor):
        hidden = _value_at(record, post)
        assert hidden is not None
        out = Matrix(module=post.module, width=hidden.shape[-1])
    if not isinstance(post, ModuleTensor) or not isinstance(pre, ModuleTensor):
        why = pre if isinstance(pre, str) else str(out)
        return {"W_in": why, "W_gate": why, "W_out": out}
    return {**_first_maps(record, found, pre), "W_out": out}


def _first_maps(record: LayerRecord, found: FoundPoints, pre: ModuleTensor) -> FoundMatrices:
    """Return W_in and W_gate: the maps of the activation's input, and of the factor of its output."""
    given, hidden = _value_at(record, found["mlp_in"]), _value_at(record, found["mlp_post"])
    activated = _call_of(record, pre.module).first_output
    pieces = [] if given is None else _pieces(record, flat(given), _call_of(record, pre.module))
    before, after = _value_at(record, pre), None if activated is None else activated.value
    first = next((matrix for matrix, value in pieces if before is not None and same(value, flat(before))), None)
    if first is None or after is None or hidden is None:
        return {"W_in": NO_MAP, "W_gate": NO_MAP}
    if same(flat(after), flat(hidden)):
        return {"W_in": first, "W_gate": "this MLP has no gate"}
    for matrix, value in pieces:
        if value.shape == flat(after).shape and same(flat(after) * value, flat(hidden)):
            return {"W_in": matrix, "W_gate": first}
    return {"W_in": NO_MAP, "W_gate": NO_MAP}


def _pieces(record: LayerRecord, given_BD: Tensor, activation: Call) -> list[tuple[Matrix, Tensor]]:
    """Return the maps of the MLP's input, whole and as two halves, each with its output."""
    found = []
    for call in record.calls:
        seen, made = next(iter(call.inputs.values()), None), call.first_output
        if call.module not in _maps(record) or not _holds(seen, given_BD) or made is None or made.value is None:
            continue
        assert seen is not None and seen.value is not None
        whole = Matrix(module=call.module, width=seen.shape[-1], norm=_norm(record, seen.value, call))
        value = flat(made.value)
        found.append((whole, value))
        if value.shape[1] % 2 == 0:
            found += [(replace(whole, piece=(n, 2)), half) for n, half in enumerate(value.chunk(2, -1))]
    return found


def _holds(seen: RecordedTensor | None, given_BD: Tensor) -> bool:
    return seen is not None and seen.value is not None and same(flat(seen.value), given_BD)


def _maps(record: LayerRecord) -> set[nn.Module]:
    return set(linears(record.span.module))


def _call_of(record: LayerRecord, module: nn.Module) -> Call:
    return next(call for call in record.calls if call.module is module)


def _value_at(record: LayerRecord, place: object) -> Tensor | None:
    """Return the recorded tensor at a module's border, None for another place."""
    if not isinstance(place, ModuleTensor):
        return None
    call = _call_of(record, place.module)
    seen = call.inputs[place.key] if place.side == "input" else call.outputs[place.key]  # type: ignore[index]
    return seen.value


def _norm(record: LayerRecord, value: Tensor, before: Call) -> nn.Module | None:
    """Return the module without matrices that made `value` from a residual, None where the map reads that itself."""
    for call, made in reversed(record.outputs):
        given = next((shaped for seen in call.inputs.values() if (shaped := record.shaped(seen)) is not None), None)
        changed = given is not None and not same(given, made)
        if call.left < before.entered and changed and not has_matrix(call.module) and same(flat(made), flat(value)):
            return call.module
    return None


def _by_head(record: LayerRecord, place: ModuleTensor, heads: Heads) -> Tensor:
    value = _value_at(record, place)
    assert value is not None
    return heads.read(flat(value))


def _unit(value_BHD: Tensor) -> Tensor:
    value = value_BHD.double()
    lengths: Tensor = value.norm(dim=-1, keepdim=True)
    return value / lengths.clamp_min(1e-30)
