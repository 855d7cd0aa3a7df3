"""Engines whose layers stream, beside ones whose weights are all there; and a slow copy engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from djinn_jupyter.engine.memory.weights.copy_engine import BlockCopy, CopyTotals
from djinn_jupyter.engine.memory.weights.residence import UNKNOWN, Placement
from djinn_jupyter.engine.memory.weights.streamed import StreamedWeights, sizes_of
from djinn_jupyter.engine.model.discovery.layer_list import find_stack
from djinn_jupyter.engine.model.discovery.recording import spread_tokens
from djinn_jupyter.engine.model.loading.load import LoadedModel
from djinn_jupyter.engine.process.build import build_engine
from djinn_jupyter.engine.process.weight_plan import Settled
from djinn_jupyter.engine.store.identity import identity_of
from djinn_jupyter.engine.system.config import EngineConfig
from djinn_jupyter.files import Stamps
from tests.device import DEVICE
from tests.engine.desk import PAGE, Desk
from tests.families import build

PAGES = 256 << 20


def streamed_weights(
    model: Any,
    streaming: tuple[int, ...] | None = None,
    slots: int = 2,
    copy_engine: Any = None,
    stamps: Stamps = UNKNOWN,
    device: torch.device = DEVICE,
) -> StreamedWeights:
    """The weights of a model of which these layers stream; all of them where none are named."""
    with torch.inference_mode():
        stack, _ = find_stack(model, spread_tokens(model, 5)[None])
    chosen = tuple(range(len(stack.layers))) if streaming is None else streaming
    sizes = sizes_of(model, stack.layers)
    placement = Placement(sizes=sizes, allowed=sizes.total, streaming=chosen, slots=slots)
    return StreamedWeights(model, stack.layers, placement, device, copy_engine, stamps)


def streamed_desk(
    family: str,
    streaming: tuple[int, ...] | None = None,
    slots: int = 2,
    copy_engine: Any = None,
    dtype: torch.dtype = torch.float32,
    layers: int = 8,
) -> Desk:
    model = build(family, dtype=dtype, layers=layers)
    identity = identity_of(model, DEVICE)
    weights = streamed_weights(model, streaming, slots, copy_engine)
    desk = Desk.__new__(Desk)
    desk.events = []
    desk.hears = desk.events.append
    desk.engine = build_engine(
        EngineConfig(model="tiny", page_positions=PAGE),
        LoadedModel(model=model, tokenizer=None, name="tiny", revision=None, dtype=model.dtype, device=DEVICE),
        lambda event: desk.hears(event),
        lambda text: None,
        Settled(identity=identity, weights=weights, page_bytes=PAGES),
    )
    return desk


def streamed(desk: Desk) -> StreamedWeights:
    return desk.engine.weights


def moved_by(desk: Desk, act: Callable[[], Any]) -> int:
    """Bytes that really crossed while this was done, and until nothing was on its way."""
    weights = streamed(desk)
    arrive(weights)
    before = weights.statistics().bytes_moved
    act()
    arrive(weights)
    return weights.statistics().bytes_moved - before


def arrive(weights: StreamedWeights) -> None:
    """Return once no copy is under way. On CUDA `settle` has the device wait, and here the host does."""
    weights.ring.settle()
    if DEVICE.type == "cuda":
        torch.cuda.synchronize(DEVICE)


class SlowCopyEngine:
    """Copies only when a caller waits for them, in order; until then their targets hold NaN in every float."""

    def __init__(self) -> None:
        self.waiting: list[list[tuple[Tensor, Tensor]]] = []
        self.nbytes = self.passes = 0

    def submit(self, transfers: Any, after: Any, block: int | None = None) -> Any:
        for _, target in transfers:
            target.fill_(0xFF)
        self.waiting.append(transfers)
        return transfers

    def wait(self, arrival: Any) -> None:
        while any(transfers is arrival for transfers in self.waiting):
            for source, target in self.waiting.pop(0):
                target.copy_(source)
                self.nbytes += target.numel()

    def mark(self) -> None:
        return None

    def passing(self) -> Any:
        self.passes += 1
        return nullcontext()

    def fetching(self) -> Any:
        return nullcontext()

    def statistics(self) -> CopyTotals:
        return CopyTotals(nbytes=self.nbytes, copy_seconds=0.0, waited_seconds=0.0, pass_seconds=1e-3 * self.passes)

    def copies(self, since: int) -> list[BlockCopy]:
        return []

    def computed_during(self, copies: Sequence[BlockCopy]) -> list[float]:
        return [0.0] * len(copies)
