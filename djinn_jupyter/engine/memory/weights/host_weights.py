"""The distinct weights of a model: tied parameters are one weight, with every parameter that shares it.

A weight that is away is replaced by a `placeholder` with the right shape, dtype and device, one element of
memory, and NaN as its values, so that computing with absent weights gives NaN and never stale bits.
"""

from __future__ import annotations

import ctypes
import os
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from djinn_jupyter.engine.system.host_memory import cut, pinned_if_allowed
from djinn_jupyter.errors import StorageFailed
from djinn_jupyter.files import Stamps, first_change, stamp_of
from djinn_jupyter.machine import main_memory


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Weight:
    """One tensor and the parameters that share it. `name` is its first path in the model."""

    name: str
    parameters: tuple[nn.Parameter, ...]

    @property
    def tensor(self) -> Tensor:
        return self.parameters[0].data

    @property
    def nbytes(self) -> int:
        return sum(part.numel() * part.element_size() for part in plain_parts(self.parameters[0]))

    def put(self, tensor: Tensor) -> None:
        """Set the parameters' data to `tensor`, of the same shape, dtype and device."""
        for parameter in self.parameters:
            parameter.data = tensor

    def leave(self) -> None:
        """Replace the tensor by its `placeholder`."""
        self.put(placeholder(self.tensor))


def weights_of(module: nn.Module) -> tuple[Weight, ...]:
    """Return the weights of all parameters within `module`, in the order of the module tree."""
    found: dict[tuple[object, ...], tuple[str, list[nn.Parameter]]] = {}
    for name, parameter in module.named_parameters():
        where = parameter.data_ptr() or id(parameter)  # no address on the meta device, of empty or packed tensors
        key = (where, parameter.shape, parameter.stride(), parameter.dtype)
        found.setdefault(key, (name, []))[1].append(parameter)
    return tuple(Weight(name=name, parameters=tuple(group)) for name, group in found.values())


def is_packed(weight: Tensor) -> bool:
    """True for weights that a library packs: no plain matrix of floating numbers of 16 bits or more."""
    return type(weight.data) is not Tensor or not weight.is_floating_point() or weight.dtype.itemsize == 1


def plain_parts(tensor: Any) -> list[Tensor]:
    """Return the plain tensors of which a tensor of another class is made, such as rounded weights and their scales."""
    if not is_traceable_wrapper_subclass(tensor):
        return [tensor]
    return [part for name in tensor.__tensor_flatten__()[0] for part in plain_parts(getattr(tensor, name))]


def buffer_bytes(module: nn.Module) -> int:
    """Return the bytes of the buffers within `module`, each counted once. They are small and stay on the device."""
    return sum({buffer.data_ptr(): buffer.nbytes for buffer in module.buffers()}.values())


def total_bytes(weights: Iterable[Weight]) -> int:
    return sum(weight.nbytes for weight in weights)


def placeholder(like: Tensor, device: torch.device | None = None) -> Tensor:
    """Return a tensor like `like` that is one expanded element: NaN, or the least number of a dtype without NaN."""
    least = float("nan") if like.is_floating_point() else torch.iinfo(like.dtype).min
    with torch.inference_mode(False):
        return torch.full((1,) * like.ndim, least, dtype=like.dtype, device=device or like.device).expand(like.shape)


def raw_sum(tensor: Tensor) -> int:
    """Return the sum of a tensor's bits read as integers, as a checksum. Reads it once, at memory speed."""
    wide = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return int(tensor.detach().view(wide[tensor.element_size()]).sum(dtype=torch.int64))


# Several weights in one flat run of bytes, so that one copy moves all of them. On the CPU a weight keeps its address
# modulo 512: matrix products take other code paths at other alignments, with other last bits (seen with MKL, where
# weights are mapped from files at multiples of 8 or 16). On CUDA every weight begins at a multiple of 512, as its
# allocator would place it.

ALIGNMENT = 512
HOST = torch.device("cpu")


@dataclass(frozen=True, slots=True, kw_only=True)
class FlatWeight:
    """The location of one weight in a flat run."""

    offset: int
    nbytes: int
    dtype: torch.dtype
    shape: torch.Size


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The parts of a flat run of `nbytes`, in the order of their weights."""

    parts: tuple[FlatWeight, ...]
    nbytes: int

    @classmethod
    def of(cls, weights: Sequence[Weight], device: torch.device = HOST) -> Layout:
        """Return the layout that contiguous weights on the host will have on `device`."""
        parts, end = [], 0
        for weight in weights:
            tensor = weight.tensor
            phase = tensor.data_ptr() % ALIGNMENT if device.type == "cpu" else 0
            if phase % tensor.element_size():
                phase = 0  # torch makes no views at such an address
            offset = -(-(end - phase) // ALIGNMENT) * ALIGNMENT + phase
            parts.append(FlatWeight(offset=offset, nbytes=weight.nbytes, dtype=tensor.dtype, shape=tensor.shape))
            end = offset + weight.nbytes
        return cls(parts=tuple(parts), nbytes=end)

    def views(self, buffer: Tensor) -> tuple[Tensor, ...]:
        """Return the weights as views of `buffer`, a `uint8[>= nbytes]`."""
        with torch.inference_mode(False):
            return tuple(
                buffer[part.offset : part.offset + part.nbytes].view(part.dtype).view(part.shape) for part in self.parts
            )


def flat_buffer(nbytes: int, device: torch.device) -> Tensor:
    """Return an undefined `uint8[nbytes]`, beginning at a multiple of ALIGNMENT; it may be written in any mode."""
    with torch.inference_mode(False):
        raw = torch.empty(nbytes + ALIGNMENT, dtype=torch.uint8, device=device)
        return raw.narrow(0, -raw.data_ptr() % ALIGNMENT, nbytes)


def raw_bytes(tensor: Tensor) -> Tensor:
    """Return a contiguous tensor as `uint8[nbytes]`, sharing its memory."""
    with torch.inference_mode(False):
        return tensor.detach().reshape(-1).view(torch.uint8)


def return_freed(device: torch.device) -> None:
    """Return freed memory to the system: torch's CUDA allocator and glibc's keep it otherwise."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
        return
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


# Weights in host memory: the source of a weight's bytes for loading, sleep and streaming. A weight on the host is
# either its bytes as loaded (a piece of a safetensors file, read through the page cache and not part of any process's
# own memory) or a place in a flat buffer, which is pinned where a CUDA device reads from it.

HEADROOM = 9 / 10  # of the host's free memory


class HostRun:
    """The bytes of some weights on the host, in the layout of a device's flat buffer. Read-only once made.

    `pieces` is one `uint8` tensor for each part, or a single one for all of them, gaps included.
    """

    def __init__(self, layout: Layout, pieces: Sequence[Tensor]) -> None:
        self.layout = layout
        self.pieces = tuple(pieces)
        offsets = (0,) if len(self.pieces) == 1 else tuple(part.offset for part in layout.parts)
        self._offsets, self._sources = _joined(offsets, self.pieces)

    @classmethod
    def as_loaded(cls, weights: Sequence[Weight], device: torch.device = HOST) -> HostRun:
        """Return a run of the weights in place, in host memory or mapped files, without a copy, for `device`."""
        return cls(Layout.of(weights, device), [raw_bytes(weight.tensor) for weight in weights])

    @classmethod
    def pinned(cls, weights: Sequence[Weight], device: torch.device) -> HostRun:
        """Return a run in its own flat pinned buffer, filled weight by weight, from the host or its CUDA device."""
        layout = Layout.of(weights, device)
        buffer = pinned_if_allowed(layout.nbytes)
        for part, weight in zip(layout.parts, weights, strict=True):
            for piece in cut(part.offset, part.nbytes):
                buffer[piece].copy_(raw_bytes(weight.tensor)[piece.start - part.offset : piece.stop - part.offset])
        return cls(layout, [buffer])

    def views(self) -> tuple[Tensor, ...]:
        """Return the weights on the host, in place."""
        if len(self.pieces) == 1:
            only = self.pieces[0]
            whole = len(self.layout.parts) == 1 and only.numel() == self.layout.parts[0].nbytes
            return (_shaped(only, self.layout.parts[0]),) if whole else self.layout.views(only)
        return tuple(_shaped(piece, part) for piece, part in zip(self.pieces, self.layout.parts, strict=True))

    @property
    def moved(self) -> int:
        """Bytes that one copy of the run moves."""
        return sum(piece.numel() for piece in self.pieces)

    def transfers(self, target: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Return the copies (source, target), of equal sizes, that fill the flat buffer `target`. Bytes adjacent on
        both sides are one copy, except across pieces of pinned memory."""
        return [
            (source[piece.start - offset : piece.stop - offset], target[piece])
            for offset, source in zip(self._offsets, self._sources, strict=True)
            for piece in cut(offset, source.numel())
        ]


def _shaped(piece: Tensor, part: FlatWeight) -> Tensor:
    with torch.inference_mode(False):
        return piece.view(part.dtype).view(part.shape)


def _joined(offsets: Sequence[int], pieces: Sequence[Tensor]) -> tuple[tuple[int, ...], tuple[Tensor, ...]]:
    """Return offsets and pieces, merging pieces that are adjacent on both sides. Nothing is copied, so the caller must
    keep the given pieces."""
    begins: list[int] = []
    sources: list[Tensor] = []
    for offset, piece in zip(offsets, pieces, strict=True):
        before = sources[-1] if sources else None
        if before is not None and begins[-1] + before.numel() == offset and _follows(before, piece):
            sources[-1] = _bytes_at(before.data_ptr(), before.numel() + piece.numel())
        else:
            begins.append(offset)
            sources.append(piece)
    return tuple(begins), tuple(sources)


def _follows(before: Tensor, piece: Tensor) -> bool:
    return before.data_ptr() + before.numel() == piece.data_ptr()


def _bytes_at(address: int, nbytes: int) -> Tensor:
    with torch.inference_mode(False):
        return torch.frombuffer((ctypes.c_uint8 * nbytes).from_address(address), dtype=torch.uint8)


def has_room_for(nbytes: int) -> bool:
    """True if the host can spare `nbytes` permanently."""
    return nbytes < HEADROOM * main_memory().available


MAPS = Path("/proc/self/maps")
_WEIGHTS = (".safetensors", ".bin")


class MappedFiles:
    """The files of a model, with their `stamps` at loading. Those from which weights are mapped are compared: bytes
    written there become another weight during a pass, and a read beyond the end of a truncated file ends the process
    (SIGBUS). A context of a pass: compared before and after it."""

    def __init__(self, stamps: Stamps) -> None:
        self.stamps = stamps
        mapped = [path for path, stamp in stamps.items() if stamp is not None and path.endswith(_WEIGHTS)]
        if (maps := _lines()) is not None:
            paths = {line.split(maxsplit=5)[5] for line in maps if "/" in line}
            mapped = [path for path in mapped if os.path.realpath(path) in paths]
        self.renew({path: stamps[path] for path in mapped})

    def now(self) -> Stamps:
        """Return the present stamps."""
        return {path: stamp_of(path) for path in self._mapped}

    def renew(self, stamps: Stamps) -> None:
        """Take the present stamps: the weights were loaded again."""
        self._mapped = dict(stamps)

    @property
    def changed(self) -> str | None:
        """Return in words the change of a file; None where all are unchanged."""
        return first_change(self._mapped)

    def require_unchanged(self) -> None:
        """Raise StorageFailed where a file has changed: its bytes would be the weights."""
        if (changed := self.changed) is not None:
            raise StorageFailed(
                f"{changed}, and this engine computes from that file: put the file back that was there, or stop this "
                "engine and load again."
            )

    def __enter__(self) -> None:
        self.require_unchanged()

    def __exit__(self, *_: object) -> None:
        self.require_unchanged()


def bytes_in_memory(pieces: Iterable[Tensor]) -> int | None:
    """Return how many of these bytes are this process's own memory: converted, drawn or pinned, and not part of a file.
    None where the system has no list of mappings."""
    lines = _lines()
    if lines is None:
        return None
    files = sorted(_range(line) for line in lines if line.split()[4] != "0")
    return sum(piece.numel() for piece in pieces if not _within(files, piece.data_ptr()))


def _lines() -> list[str] | None:
    try:
        return MAPS.read_text().splitlines()
    except OSError:
        return None


def _range(line: str) -> tuple[int, int]:
    begin, end = line.split(maxsplit=1)[0].split("-")
    return int(begin, 16), int(end, 16)


def _within(ranges: list[tuple[int, int]], address: int) -> bool:
    found = bisect_right(ranges, (address, 1 << 64)) - 1
    return found >= 0 and ranges[found][0] <= address < ranges[found][1]
