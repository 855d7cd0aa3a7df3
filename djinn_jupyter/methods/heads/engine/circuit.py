"""A head's OV circuit: what attending to a token adds to the logits, by W_E W_V W_O W_U. The largest of its entries are
found in blocks; the matrix of all tokens by all tokens is never held.

Shapes: V tokens of the vocabulary, D features of the residual, d features of a head, n tokens at a time.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from typing import Final

import torch
from torch import Tensor

from djinn_jupyter.engine.model.hooks.taps import Tap
from djinn_jupyter.engine.passes.forward import Forward
from djinn_jupyter.engine.passes.weight_reader import WeightReader
from djinn_jupyter.engine.system.device import to_home
from djinn_jupyter.errors import UnknownSite
from djinn_jupyter.methods.heads.request import OVCircuit, VocabularyPair
from djinn_jupyter.wire.weights import WeightName

BLOCK: Final = 4 << 20  # numbers of a matrix that are held at a time
WIDEST: Final = 512  # features of a head, for the room of its matrices
CLOSE: Final = 1e-3  # of the largest entry: what enters the first layer is the embedding, but for a factor
PROBES: Final = 8  # tokens that show it


class HeadCircuit:
    """The OV circuit of one head. `factor` is what the model multiplies embeddings by before its first layer."""

    def __init__(self, forward: Forward, layer: int, head: int, vocabulary: int) -> None:
        self._forward, self._reader, self.layer, self.head = forward, WeightReader(forward), layer, head
        self.vocabulary = vocabulary
        self.notes: list[str] = []
        self.done, width = 0, forward.anatomy.hidden_size
        self.total = 2 * len(self._firsts(vocabulary, width)) + len(self._firsts(vocabulary, vocabulary))

    @property
    def nbytes(self) -> int:
        """The bytes of both factors of the circuit, and of a block of each kind."""
        width = min(self._forward.anatomy.hidden_size, WIDEST)
        return 4 * (2 * self.vocabulary * width + 2 * min(BLOCK, self.vocabulary**2))

    def read(self, top: int, entered: Sequence[tuple[int, Tensor]]) -> Generator[None, None, OVCircuit]:
        """Return the circuit with its `top` largest entries; other jobs may run between blocks. `entered` are some
        tokens, each with what it is before the first layer, its position's row subtracted. Raises UnknownSite where the
        model has no such matrices."""
        value_Dd, out_dD, folds = self._reader.value_circuit(self.layer, self.head)
        self.notes.append(
            "the gain of the norm before attention is folded in" if folds else "no norm stands before the values"
        )
        left_Vd = yield from self._gathered(self._read_in(value_Dd), 0)
        left_Vd = left_Vd * self._factor(entered)
        right_dV = yield from self._gathered(self._read_out(out_dD), 1)
        pairs: list[tuple[float, int, int]] = []
        firsts = self._firsts(len(left_Vd), right_dV.shape[1])
        for start in firsts:
            pairs = _largest(left_Vd[start : start + firsts.step] @ right_dV, start, pairs, top)
            self.done += 1
            yield None
        values = torch.linalg.eigvals((right_dV @ left_Vd).cpu().double())
        size = float(values.abs().sum())
        return OVCircuit(
            pairs=tuple(VocabularyPair(given=given, made=made, value=value) for value, given, made in pairs),
            copying=float(values.real.sum()) / size if size else 0.0,
            notes=tuple(self.notes),
        )

    def _gathered(self, blocks: Iterator[Tensor], axis: int) -> Generator[None, None, Tensor]:
        found = []
        for block in blocks:
            found.append(to_home(block, self._forward.device))
            self.done += 1
            yield None
        return torch.cat(found, axis)

    def _read_in(self, value_Dd: Tensor) -> Iterator[Tensor]:
        """Yield W_E W_V by blocks of tokens, [n, d]."""
        for some in self._blocks():
            rows_nD = self._reader.read(WeightName(name="W_E"), some, None, fold_norm=False).float()
            if rows_nD.shape[1] != len(value_Dd):
                raise UnknownSite("the embedding has another width than the residual")
            yield rows_nD @ value_Dd.to(rows_nD.device)

    def _read_out(self, out_dD: Tensor) -> Iterator[Tensor]:
        """Yield W_O W_U by blocks of tokens, [d, n], with the gains of the norms between them folded in."""
        taps = self._forward.anatomy.taps
        final, post = taps["ln_final", None], taps["attn_out_post", self.layer]
        folds = isinstance(final, Tap) and final.module is not None
        self.notes.append("that of the final norm too" if folds else "no single final norm is folded in")
        if isinstance(post, Tap):
            self.notes.append("and that of the norm behind attention")
        elif " times " in post:
            self.notes.append(f"{post}, and the factor is left out")
        for some in self._blocks():
            columns_Dn = self._reader.read(WeightName(name="W_U"), None, some, fold_norm=folds).float()
            if isinstance(post, Tap) and post.module is not None:
                columns_Dn = self._reader.folded(post.module, columns_Dn)
            yield out_dD.to(columns_Dn.device) @ columns_Dn

    def _blocks(self) -> Iterator[list[int]]:
        """Yield the tokens of each block of W_E or W_U."""
        firsts = self._firsts(self.vocabulary, self._forward.anatomy.hidden_size)
        for start in firsts:
            yield list(range(start, min(self.vocabulary, start + firsts.step)))

    def _firsts(self, count: int, width: int) -> range:
        """Return the first row of each block of a matrix of so many rows."""
        return range(0, count, max(1, BLOCK // width))

    def _factor(self, entered: Sequence[tuple[int, Tensor]]) -> float:
        """Return the factor from embeddings to what enters the first layer; 1, with a note, where there is none."""
        tokens = [token for token, _ in entered]
        rows_nD = self._reader.read(WeightName(name="W_E"), tokens, None, fold_norm=False).double().cpu()
        given_nD = torch.stack([value_D.double().cpu() for _, value_D in entered])
        factor = float((rows_nD * given_nD).sum() / rows_nD.square().sum())
        if (given_nD - factor * rows_nD).abs().max() > CLOSE * given_nD.abs().max():
            self.notes.append("what stands between the embedding and the first layer is left out")
            return 1.0
        if abs(factor - 1) <= CLOSE:
            return 1.0
        self.notes.append(f"embeddings times {factor:.6g}, as the model scales them")
        return factor


def _largest(
    block_nV: Tensor, first: int, pairs: list[tuple[float, int, int]], top: int
) -> list[tuple[float, int, int]]:
    """Return the largest entries of a block, whose rows begin at token `first`, and of the former `pairs`."""
    found = block_nV.flatten().topk(min(top, block_nV.numel()))
    width = block_nV.shape[1]
    more = [
        (value, first + at // width, at % width)
        for value, at in zip(found.values.tolist(), found.indices.tolist(), strict=True)
    ]
    return sorted([*pairs, *more], key=lambda one: (-one[0], *one[1:]))[:top]
