"""The place of a model's weights: whole on the device, or streamed through a ring. Reports it before it loads. The
layers are found by running the model once on the host, where its weights are mapped from their files. A conversion on
loading is announced and not cached: a cache would be as large as the models, and has to know when it is stale. Who
loads a model often saves it once, converted, by transformers' `save_pretrained`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final

import torch
from torch import Tensor, nn

from djinn_jupyter.engine.memory.kv.geometry import CacheGeometry, probe_geometry
from djinn_jupyter.engine.memory.weights import residence
from djinn_jupyter.engine.memory.weights.copy_engine import measure_link
from djinn_jupyter.engine.memory.weights.host_weights import HOST
from djinn_jupyter.engine.memory.weights.streamed import StreamedWeights, sizes_of
from djinn_jupyter.engine.model.discovery.layer_list import find_stack
from djinn_jupyter.engine.model.discovery.recording import LENGTHS, spread_tokens, ways_to_keep_last
from djinn_jupyter.engine.model.hooks.gates import cross
from djinn_jupyter.engine.model.loading.load import LoadedModel, choose_devices, empty_model, may_pack
from djinn_jupyter.engine.model.loading.other_parts import leave_out
from djinn_jupyter.engine.process.describe import position_limit
from djinn_jupyter.engine.store.identity import ModelIdentity, identity_of
from djinn_jupyter.engine.system.config import EngineConfig
from djinn_jupyter.engine.system.device import (
    free_for_pages,
    free_on,
    leave_out_cudnn_attention,
    out_of_memory,
    to_home,
)
from djinn_jupyter.errors import ModelDoesNotFit, ModelRefused
from djinn_jupyter.machine import main_memory
from djinn_jupyter.units import spell_bytes

STEPS = 64  # of halving: shares are then distinct to the last bit


@dataclass(frozen=True, slots=True, kw_only=True)
class CardPlan:
    """`homes` has each layer's device, in order; `free` has the bytes of each device that remain for pages. The first
    device also has everything outside layers: embedding, final norm and head."""

    homes: tuple[torch.device, ...]
    free: dict[torch.device, int]

    def line(self) -> str:
        """Return the plan in one sentence."""
        counts = [(device, len(list(layers))) for device, layers in groupby(self.homes)]
        parts, begin = [], 0
        for device, count in counts:
            parts.append(f"layers {begin} to {begin + count - 1} on {device}")
            begin += count
        return f"{', '.join(parts)}; embedding and head on {counts[0][0]}".capitalize()


def plan_cards(sizes: residence.WeightSizes, allowed: Sequence[tuple[torch.device, int]]) -> CardPlan:
    """Return the plan that leaves the fullest device emptiest, as a share of the bytes `allowed` on each. Raises
    ModelDoesNotFit where the weights fill one of them. Every device has a layer at least."""
    devices = [device for device, _ in allowed]
    if len(sizes.layers) < len(devices):
        raise ModelDoesNotFit(f"{len(devices)} devices were named for {len(sizes.layers)} layers; name fewer.")
    rooms = [max(1, room) for _, room in allowed]  # a device without room is refused below
    low, high = 0.0, float(sizes.total) / min(rooms) + 1
    for _ in range(STEPS):
        share = (low + high) / 2
        low, high = (low, share) if _filled(sizes, rooms, share) else (share, high)
    counts = _filled(sizes, rooms, high)
    assert counts is not None, "at the highest share the first device holds all"
    homes = tuple(device for device, count in zip(devices, counts, strict=True) for _ in range(count))
    held = dict.fromkeys(devices, 0)
    held[devices[0]] = sizes.rest
    for home, size in zip(homes, sizes.layers, strict=True):
        held[home] += size
    free = {device: room - held[device] for device, room in allowed}
    for device, room in allowed:
        if free[device] <= 0:
            raise ModelDoesNotFit(
                f"The weights take {spell_bytes(held[device])} on {device}, of {spell_bytes(room)} there: name more "
                "devices, or allow more with --device-memory; layers do not stream to several devices."
            )
    return CardPlan(homes=homes, free=free)


def _filled(sizes: residence.WeightSizes, rooms: Sequence[int], share: float) -> list[int] | None:
    """Return the layers of each device where none is filled beyond `share`, as many as fit on each but one at least for
    every later one; None where that does not hold all."""
    counts, at, layers = list[int](), 0, sizes.layers
    for number, room in enumerate(rooms):
        left, begin = share * room - (0 if number else sizes.rest), at
        last = len(layers) - (len(rooms) - 1 - number)
        while at < last and layers[at] <= left:
            left, at = left - layers[at], at + 1
        if at == begin:
            return None
        counts.append(at - begin)
    return counts if at == len(layers) else None


def spread(model: nn.Module, layers: Sequence[nn.Module], homes: Sequence[torch.device]) -> None:
    """Move each layer to its home and all other modules to the first. ModelRefused if two devices share a tensor."""
    placed: dict[int, torch.device] = {}
    for layer, home in zip(layers, homes, strict=True):
        for module in layer.modules():
            _place(module, home, placed, type(model).__name__)
    inside = {module for layer in layers for module in layer.modules()}
    for module in model.modules():
        if module not in inside:
            _place(module, homes[0], placed, type(model).__name__)


def _place(module: nn.Module, home: torch.device, placed: dict[int, torch.device], name: str) -> None:
    for one in _own(module):
        if placed.setdefault(id(one), home) != home:
            raise ModelRefused(f"{name} cannot lie on several devices: layers of two of them share a tensor.")

    def moved(tensor: Tensor) -> Tensor:
        return to_home(tensor, home)

    module._apply(moved, recurse=False)
    placed.update({id(one): home for one in _own(module)})


def _own(module: nn.Module) -> list[Tensor]:
    return [one for one in (*module._parameters.values(), *module._buffers.values()) if one is not None]


MEASURED_POSITIONS: Final = 8192  # at most: what a pass takes grows with its length, the time to measure it too
LARGEST_SHARE: Final = 4  # at most a quarter of what is free, so that long contexts leave pages as well


def longest_prompt(model: Any) -> int:
    """Return the positions of the longest prompt of the model, or MEASURED_POSITIONS where it has no limit."""
    return position_limit(model.config.get_text_config()) or MEASURED_POSITIONS


@torch.inference_mode()
def bytes_of_a_pass(model: Any, device: torch.device) -> int:
    """Return the peak bytes of CUDA's allocator in a pass over the longest prompt, besides weights and kept memory. The
    pass loads its kernels and workspaces, which are the driver's bytes from then on. Raises torch.OutOfMemoryError."""
    leave_out_cudnn_attention()  # as in every later pass
    longest = longest_prompt(model)
    measured = min(longest, MEASURED_POSITIONS)
    for length in (1, measured):
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_reserved(device)
        model(input_ids=spread_tokens(model, length)[None], use_cache=False, **ways_to_keep_last(model)[0])
        torch.cuda.synchronize(device)
    taken = torch.cuda.max_memory_reserved(device) - before
    return -(-taken * longest // measured)


def pages_beside_a_pass(model: Any, device: torch.device, card_memory: int | None) -> tuple[int, int]:
    """Return the bytes for pages on a GPU whose weights are in place, and the reserve beside them: the need of a pass,
    but no more than LARGEST_SHARE of what is free, which also applies where such a long pass does not fit."""
    taken = None
    try:
        taken = bytes_of_a_pass(model, device)
    except RuntimeError as error:
        if not out_of_memory(error):
            raise
    torch.cuda.empty_cache()  # here, where no error holds the pass's tensors
    free = room_on(device, card_memory)
    most = free // LARGEST_SHARE
    reserve = most if taken is None else min(taken, most)
    return free - reserve, reserve


def room_on(device: torch.device, card_memory: int | None) -> int:
    """Return the bytes that this process can still take of a GPU: the driver's free bytes on the card, and with an
    imposed limit no more than the allocator's."""
    free = free_on(device, card_memory)
    if card_memory is None:
        return free
    total = torch.cuda.mem_get_info(device)[1]
    allowed = int(torch.cuda.get_per_process_memory_fraction(device) * total)
    return min(free, max(0, allowed - torch.cuda.memory_reserved(device)))


Tell = Callable[[str], None]
DEMO_PAGE_POSITIONS = 16
LEAST_PAGES = 4  # the self-test has two sessions and a fork
DEVICE_HEADROOM = 9 / 10  # of a CUDA device's free memory, where no bound is given


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """A model's weights in place, the bytes left for pages, and the model's identity, read before its weights were
    placed. `cards` for layers on several devices; `page_bytes` is then what is left on the fullest. `placed`: the
    sentence on several devices or ranks."""

    identity: ModelIdentity
    weights: residence.Weights
    page_bytes: int
    cards: CardPlan | None = None
    placed: str | None = None


def foresee(config: EngineConfig, tell: Tell) -> residence.Placement | None:
    """Estimate from the configuration alone which weights stay and which stream, and report it; None where all fit.
    Raises ModelDoesNotFit before anything is loaded. An estimate, because the layers are found only when the model
    runs."""
    devices = choose_devices(config)
    device, allowed = devices[0], _allowed(config, devices[0])
    if config.tensor_parallel > 1 or (allowed is None and len(devices) == 1) or may_pack(config):
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
    if residence.fits(sizes.total, allowed):
        if _bound(config, device) is None and not config.cuda_graphs:
            tell(_estimate(sizes.total, free_on(device, config.card_memory)))
        return None
    placement = residence.place(sizes, allowed, link=measure_link(device, allowed))
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
    reload: residence.Reload | None = None,
    foreseen: residence.Placement | None = None,
) -> Settled:
    """Move a loaded model's weights to their place for computing. Raises ModelDoesNotFit and ModelRefused."""
    if loaded.packed and config.devices is not None:
        raise ModelRefused(f"{loaded.name} has packed weights, which lie on one device: name it with --device.")
    identity = identity_of(loaded.model, loaded.device, loaded.quantization)  # of the whole model, for journals
    leave_out(loaded.model)
    if config.devices is not None:
        return _settle_on_cards(config, loaded, identity, tell, reload)
    allowed, total = _allowed(config, loaded.device), sizes_of(loaded.model, ()).total
    if allowed is None or residence.fits(total, allowed):
        resident = residence.PackedWeights if loaded.packed else residence.ResidentWeights
        weights = resident(_on_device(loaded), loaded.device, reload, loaded.files)
        bound = _bound(config, loaded.device)
        pages = _pages_left(config, loaded, tell) if bound is None else bound - total
        return Settled(identity=identity, weights=weights, page_bytes=pages)
    if loaded.packed:
        raise ModelDoesNotFit(
            f"The packed weights of {loaded.name} take {spell_bytes(total)}, of {spell_bytes(allowed)} that are "
            "allowed, and do not stream: allow more with --device-memory, or load the model that was quantized."
        )
    with torch.inference_mode():
        stack, _ = find_stack(loaded.model, spread_tokens(loaded.model, LENGTHS[0])[None])
    sizes = sizes_of(loaded.model, stack.layers)
    link = measure_link(loaded.device, allowed) if foreseen is None else foreseen.link
    geometry = probe_geometry(loaded.model, HOST, page_positions(config))
    placement = residence.place(sizes, allowed, link=link, pages=least_page_bytes(geometry))
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
    """Return the bytes for pages beside weights without a limit; on a GPU all but the measured need of a pass. With
    CUDA graphs, which record memory of their own later, as on the CPU."""
    if loaded.device.type != "cuda" or config.cuda_graphs:
        return free_for_pages(loaded.device, config.card_memory)
    pages, reserve = pages_beside_a_pass(loaded.model, loaded.device, config.card_memory)
    positions = longest_prompt(loaded.model)
    tell(f"{spell_bytes(pages)} for pages; a pass over {positions} positions keeps {spell_bytes(reserve)} beside them")
    return pages


def _settle_on_cards(
    config: EngineConfig, loaded: LoadedModel, identity: ModelIdentity, tell: Tell, reload: residence.Reload | None
) -> Settled:
    """Spread a loaded model's layers over the devices of `config`, and make passes cross from one to the next."""
    devices = choose_devices(config)
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
    weights = residence.ResidentWeights(loaded.model, loaded.device, reload, loaded.files)
    return Settled(
        identity=identity, weights=weights, page_bytes=min(plan.free.values()), cards=plan, placed=plan.line()
    )


def settle_part(config: EngineConfig, loaded: LoadedModel, identity: ModelIdentity) -> Settled:
    """Move rank 0's part of a split model to its device. Raises ModelDoesNotFit: parts do not stream."""
    allowed, total = _allowed(config, loaded.device), sizes_of(loaded.model, ()).total
    if allowed is not None and not residence.fits(total, allowed):
        raise ModelDoesNotFit(
            f"The part of {loaded.name} on {loaded.device} takes {spell_bytes(total)}, of {spell_bytes(allowed)} "
            "there: split it among more ranks, or allow more with --device-memory; split layers do not stream."
        )
    weights = residence.SplitWeights(_on_device(loaded), loaded.device, stamps=loaded.files)
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


def _layers(placement: residence.Placement) -> tuple[tuple[int, ...], int]:
    """Return the streamed layers and the number of all, to compare plans: alignment is known only when loaded."""
    return placement.streaming, len(placement.sizes.layers)


def page_positions(config: EngineConfig) -> int | None:
    """Return the positions of a page. The demo has small pages: its short texts would never fill a large model's."""
    return DEMO_PAGE_POSITIONS if config.page_positions is None and config.model == "demo" else config.page_positions


def least_page_bytes(geometry: CacheGeometry) -> int:
    """Return the least bytes an engine needs for pages: LEAST_PAGES of each group."""
    return LEAST_PAGES * sum(group.page_bytes for group in geometry.groups)


def _allowed(config: EngineConfig, device: torch.device) -> int | None:
    """Return the bytes for weights and pages together; None where only the host's own memory limits them."""
    if device.type != "cuda" or _bound(config, device) is not None:
        return _bound(config, device)
    return int(free_on(device, config.card_memory) * DEVICE_HEADROOM)


def _bound(config: EngineConfig, device: torch.device) -> int | None:
    """Return the user's limit for weights and pages. On a GPU its allocator imposes `card_memory`, elsewhere this
    does."""
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
