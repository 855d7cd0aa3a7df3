"""The decision at start-up to decode by CUDA graphs or not, and the note that says which."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from djinn_jupyter.engine.config import EngineConfig
from djinn_jupyter.engine.forward.decode_graphs import DecodeGraphs
from djinn_jupyter.engine.memory.weights.residence import Weights
from djinn_jupyter.engine.model.discovery.model_map import Anatomy
from djinn_jupyter.engine.system.cuda_graphs import CudaGraphs, GraphRecorder
from djinn_jupyter.errors import ModelDoesNotFit, ModelRefused, UsageError

NO_MEMORY = "no memory for its graphs so far; it is recorded when there is some"
WITHOUT = "load it without --cuda-graphs"


def recorder_on(device: torch.device) -> GraphRecorder:
    """Return the recorder of a GPU. Raises UsageError for another device, before anything is loaded."""
    if device.type != "cuda":
        raise UsageError(f"CUDA graphs need a GPU, and {device} is none: {WITHOUT}.")
    return CudaGraphs(device)


def graphs_for(config: EngineConfig, anatomy: Anatomy, weights: Weights, recorder: GraphRecorder) -> DecodeGraphs:
    """Return the graphs of a model whose weights stay where they are. Raises ModelDoesNotFit for others."""
    if weights.streamed:
        raise ModelDoesNotFit(
            f"CUDA graphs keep the addresses of the weights, and layers of {config.model} stream: {WITHOUT}, or allow "
            "more with --device-memory."
        )
    return DecodeGraphs(anatomy, recorder)


def notes_on(graphs: DecodeGraphs | None, name: str) -> tuple[str, ...]:
    """Return notes on the graphs that the self-test recorded. Raises ModelRefused where it recorded none."""
    if graphs is None:
        return ()
    graphs.count_anew()
    reasons = tuple(_reasons(graphs))
    if not graphs.recorded:
        raise ModelRefused(f"No layer of {name} can run by CUDA graphs: {'; '.join(reasons)}. {WITHOUT.capitalize()}.")
    layers = graphs.recorded + len(graphs.plain) + len(graphs.postponed)
    others = f"; not {'; nor '.join(reasons)}" if reasons else ""
    return (f"Decode steps run {graphs.recorded} of {layers} layers by CUDA graphs{others}.",)


def _reasons(graphs: DecodeGraphs) -> Iterator[str]:
    told = {**graphs.plain, **dict.fromkeys(graphs.postponed, NO_MEMORY)}
    for reason in dict.fromkeys(told.values()):
        layers = [str(index) for index, why in told.items() if why == reason]
        shown = ", ".join(layers[:8]) + (f" and {len(layers) - 8} more" if len(layers) > 8 else "")
        yield f"layer{'s' if len(layers) > 1 else ''} {shown} ({reason})"
