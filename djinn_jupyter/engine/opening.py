"""From a configuration to an engine that may serve: load, study, build, and prove it on this very model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import torch

from djinn_jupyter.engine import device
from djinn_jupyter.engine.config import EngineConfig
from djinn_jupyter.engine.describe import describe
from djinn_jupyter.engine.engine import Engine
from djinn_jupyter.engine.forward import Forward
from djinn_jupyter.engine.keeping.identity import identity_of
from djinn_jupyter.engine.keeping.keeping import Keeping
from djinn_jupyter.engine.memory.budget import Budget
from djinn_jupyter.engine.memory.geometry import probe_geometry
from djinn_jupyter.engine.memory.slab import Slab
from djinn_jupyter.engine.model.anatomy import study
from djinn_jupyter.engine.model.load import LoadedModel, load_model
from djinn_jupyter.engine.model.tokenizer import TokenText
from djinn_jupyter.engine.residency.opening import open_disk, open_host
from djinn_jupyter.engine.selftest import prove
from djinn_jupyter.engine.weights.residence import Reload, ResidentWeights
from djinn_jupyter.errors import ModelDoesNotFit
from djinn_jupyter.wire.replies import Event

Progress = Callable[[str], None]
DEMO_PAGE_POSITIONS: Final = 16


def open_engine(
    config: EngineConfig, publish: Callable[[Event], None] = lambda event: None, progress: Progress = lambda text: None
) -> Engine:
    """Load the model of `config` and build its engine. Raises ModelNotFound, ModelRefused, ModelDoesNotFit."""
    progress(f"loading {config.model}")
    return build_engine(config, load_model(config), publish, progress, reload=lambda: load_model(config).model)


@torch.inference_mode()
def build_engine(
    config: EngineConfig,
    loaded: LoadedModel,
    publish: Callable[[Event], None],
    progress: Progress,
    reload: Reload | None = None,
) -> Engine:
    """The engine of a model that is in memory already. `reload` loads it once more, which a nap on the CPU needs."""
    where = torch.device(loaded.device)
    identity = identity_of(loaded.model, where)
    weights = ResidentWeights(loaded.model, where, reload)
    progress("finding the layers and the points")
    geometry = probe_geometry(loaded.model, where, _page_positions(config))
    anatomy = study(loaded.model, [layer.cache_layer for layer in geometry.layers if layer.kind != "none"])
    budget = Budget(_page_budget(config, loaded, where))
    slabs = tuple(Slab(group, where, budget) for group in geometry.groups)
    engine = Engine(
        config=config,
        model=loaded.model,
        anatomy=anatomy,
        geometry=geometry,
        slabs=slabs,
        forward=Forward(loaded.model, anatomy, geometry, weights),
        tokenizer=TokenText(loaded.tokenizer),
        weights=weights,
        publish=lambda event: None,
        host=open_host(config, where),
        disk=open_disk(config, where),
    )
    progress("proving that a stopped pass goes on bit for bit")
    engine.description = describe(loaded, anatomy, geometry, ())
    proof = prove(engine)
    engine.one_by_one = proof.feeds_one_by_one
    engine.description = describe(loaded, anatomy, geometry, proof.checks, one_by_one=proof.feeds_one_by_one)
    engine.keeping = Keeping(config, identity, where)
    engine.start_books(publish)
    return engine


def _page_positions(config: EngineConfig) -> int | None:
    """Small pages for the demo: with those of a large model its short texts would never fill one."""
    return DEMO_PAGE_POSITIONS if config.page_positions is None and config.model == "demo" else config.page_positions


def _page_budget(config: EngineConfig, loaded: LoadedModel, where: torch.device) -> int:
    if config.device_memory is None:
        return device.free_for_pages(where)
    weights = device.weight_bytes(loaded.model)
    if config.device_memory <= weights:
        raise ModelDoesNotFit(
            f"{loaded.name} has {weights / 2**20:.0f} MiB of weights and --device-memory allows "
            f"{config.device_memory / 2**20:.0f} MiB for weights and pages; allow more or take a smaller model."
        )
    return config.device_memory - weights
