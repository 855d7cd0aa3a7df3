"""A double of a GPU's graphs that works everywhere: a record keeps its kernels and their tensors, and a replay runs the
same kernels on the same tensors. Like a GPU's it repeats none of the Python around them, and leaves no results before
its first replay."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from djinn_jupyter.engine.system.arrays import tensors_within
from djinn_jupyter.parallel.graphs import CudaGraphs
from tests.device import DEVICE


def waits_for_the_device(func: Any, args: Any) -> bool:
    """True for what no GPU's graph can hold: a value that the host reads, a shape that depends on values."""
    if func is torch.ops.aten.index.Tensor:
        return any(index is not None and index.dtype in (torch.bool, torch.uint8) for index in args[1])
    return bool({torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape} & set(func.tags))


class RecordedGraph(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self._calls: list[tuple[Any, Any, Any, Any]] = []
        self._fresh: list[Tensor] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if waits_for_the_device(func, args):
            raise RuntimeError("operation not permitted when stream is capturing\nand more lines")
        made = func(*args, **kwargs)
        self._calls.append((func, args, kwargs, made))
        given = {_storage(tensor) for tensor in tensors_within([args, kwargs])}
        self._fresh += [tensor for tensor in tensors_within([made]) if _storage(tensor) not in given]
        return made

    @torch.inference_mode()
    def replay(self) -> None:
        for func, args, kwargs, made in self._calls:
            for at, again in zip(tensors_within([made]), tensors_within([func(*args, **kwargs)]), strict=True):
                if again.data_ptr() != at.data_ptr():
                    at.copy_(again)

    def forget_results(self) -> None:
        for tensor in self._fresh:
            if tensor.is_floating_point():
                tensor.fill_(float("nan"))


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


class RecordedGraphs:
    """The double's recorder. `begun` counts its records."""

    def __init__(self) -> None:
        self.begun = 0
        self._open: RecordedGraph | None = None

    @contextmanager
    def recording(self) -> Iterator[None]:
        assert self._open is None
        yield
        assert self._open is None, "a record was left open"

    def begin(self) -> None:
        assert self._open is None
        self.begun += 1
        self._open = RecordedGraph()
        self._open.__enter__()

    def end(self) -> RecordedGraph:
        graph, self._open = self._open, None
        graph.__exit__(None, None, None)
        graph.forget_results()
        return graph


class CountedGraphs(CudaGraphs):
    begun = 0

    def begin(self) -> None:
        self.begun += 1
        super().begin()


def a_recorder() -> RecordedGraphs | CountedGraphs:
    """Return the recorder of the GPU that the tests run on, else the double."""
    return CountedGraphs(DEVICE) if DEVICE.type == "cuda" else RecordedGraphs()
