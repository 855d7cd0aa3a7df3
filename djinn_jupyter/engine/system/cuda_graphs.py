"""Recording of kernels as CUDA graphs: on a stream of its own, into one pool of memory. Knows no model."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

import torch


class Graph(Protocol):
    """Recorded kernels with the addresses that they had."""

    def replay(self) -> None:
        """Queue the kernels on the current stream."""


class GraphRecorder(Protocol):
    """Records what the calling thread computes between `begin` and `end`, both within a block of `recording`."""

    def recording(self) -> AbstractContextManager[None]: ...

    def begin(self) -> None: ...

    def end(self) -> Graph: ...


class CudaGraphs:
    """The recorder of a GPU. Nothing that is recorded is computed before its replay.

    Graphs share a pool of memory: what one leaves for another must be kept by a reference, or used before any other
    graph is replayed. Other threads may copy and allocate meanwhile, on streams of their own; a wait for the whole
    device would spoil the record. The collector is off, because it may free a tensor of another stream in the midst.
    """

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device)
        self._pool = torch.cuda.graph_pool_handle()
        self._graph: torch.cuda.CUDAGraph | None = None

    @contextmanager
    def recording(self) -> Iterator[None]:
        computing = torch.cuda.current_stream(self._stream.device)
        self._stream.wait_stream(computing)
        collected = gc.isenabled()
        gc.disable()
        try:
            with torch.cuda.stream(self._stream):
                yield
        finally:
            if collected:
                gc.enable()
            computing.wait_stream(self._stream)

    def begin(self) -> None:
        self._graph = torch.cuda.CUDAGraph()
        self._graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")

    def end(self) -> Graph:
        graph, self._graph = self._graph, None
        assert graph is not None
        graph.capture_end()
        return graph
