"""Reads the matrices of a model by name. Each is checked at its first read: it must make its module's output.

Shapes: M [input features, output features], as `x @ M`; H heads, d features of a head, D of the residual.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.func import functional_call

from djinn_jupyter.engine.memory.weights.host_weights import is_packed
from djinn_jupyter.engine.model.discovery.matrices import Matrix
from djinn_jupyter.engine.model.discovery.recording import embedding_weight
from djinn_jupyter.engine.model.hooks.layout import Heads
from djinn_jupyter.engine.model.hooks.taps import Tap
from djinn_jupyter.engine.passes.forward import Forward
from djinn_jupyter.errors import UnknownSite, UsageError
from djinn_jupyter.units import spell_bytes
from djinn_jupyter.wire.weights import MODEL_WEIGHTS, WeightName

MOST_BYTES: Final = 256 << 20
PROBES: Final = 4  # random inputs of a check
LOGITS: Final = 4096  # of a part of the vocabulary, whose columns of W_U are fp32 at a time
FAR: Final = 100.0  # beside which a norm's epsilon is nothing
FOLDED: Final = torch.float32
Indices = Sequence[int] | None
Fold = Callable[[Tensor], Tensor]


class WeightReader:
    """The matrices of one model. Its weights are awake when they are read."""

    def __init__(self, forward: Forward) -> None:
        self._forward = forward
        self._known: dict[nn.Module, tuple[str, bool]] = {}

    @torch.inference_mode()
    def read(self, name: WeightName, rows: Indices, columns: Indices, *, fold_norm: bool) -> Tensor:
        """Return a matrix, or its chosen part. Raises UnknownSite where the model has none, UsageError for a missing or
        too large part, or where no norm can be folded."""
        if fold_norm and name.name not in ("W_U", "W_Q", "W_K", "W_V", "W_OV", "W_in", "W_gate"):
            raise UsageError(f"A norm is folded into a matrix that reads what it returns; {name.name} is none.")
        if name.name in MODEL_WEIGHTS:
            if name.name == "W_E":
                return self._embedding(name, rows, columns)
            if name.name == "W_U":
                return self._unembedding(name, rows, columns, fold_norm=fold_norm)
            return _chosen(name, self._positions(), rows, columns, by_row=True)
        if name.name in ("W_OV", "W_QK"):
            return self._product(name, rows, columns, fold_norm=fold_norm)
        place = self._place(name.name, name.layer or 0)
        matrix = self._matrix(place.module, place.width, name)
        fold = self._fold(place.norm, name) if fold_norm else None
        if place.heads is not None:
            return _of_heads(name, matrix, place.heads, rows, columns, ends=place.ends, fold=fold)
        number, pieces = place.piece
        part = matrix.chunk(pieces, 1)[number]
        return _chosen(name, part, rows, columns, by_row=name.name == "W_out", fold=fold)

    @torch.inference_mode()
    def behind_neurons(self, layer: int) -> Tensor:
        """Return all of W_out of a layer, [neurons, D]. Raises UnknownSite where the model has none."""
        place = self._place("W_out", layer)
        return self._matrix(place.module, place.width, WeightName(name="W_out", layer=layer))

    @torch.inference_mode()
    def norm_before(self, names: Sequence[str], layer: int) -> tuple[Tensor, Tensor, bool]:
        """Return the gain and the shift of the norm before the first of these maps that has one, float32 [D], and
        whether it subtracts the mean. Raises UnknownSite where there is none."""
        places = (self._forward.anatomy.matrices[layer][name] for name in names)
        norm = next((one.norm for one in places if isinstance(one, Matrix) and one.norm is not None), None)
        if norm is None:
            raise UnknownSite(f"No norm is known before {names[0]}.{layer} here.")
        normed, weights = self._normed(norm), self._forward.weights.values_of(norm)
        like = torch.zeros((self._forward.anatomy.hidden_size, 1), device=next(iter(weights.values())).device)
        gain_D, mean = _gain(normed, like, WeightName(name=names[0], layer=layer))
        return gain_D.float(), normed(like.mT)[0].float(), mean

    @torch.inference_mode()
    def value_biases(self, layer: int, *, norm_folded: bool) -> Tensor:
        """Return the bias of the map of values, [heads of values, d]; with `norm_folded` plus its product with the bias
        of the norm before it. Raises UnknownSite where no single map makes the values."""
        place = self._place("W_V", layer)
        values = self._values(place.module, WeightName(name="W_V", layer=layer))
        given_D = torch.zeros(place.width, device=next(iter(values.values())).device)
        if norm_folded and place.norm is not None:
            given_D = self._normed(place.norm)(given_D[None])[0]
        weight = next(one for one in values.values() if one.ndim == 2)
        made: Tensor = functional_call(place.module, values, (given_D.to(weight)[None, None],))[0, 0]
        assert place.heads is not None
        return made[place.heads.columns_HD().to(made.device)]

    @torch.inference_mode()
    def added_to_logits(self, direction_D: Tensor) -> tuple[Iterator[Tensor], bool]:
        """Return what a direction of the residual adds to the logits of W_U, fp32 in parts of the vocabulary, and
        whether the final norm is folded into it: its gain, and its mean where it subtracts one, without its factor.
        Raises UnknownSite where the model has no W_U for values of the residual."""
        head, norm, matrix = self._before_logits(name := WeightName(name="W_U"))
        written_D = direction_D.float().to(matrix.device)
        if len(written_D) != len(matrix):
            raise UnknownSite("this model narrows the residual before its head")
        if norm is not None:
            gain_D, mean = _gain(self._normed(norm), matrix[:, :1], name)
            written_D = gain_D.float() * (written_D - written_D.mean() if mean else written_D)
            written_D = written_D * self._factor(head, norm)
        return _products(written_D, matrix), norm is not None

    # --- the whole model's ---------------------------------------------------------------------------------------

    def _before_logits(self, name: WeightName) -> tuple[nn.Module, nn.Module | None, Tensor]:
        """Return the module that makes the logits, the norm before it, and its matrix [D, vocabulary]."""
        model: Any = self._forward.model
        head, tap = model.get_output_embeddings(), self._forward.anatomy.taps["ln_final", None]
        if not isinstance(head, nn.Module):
            raise UnknownSite("There is no W_U here: no module makes the logits.")
        norm, width = (tap.module, tap.width) if isinstance(tap, Tap) else (None, None)
        return head, norm, self._matrix(head, width or self._forward.anatomy.hidden_size, name)

    def _unembedding(self, name: WeightName, rows: Indices, columns: Indices, *, fold_norm: bool) -> Tensor:
        """Return [D, vocabulary] that makes the logits of `ln_final`; before a bend, where the model bends them."""
        head, norm, matrix = self._before_logits(name)
        if fold_norm and norm is None:
            raise UsageError("No single norm stands before W_U, so none is folded into it.")
        fold = self._fold(norm, name) if fold_norm else None
        part = _chosen(name, matrix, rows, columns, by_row=False, fold=fold)
        factor = 1.0 if norm is None else self._factor(head, norm)
        return part if factor == 1.0 else part * factor

    def _factor(self, head: nn.Module, norm: nn.Module) -> float:
        """Return the factor that the model applies to its head's output; 1 where it does something else."""
        x_1D = _random(1, self._forward.anatomy.hidden_size, next(head.parameters()))
        logits, made = self._forward.lens(x_1D)[0].double(), head(norm(x_1D[None]))[0, 0].double()
        digits = 7 if x_1D.dtype in (torch.float32, torch.float64) else 4
        factor = float(f"{float((logits @ made) / (made @ made)):.{digits}g}")
        return factor if _alike(made * factor, logits, x_1D.dtype) and abs(factor - 1) > 1e-3 else 1.0

    def _embedding(self, name: WeightName, rows: Indices, columns: Indices) -> Tensor:
        """Return rows of [vocabulary, D]: the embedding module's own output for each token."""
        table: Any = embedding_weight(self._forward.model)
        tokens = _within(name, _units(name, rows, "rows"), len(table), "rows")
        column = _within(name, columns, table.shape[1], "columns")
        _require_room(name, 1, len(tokens), len(column), table.element_size())
        module: nn.Module = self._forward.model.get_input_embeddings()
        made: Tensor = module(torch.tensor(tokens, device=table.device))
        made = made[:, column] if columns is not None else made
        return made[0] if name.selector is not None and len(tokens) == 1 else made

    def _positions(self) -> Tensor:
        found = self._forward.anatomy.positions
        if isinstance(found, str):
            raise UnknownSite(f"There is no W_pos here: {found}.")
        table: Tensor = getattr(found.module, found.parameter)
        return table[found.first :]

    # --- a layer's -----------------------------------------------------------------------------------------------

    def _require_layer(self, name: str, layer: int) -> None:
        layers = len(self._forward.anatomy.matrices)
        if layer >= layers:
            raise UnknownSite(f"There is no {name}.{layer}: this model has layers 0..{layers - 1}.")

    def _place(self, name: str, layer: int) -> Matrix:
        self._require_layer(name, layer)
        found = self._forward.anatomy.matrices[layer][name]
        if isinstance(found, str):
            raise UnknownSite(f"There is no {name}.{layer} here: {found}.")
        return found

    def _product(self, name: WeightName, rows: Indices, columns: Indices, *, fold_norm: bool) -> Tensor:
        """Return W_V @ W_O or W_Q @ W_K.T of heads with their own keys and values, fp32 [heads, D, D]."""
        left_HDd, right_HdD = self._factors(name, fold_norm=fold_norm)
        left_HDd = left_HDd[:, _within(name, rows, left_HDd.shape[1], "rows")]
        right_HdD = right_HdD[:, :, _within(name, columns, right_HdD.shape[2], "columns")]
        _require_room(name, len(left_HDd), left_HDd.shape[1], right_HdD.shape[2], 4)
        made = left_HDd.float() @ right_HdD.float()
        return made[0] if len(left_HDd) == 1 and name.selector is not None else made

    def _factors(self, name: WeightName, *, fold_norm: bool) -> tuple[Tensor, Tensor]:
        """Return the two matrices of each head whose product is W_OV or W_QK, [heads, D, d] and [heads, d, D]."""
        layer = name.layer or 0
        first, second = ("W_V", "W_O") if name.name == "W_OV" else ("W_Q", "W_K")
        self._require_layer(name.name, layer)
        places = [self._place(one, layer) for one in (first, second)]
        groups = self._forward.anatomy.groups[layer]
        if isinstance(groups, str):
            raise UnknownSite(f"There is no {name.name}.{layer} here: {groups}.")
        if name.name == "W_QK" and any(place.normed for place in places):
            raise UnknownSite(f"There is no {name.name}.{layer} here: a norm stands behind the map of queries or keys.")
        heads = _within(name, name.selector, len(groups), "heads")
        read = [groups[head] for head in heads]
        chosen = (read, heads) if name.name == "W_OV" else (heads, read)
        parts = [
            self._heads(place, WeightName(name=one, layer=layer), part, fold_norm=fold_norm and one == "W_V")
            for one, place, part in zip((first, second), places, chosen, strict=True)
        ]
        return parts[0], parts[1] if name.name == "W_OV" else parts[1].mT

    @torch.inference_mode()
    def value_circuit(self, layer: int, head: int) -> tuple[Tensor, Tensor, bool]:
        """Return W_V of the value that a head reads and its W_O, fp32 [D, d] and [d, D], and whether the gain of a norm
        before the values is folded in. Raises UnknownSite where the model has no such matrices."""
        folds = self._place("W_V", layer).norm is not None
        name = WeightName(name="W_OV", layer=layer, selector=(head,))
        left_HDd, right_HdD = self._factors(name, fold_norm=folds)
        return left_HDd[0].float(), right_HdD[0].float(), folds

    @torch.inference_mode()
    def folded(self, norm: nn.Module, columns_DN: Tensor) -> Tensor:
        """Return columns behind a norm with its gain multiplied in, fp32 [D, n], minus the mean of each where the norm
        subtracts one. Raises UnknownSite for another module."""
        return self._fold(norm, WeightName(name="W_U"))(columns_DN)

    def _heads(self, place: Matrix, name: WeightName, heads: Sequence[int], *, fold_norm: bool) -> Tensor:
        assert place.heads is not None
        if max(heads) >= place.heads.heads:
            raise UnknownSite(f"There is no product of {name} here: it has another number of heads.")
        part = _heads_of(self._matrix(place.module, place.width, name), place.heads, heads, ends=place.ends)
        return self._fold(place.norm, name)(part) if fold_norm else part

    # --- checks --------------------------------------------------------------------------------------------------

    def _matrix(self, module: nn.Module, width: int, name: WeightName) -> Tensor:
        """Return M of a linear map, found once by comparing the module's output with each matrix that it has."""
        values = self._values(module, name)
        if module not in self._known:
            self._known[module] = self._search(module, values, width, name)
        key, turned = self._known[module]
        return values[key].T if turned else values[key]

    def _values(self, module: nn.Module, name: WeightName) -> dict[str, Tensor]:
        """Return a module's own parameters. Raises UnknownSite where a library keeps them packed."""
        values = self._forward.weights.values_of(module)
        if any(is_packed(value) for value in values.values()):
            raise UnknownSite(
                f"There is no {name} here: its weights are packed (docs/quantized.md); load the model that was "
                "quantized to read them."
            )
        return values

    def _search(self, module: nn.Module, values: dict[str, Tensor], width: int, name: WeightName) -> tuple[str, bool]:
        for key, value in values.items():
            if value.ndim != 2 or not value.is_floating_point() or width not in value.shape:
                continue
            x = _random(PROBES, width, value)
            made, constant = (functional_call(module, values, (given[None],))[0] for given in (x, torch.zeros_like(x)))
            for turned in (True, False):
                matrix = value.T if turned else value
                fits = matrix.shape == (width, made.shape[-1])
                if fits and _alike((x @ matrix + constant).double(), made.double(), value.dtype):
                    return key, turned
        raise UnknownSite(f"There is no {name} here: {type(module).__name__} is no product with one matrix.")

    def _fold(self, norm: nn.Module | None, name: WeightName) -> Fold:
        """Return the function that multiplies fp32 columns [..., D, n] by the gain of a norm, and subtracts the mean of
        each where the norm subtracts one."""
        if norm is None:
            raise UsageError(f"No norm stands before {name}, so none is folded into it.")
        normed = self._normed(norm)

        def folded(columns: Tensor) -> Tensor:
            gain_D, mean = _gain(normed, columns, name)
            made = gain_D.float()[:, None] * columns.float()
            return made - made.mean(-2, keepdim=True) if mean else made

        return folded

    def _normed(self, norm: nn.Module) -> Fold:
        """Return a norm's output for rows [n, D], fp64."""
        values = {key: value.float() for key, value in self._forward.weights.values_of(norm).items()}

        def normed(x_ND: Tensor) -> Tensor:
            made: Tensor = functional_call(norm, values, (x_ND[None],))[0]
            return made.double()

        return normed


@torch.inference_mode()
def _products(x_D: Tensor, matrix_DV: Tensor) -> Iterator[Tensor]:
    """Yield the products with the columns of a matrix, some at a time."""
    for at in range(0, matrix_DV.shape[1], LOGITS):
        yield x_D @ matrix_DV[:, at : at + LOGITS].float()


def _gain(normed: Callable[[Tensor], Tensor], matrix: Tensor, name: WeightName) -> tuple[Tensor, bool]:
    """Return a norm's gain, and whether it subtracts the mean. Raises UnknownSite where it does something else."""
    x_ND = FAR * _random(PROBES, matrix.shape[-2], matrix).float()
    signs_D = torch.where(torch.arange(x_ND.shape[1], device=x_ND.device) % 2 == 0, FAR, -FAR)[None]
    shift = normed(torch.zeros_like(signs_D))[0]
    for mean in (False, True):
        gain_D = (normed(signs_D)[0] - shift) / _plain(signs_D, mean=mean)[0]
        if _alike(_plain(x_ND, mean=mean) * gain_D + shift, normed(x_ND), torch.float32):
            return gain_D, mean
    raise UnknownSite(f"The norm before {name} is neither a LayerNorm nor an RMS norm, so it cannot be folded.")


def _plain(x_ND: Tensor, *, mean: bool) -> Tensor:
    x = x_ND.double()
    x = x - x.mean(-1, keepdim=True) if mean else x
    return x / x.square().mean(-1, keepdim=True).sqrt()


def _random(count: int, width: int, like: Tensor) -> Tensor:
    """Return [count, width], drawn by a fixed seed, in the dtype and on the device of `like`."""
    drawn = torch.randn((count, width), generator=torch.Generator().manual_seed(0))
    return drawn.to(device=like.device, dtype=like.dtype)


def _alike(one: Tensor, other: Tensor, dtype: torch.dtype) -> bool:
    """True where two results differ by no more than the rounding of `dtype`."""
    allowed = 1e-4 if dtype in (torch.float32, torch.float64) else 2e-2
    return bool((one - other).abs().max() <= allowed * other.abs().max())


# --- parts ---------------------------------------------------------------------------------------------------------


def _chosen(
    name: WeightName, matrix: Tensor, rows: Indices, columns: Indices, *, by_row: bool, fold: Fold | None = None
) -> Tensor:
    """Return rows and columns of a matrix; the selector of its name chooses those that are its units."""
    unit = _units(name, rows, "rows") if by_row else _units(name, columns, "columns")
    rows, columns = (unit, columns) if by_row else (rows, unit)
    part = _cropped(name, matrix[None], rows, columns, fold)[0]
    alone = name.selector is not None and len(name.selector) == 1
    return part.squeeze(0 if by_row else 1) if alone else part


def _cropped(name: WeightName, matrices: Tensor, rows: Indices, columns: Indices, fold: Fold | None) -> Tensor:
    """Return rows and columns of matrices [H, D, n]. Only those columns are folded; each needs all of its rows."""
    heads, height, width = matrices.shape
    row, column = _within(name, rows, height, "rows"), _within(name, columns, width, "columns")
    if fold is None:
        _require_room(name, heads, len(row), len(column), matrices.element_size())
    else:
        _require_room(name, heads, height, len(column), FOLDED.itemsize, "heads or columns")
    part = matrices[..., column] if columns is not None else matrices
    part = part if fold is None else fold(part)
    return part[:, row] if rows is not None else part


def _units(name: WeightName, crop: Indices, what: str) -> Indices:
    """Return the rows or columns chosen by the name, or beside it. Raises UsageError where both are given."""
    if name.selector is not None and crop is not None:
        raise UsageError(f"{name} names its {what} already; leave the others out.")
    return name.selector if crop is None else crop


def _of_heads(
    name: WeightName,
    matrix: Tensor,
    heads: Heads,
    rows: Indices,
    columns: Indices,
    *,
    ends: bool,
    fold: Fold | None,
) -> Tensor:
    chosen = _within(name, name.selector, heads.heads, "heads")
    part = _cropped(name, _heads_of(matrix, heads, chosen, ends=ends), rows, columns, fold)
    return part[0] if name.selector is not None and len(chosen) == 1 else part


def _heads_of(matrix: Tensor, heads: Heads, chosen: Sequence[int], *, ends: bool) -> Tensor:
    """Return [H, D, d] of the columns of heads; with `ends` [H, d, D] of their rows."""
    at_Hd = heads.columns_HD()[list(chosen)].to(matrix.device)
    return matrix[at_Hd] if ends else matrix[:, at_Hd].permute(1, 0, 2)


def _within(name: WeightName, wanted: Indices, size: int, what: str) -> list[int]:
    """Return the chosen indices of `size`; negative ones count from the end. Raises UsageError for one out of range."""
    if len(wanted or ()) > size:
        raise UsageError(f"{name.whole} has {size:,} {what}, and {len(wanted or ()):,} are asked for: name each once.")
    chosen = list(range(size)) if wanted is None else [index + size if index < 0 else index for index in wanted]
    beyond = next((index for index in wanted or () if not -size <= index < size), None)
    if beyond is not None:
        raise UsageError(f"There is no {what[:-1]} {beyond} in {name.whole}, which has {what} 0..{size - 1}.")
    return chosen


def _require_room(
    name: WeightName, heads: int, rows: int, columns: int, size: int, parts: str = "heads, rows or columns"
) -> None:
    nbytes = heads * rows * columns * size
    if nbytes > MOST_BYTES:
        raise UsageError(
            f"{name} is {spell_bytes(nbytes)}, and at most {spell_bytes(MOST_BYTES)} cross the wire at once: choose "
            f"{parts} of it."
        )
