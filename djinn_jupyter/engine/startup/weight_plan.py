"""The place of a model's weights: whole on the device, or streamed through a ring. Reports it before it loads.

The layers are found by running the model once on the host, where its weights are mapped from their files.

A conversion on loading is announced and not cached: a cache would be as large as the models, and has to know when it is
stale. Who loads a model often saves it once, converted, by transformers' `save_pretrained`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from djinn_jupyter.amounts import spell_bytes
from djinn_jupyter.engine.config import EngineConfig
from djinn_jupyter.engine.memory.kv.geometry import CacheGeometry, probe_geometry
from djinn_jupyter.engine.memory.weights.flat import HOST
from djinn_jupyter.engine.memory.weights.link import measure_link
from djinn_jupyter.engine.memory.weights.placement import Placement, fits, place
from djinn_jupyter.engine.memory.weights.residence import Reload, ResidentWeights, SplitWeights, Weights
from djinn_jupyter.engine.memory.weights.streamed import StreamedWeights, sizes_of
from djinn_jupyter.engine.model.discovery.layer_list import find_stack
from djinn_jupyter.engine.model.discovery.recording import LENGTHS, spread_tokens
from djinn_jupyter.engine.model.hooks.crossing import cross
from djinn_jupyter.engine.model.loading.load import LoadedModel, choose_devices, empty_model
from djinn_jupyter.engine.model.loading.other_parts import leave_out
from djinn_jupyter.engine.persistence.identity import ModelIdentity, identity_of
from djinn_jupyter.engine.startup.card_plan import CardPlan, plan_cards, spread
from djinn_jupyter.engine.startup.reserve import longest_prompt, pages_beside_a_pass
from djinn_jupyter.engine.system.device import free_for_pages
from djinn_jupyter.engine.system.device_limit import free_on
from djinn_jupyter.errors import ModelDoesNotFit, ModelRefused
from djinn_jupyter.machine import main_memory

Tell = Callable[[str], None]
DEMO_PAGE_POSITIONS = 16
LEAST_PAGES = 4  # the self-test has two sessions and a fork
DEVICE_HEADROOM = 9 / 10  # of a CUDA device's free memory, where no bound is given


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """A model's weights in place, the bytes left for pages, and the model's identity, read before its weights were
    placed. `cards` where the layers lie on several devices; `page_bytes` is then what is left on the fullest. `placed`:
    the sentence on several devices or ranks."""

    identity: ModelIdentity
    weights: Weights
    page_bytes: int
    cards: CardPlan | None = None
    placed: str | None = None


def foresee(config: EngineConfig, tell: Tell) -> Placement | None:
    """Estimate from the configuration alone which weights stay and which stream, and tell it; None where all fits.
    Raises ModelDoesNotFit before anything is loaded. An estimate, as the layers are found only when the model runs."""
    devices = choose_devices(config)
    device, allowed = devices[0], _allowed(config, devices[0])
    if config.tensor_parallel > 1 or (allowed is None and len(devices) == 1):
        return None
    model = leave_out(empty_model(config))
    layers: list[nn.Module] = max(
        (list(module) for module in model.modules() if isinstance(module, nn.ModuleList)),
        key=lambda group: sum(parameter.numel() for layer in group for parameter in layer.parameters()),
        default=[],
    )
    sizes = sizes_of(model, layers)
    if len(devices) > 1:
        plan_cards(sizes, _rooms(config, devices))
        return None
    assert allowed is not None
    if fits(sizes.total, allowed):
        if _bound(config, device) is None and not config.cuda_graphs:
            tell(_estimate(sizes.total, free_on(device, config.card_memory)))
        return None
    placement = place(sizes, allowed, link=measure_link(device, allowed))
    for line in placement.lines():
        tell(line)
    return placement


def _estimate(weights: int, free: int) -> str:
    size, room, left = map(spell_bytes, (weights, free, free - weights))
    return (
        f"{size} of weights in {room} that are free: at most {left} for pages, less what a pass takes, which is "
        "measured when the weights are there"
    )


def settle(
    config: EngineConfig,
    loaded: LoadedModel,
    tell: Tell = lambda line: None,
    reload: Reload | None = None,
    foreseen: Placement | None = None,
) -> Settled:
    """Bring a loaded model's weights to their place for computing. Raises ModelDoesNotFit and ModelRefused."""
    if config.devices is not None:
        return _settle_on_cards(config, loaded, tell, reload)
    allowed = _allowed(config, loaded.device)
    identity = identity_of(loaded.model, loaded.device)  # of the whole model: journals name it by that
    leave_out(loaded.model)
    total = sizes_of(loaded.model, ()).total
    if allowed is None or fits(total, allowed):
        weights = ResidentWeights(_on_device(loaded), loaded.device, reload, loaded.files)
        bound = _bound(config, loaded.device)
        pages = _pages_left(config, loaded, tell) if bound is None else bound - total
        return Settled(identity=identity, weights=weights, page_bytes=pages)
    with torch.inference_mode():
        stack, _ = find_stack(loaded.model, spread_tokens(loaded.model, LENGTHS[0])[None])
    sizes = sizes_of(loaded.model, stack.layers)
    link = measure_link(loaded.device, allowed) if foreseen is None else foreseen.link
    geometry = probe_geometry(loaded.model, HOST, page_positions(config))
    placement = place(sizes, allowed, link=link, pages=least_page_bytes(geometry))
    if foreseen is None or _layers(placement) != _layers(foreseen):
        for line in placement.lines():
            tell(line)
    streamed = StreamedWeights(loaded.model, stack.layers, placement, loaded.device, stamps=loaded.files)
    if streamed.held_on_host and loaded.device.type == "cpu":
        tell(
            f"{spell_bytes(streamed.held_on_host)} of what streams were converted or drawn while loading, and "
            "host memory holds them beside the slots; saved once as they are served, by model.save_pretrained(folder, "
            "save_original_format=False), they are mapped from the file"
        )
    return Settled(identity=identity, weights=streamed, page_bytes=placement.page_bytes)


def _pages_left(config: EngineConfig, loaded: LoadedModel, tell: Tell) -> int:
    """Return the bytes for pages beside weights that nothing bounds; on a GPU all but what a pass takes, measured. With
    CUDA graphs, which record memory of their own later, as on the CPU."""
    if loaded.device.type != "cuda" or config.cuda_graphs:
        return free_for_pages(loaded.device, config.card_memory)
    pages, reserve = pages_beside_a_pass(loaded.model, loaded.device, config.card_memory)
    positions = longest_prompt(loaded.model)
    tell(f"{spell_bytes(pages)} for pages; a pass over {positions} positions keeps {spell_bytes(reserve)} beside them")
    return pages


def _settle_on_cards(config: EngineConfig, loaded: LoadedModel, tell: Tell, reload: Reload | None) -> Settled:
    """Spread a loaded model's layers over the devices of `config`, and have passes cross from one to the next."""
    devices = choose_devices(config)
    identity = identity_of(loaded.model, loaded.device)
    leave_out(loaded.model)
    with torch.inference_mode():
        stack, _ = find_stack(loaded.model, spread_tokens(loaded.model, LENGTHS[0])[None])
    plan = plan_cards(sizes_of(loaded.model, stack.layers), _rooms(config, devices))
    if stack.mappings or stack.handed:
        raise ModelRefused(
            f"{loaded.name} cannot lie on several devices: its layers hand on more than the hidden state. Load it on "
            "one with --device."
        )
    tell(plan.line())
    try:
        spread(loaded.model, stack.layers, plan.homes)
    except torch.OutOfMemoryError as error:
        raise ModelDoesNotFit(
            f"{loaded.name} does not fit on {config.devices}: {str(error).splitlines()[0]} Name more devices."
        ) from error
    cross(stack.layers, plan.homes)
    weights = ResidentWeights(loaded.model, loaded.device, reload, loaded.files)
    return Settled(
        identity=identity, weights=weights, page_bytes=min(plan.free.values()), cards=plan, placed=plan.line()
    )


def settle_part(config: EngineConfig, loaded: LoadedModel, identity: ModelIdentity) -> Settled:
    """Bring rank 0's part of a split model to its device. Raises ModelDoesNotFit: parts do not stream."""
    allowed, total = _allowed(config, loaded.device), sizes_of(loaded.model, ()).total
    if allowed is not None and not fits(total, allowed):
        raise ModelDoesNotFit(
            f"The part of {loaded.name} on {loaded.device} takes {spell_bytes(total)}, of {spell_bytes(allowed)} "
            "there: split it among more ranks, or allow more with --device-memory; split layers do not stream."
        )
    weights = SplitWeights(_on_device(loaded), loaded.device, stamps=loaded.files)
    bound = _bound(config, loaded.device)
    pages = free_for_pages(loaded.device, config.card_memory) if bound is None else bound - total
    placed = f"Each layer is split among {identity.tensor_parallel} ranks; embedding, head and pages on {loaded.device}"
    return Settled(identity=identity, weights=weights, page_bytes=pages, placed=placed)


def _rooms(config: EngineConfig, devices: Sequence[torch.device]) -> list[tuple[torch.device, int]]:
    """Return the bytes for weights and pages on each of several devices."""
    rooms = []
    for device in devices:
        allowed = _allowed(config, device)
        rooms.append((device, main_memory().available // len(devices) if allowed is None else allowed))
    return rooms


def _layers(placement: Placement) -> tuple[tuple[int, ...], int]:
    """Return the layers that stream and the count of all, by which plans are compared: some bytes of alignment are
    known only when loaded."""
    return placement.streaming, len(placement.sizes.layers)


def page_positions(config: EngineConfig) -> int | None:
    """Return the positions of a page. The demo has small pages: its short texts would never fill a large model's."""
    return DEMO_PAGE_POSITIONS if config.page_positions is None and config.model == "demo" else config.page_positions


def least_page_bytes(geometry: CacheGeometry) -> int:
    """Return the least bytes an engine needs for pages: LEAST_PAGES of each group."""
    return LEAST_PAGES * sum(group.page_bytes for group in geometry.groups)


def _allowed(config: EngineConfig, device: torch.device) -> int | None:
    """Return the bytes for weights and pages together; None where only the host's own memory bounds them."""
    if device.type != "cuda" or _bound(config, device) is not None:
        return _bound(config, device)
    return int(free_on(device, config.card_memory) * DEVICE_HEADROOM)


def _bound(config: EngineConfig, device: torch.device) -> int | None:
    """Return the user's bound for weights and pages. `card_memory` is imposed on a GPU by its allocator, elsewhere
    here."""
    return config.card_memory if config.device_memory is None and device.type != "cuda" else config.device_memory


def _on_device(loaded: LoadedModel) -> nn.Module:
    model: nn.Module = loaded.model
    try:
        return model.to(loaded.device)
    except torch.OutOfMemoryError as error:
        raise ModelDoesNotFit(
            f"{loaded.name} does not fit on {loaded.device}: {str(error).splitlines()[0]} "
            "Allow less than is free with --device-memory, and what does not fit will stream."
        ) from error
