"""From a configuration to an engine that may serve: load the model and discover its points, build the engine, run the
self-test.

Where a model is split among ranks (`--tensor-parallel`) its points are found while it is whole, then each rank keeps
its part, and what the taps meet is compared with what they met before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec
import torch
from msgspec.structs import replace

from djinn_jupyter._version import __version__
from djinn_jupyter.engine.memory.budget import Budget, Budgets, Growth, by_device
from djinn_jupyter.engine.memory.kv.geometry import CacheGeometry, GroupGeometry, probe_geometry
from djinn_jupyter.engine.memory.kv.slab import Slab
from djinn_jupyter.engine.memory.weights.host_weights import HOST, return_freed
from djinn_jupyter.engine.model.discovery.model_map import Anatomy, discover
from djinn_jupyter.engine.model.loading.load import LoadedModel, choose_devices, load_model
from djinn_jupyter.engine.model.loading.other_parts import leave_out
from djinn_jupyter.engine.model.loading.tokenizer import TokenText
from djinn_jupyter.engine.model.loading.tokenizer_process import TokenizerProcess
from djinn_jupyter.engine.passes.forward import Forward
from djinn_jupyter.engine.process.assemble import Foundation
from djinn_jupyter.engine.process.describe import describe, position_limit
from djinn_jupyter.engine.process.engine import Engine
from djinn_jupyter.engine.process.selftest import LEAST_POSITIONS, Proof, prove
from djinn_jupyter.engine.process.weight_plan import (
    LEAST_PAGES,
    Settled,
    Tell,
    foresee,
    least_page_bytes,
    page_positions,
    settle,
    settle_part,
)
from djinn_jupyter.engine.residency.residency import ProcessFootprint, footprint_of, open_disk, open_host
from djinn_jupyter.engine.store.identity import identity_of
from djinn_jupyter.engine.store.persistence import Persistence
from djinn_jupyter.engine.store.recovery import Recovery
from djinn_jupyter.engine.system.config import EngineConfig
from djinn_jupyter.engine.system.device import impose, leave_out_cudnn_attention, make_current, own_and_mapped
from djinn_jupyter.errors import EngineStartFailed, ModelDoesNotFit, ModelRefused, UsageError, WireError
from djinn_jupyter.parallel.cutting import Survey, cut, refused, split_plan
from djinn_jupyter.parallel.graphs import graphs_for, notes_on, recorder_on
from djinn_jupyter.parallel.group import RankGroup
from djinn_jupyter.parallel.leader import Leader
from djinn_jupyter.parallel.ranks import RankLost, Ranks
from djinn_jupyter.remote.engine.checkpoint_store import is_store, require_store
from djinn_jupyter.remote.engine.objects import require_journal_store
from djinn_jupyter.units import spell_bytes
from djinn_jupyter.wire.codec import encode
from djinn_jupyter.wire.nouns import ModelDescription
from djinn_jupyter.wire.replies import Event, Welcome


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitModel:
    """A model whose layers run on all ranks, and the findings about it from before the split."""

    ranks: Ranks
    leader: Leader
    geometry: CacheGeometry
    anatomy: Anatomy
    settled: Settled
    parameters: int  # of the whole model


def require_splittable(config: EngineConfig) -> None:
    """Raise UsageError for options that exclude `tensor_parallel`, before anything is loaded."""
    if config.tensor_parallel == 1:
        return
    given = {"--devices": config.devices is not None, "--cuda-graphs": config.cuda_graphs}
    for option in (name for name, is_given in given.items() if is_given):
        raise UsageError(f"--tensor-parallel and {option} do not go together: leave one of them out.")


def devices_of(first: torch.device, ranks: int) -> list[str]:
    """Return each rank's device: the CPU for all, or the first GPUs. Raises UsageError where there are not enough."""
    if first.type != "cuda":
        return [str(first)] * ranks
    last = (first.index or 0) + ranks
    if last > torch.cuda.device_count():
        raise UsageError(
            f"--tensor-parallel {ranks} takes {ranks} GPUs from {first} on, and this machine has "
            f"{torch.cuda.device_count()}."
        )
    return [f"cuda:{index}" for index in range(first.index or 0, last)]


@torch.inference_mode()
def split_model(config: EngineConfig, loaded: LoadedModel, tell: Tell) -> SplitModel:
    """Split a model that is loaded whole. Raises ModelRefused, ModelDoesNotFit, and EngineStartFailed where a rank ends
    meanwhile; none is left behind then."""
    if loaded.packed:
        raise ModelRefused(f"{loaded.name} has packed weights, which are not split: leave --tensor-parallel out.")
    count = config.tensor_parallel
    devices = devices_of(loaded.device, count)
    tell(f"starting {count - 1} more ranks")
    ranks = Ranks(count)
    try:
        ranks.load(config, devices)
        return _split(config, loaded, ranks, tell)
    except RankLost as error:
        ranks.end()
        raise EngineStartFailed(f"{loaded.name} cannot be split: {error}; see the engine's log.") from error
    except BaseException:
        ranks.end()
        raise


def _split(config: EngineConfig, loaded: LoadedModel, ranks: Ranks, tell: Tell) -> SplitModel:
    identity = identity_of(loaded.model, loaded.device, loaded.quantization)
    parameters = sum(parameter.numel() for parameter in leave_out(loaded.model).parameters())
    tell("finding the layers and the points of the whole model")
    geometry = probe_geometry(loaded.model, HOST, page_positions(config))
    anatomy = discover(loaded.model, geometry.held)
    _require_heads(loaded, geometry, anatomy, ranks.count)
    plan = split_plan(loaded.model, anatomy.paths, ranks.count)
    survey = Survey(loaded.model, anatomy, geometry.cache_argument)
    tell("splitting its layers")
    ranks.require_loaded(msgspec.msgpack.encode(identity), loaded.name)
    ranks.cut(plan.layers, plan.columns, plan.rows)
    cut(loaded.model, plan, 0, ranks.count, lambda part: leader.total(part))
    settled = settle_part(config, loaded, msgspec.structs.replace(identity, tensor_parallel=ranks.count))
    ranks.require_parts()
    group = RankGroup(ranks.meeting, 0, ranks.count, loaded.device, ranks.loss)
    if loaded.device.type == "cuda":  # gloo notices by itself
        ranks.on_loss(group.close)
    leader = Leader(ranks, group, anatomy)
    _find_places(survey, leader)
    return SplitModel(
        ranks=ranks, leader=leader, geometry=geometry, anatomy=anatomy, settled=settled, parameters=parameters
    )


def _find_places(survey: Survey, leader: Leader) -> None:
    axes = survey.axes()
    leader.gather_along(axes)
    false = survey.false(leader.catch, axes)
    true = {key: axis for key, axis in axes.items() if key not in false}
    leader.gather_along(true)
    survey.leave_out(true)


def _require_heads(loaded: LoadedModel, geometry: CacheGeometry, anatomy: Anatomy, ranks: int) -> None:
    """Raise ModelRefused where layers pass on more than the hidden state, keep states, or cannot divide their heads."""
    if anatomy.mappings or anatomy.handed:
        raise refused(loaded.model, "its layers hand on more than the hidden state")
    if geometry.has_states or any(group.kind in ("index", "positions") for group in geometry.groups):
        raise refused(loaded.model, "its layers keep more than the keys and values of heads")
    uneven = next((layer.kv_heads for layer in geometry.layers if layer.kv_heads % ranks), None)
    if uneven is not None:
        raise refused(
            loaded.model,
            f"its layers have {uneven} heads of keys and values, which {ranks} ranks cannot share out evenly",
        )


Progress = Callable[[str], None]


def open_engine(
    config: EngineConfig, publish: Callable[[Event], None] = lambda event: None, progress: Progress = lambda text: None
) -> Engine:
    """Load the model of `config` and build its engine. Raises ModelNotFound, ModelRefused, ModelDoesNotFit."""
    require_splittable(config)
    require_store(config.checkpoints)
    if is_store(config.shared_journal) and not config.no_journal:
        require_journal_store(config.shared_journal)
    if config.moves is not None:
        require_journal_store(config.moves)
    devices = choose_devices(config)
    make_current(devices[0])
    if config.cuda_graphs:
        _require_one(devices)
        recorder_on(devices[0])
    for device in devices:
        impose(config.card_memory, device)
    foreseen = foresee(config, progress)
    runtime, _ = own_and_mapped()
    progress(f"loading {config.model}")
    loaded = load_model(config)
    for note in loaded.notes:
        progress(note)
    if config.tensor_parallel > 1:
        engine = _build_split(config, loaded, publish, progress, runtime)
    else:
        settled = settle(config, loaded, progress, lambda: leave_out(load_model(config).model), foreseen)
        engine = build_engine(config, loaded, publish, progress, settled, runtime)
    engine.persistence.checkpoints.count()
    if not config.no_journal:
        brought_back = open_journal(engine)
        if brought_back:
            progress(f"brought back {len(brought_back)} sessions: {', '.join(brought_back)}")
    return engine


def _build_split(
    config: EngineConfig, loaded: LoadedModel, publish: Callable[[Event], None], progress: Progress, runtime: int | None
) -> Engine:
    """Return the engine of a model that is split among ranks; on a failure the ranks end."""
    split = split_model(config, loaded, progress)
    try:
        return build_engine(config, loaded, publish, progress, split.settled, runtime, split)
    except BaseException:
        split.ranks.end()
        raise


def open_journal(engine: Engine) -> tuple[str, ...]:
    """Open the journal; from now on the engine keeps its sessions. Return the names of recovered sessions."""
    recovery = Recovery(
        engine.config,
        engine.runtime,
        persistence=engine.persistence,
        sessions=engine.sessions,
        tiers=engine.tiers,
        storage_table=engine.storage_table,
        running_time=engine.running_time,
        undecided=engine.moves.undecided,
        wake=engine.mailbox.wake,
    )
    brought_back = recovery.open_journal()
    engine.state_publisher.publish(all_sessions=True)
    return brought_back


@torch.inference_mode()
def build_engine(
    config: EngineConfig,
    loaded: LoadedModel,
    publish: Callable[[Event], None],
    progress: Progress,
    settled: Settled | None = None,
    runtime: int | None = None,
    split: SplitModel | None = None,
) -> Engine:
    """Return the engine of a model that is in memory already; its weights are placed here if they are not."""
    leave_out_cudnn_attention()
    where = torch.device(loaded.device)
    settled = settled or settle(config, loaded, progress)
    weights = settled.weights
    _require_positions(loaded)
    progress("finding the layers and the points")
    geometry = split.geometry if split else probe_geometry(loaded.model, where, page_positions(config))
    _require_pages(loaded.name, geometry, settled)
    anatomy = split.anatomy if split else discover(loaded.model, geometry.held)
    graphs = graphs_for(config, anatomy, weights, recorder_on(where)) if config.cuda_graphs else None
    forward = Forward(loaded.model, anatomy, geometry, weights, graphs, split.leader if split else None)
    tokenizer = TokenText(loaded.tokenizer)
    process = TokenizerProcess(config, loaded.source) if loaded.source is not None else None

    def engine(
        description: ModelDescription, publish: Callable[[Event], None], footprint: ProcessFootprint | None
    ) -> Engine:
        """Return an engine with an empty session table: one runs the self-test, then another serves."""
        growth = Growth()
        budget = budget_of(settled, geometry, growth if where.type == "cpu" else None)
        serves = footprint is not None
        given = Foundation(
            config=config,
            forward=forward,
            tokenizer=tokenizer,
            description=description,
            budget=budget,
            slabs=tuple(_slab(group, where, budget) for group in geometry.groups),
            persistence=Persistence(config, settled.identity, where),
            publish=publish,
            host=open_host(config, where, growth) if serves else None,
            disk=open_disk(config, where) if serves else None,
            tokenizer_process=process if serves else None,
            footprint=footprint,
            ranks=split.ranks if split and serves else None,
        )
        return Engine(given)

    progress("proving that a stopped pass goes on bit for bit")
    proof = _prove(engine(describe(loaded, anatomy, geometry, (), weights.total), lambda event: None, None))
    description = describe(
        loaded,
        anatomy,
        geometry,
        proof.checks,
        weights.total,
        proof.feeds_token_by_token,
        settled.placed,
        split.parameters if split else None,
    )
    for note in notes_on(graphs, loaded.name):
        description = replace(description, notes=(*description.notes, note))
        progress(note)
    _require_tellable(description)
    return_freed(where)  # memory that allocators keep from loading and the self-test
    return engine(description, publish, footprint_of(loaded.model, where, runtime))


def budget_of(settled: Settled, geometry: CacheGeometry, growth: Growth | None) -> Budget:
    """Return the budget of what sessions hold: one, or one for each device and their sum."""
    if settled.cards is None:
        return Budget(settled.page_bytes, growth)
    free = settled.cards.free
    sizes = {device: sum(g.position_bytes for g in geometry.groups if g.device == device) for device in free}
    total = sum(sizes.values())
    shares = [sizes[device] / total if sizes[device] else 1 / len(free) for device in free]
    return Budgets({device: Budget(room, growth) for device, room in free.items()}, shares)


def _slab(group: GroupGeometry, where: torch.device, budget: Budget) -> Slab:
    """Return the slab of a page group on the device of its layers, which is `where` unless there are several."""
    budgets = by_device(budget, where)
    home = where if group.device is None or len(budgets) == 1 else group.device
    return Slab(group, home, budgets[home])


def _require_one(devices: Sequence[torch.device]) -> None:
    """Raise UsageError where CUDA graphs would record layers of several devices."""
    if len(devices) > 1:
        raise UsageError("CUDA graphs run on one GPU: give --device instead of --devices, or leave out --cuda-graphs.")


def _prove(engine: Engine) -> Proof:
    """Run the self-test on an engine of its own, and close that."""
    try:
        return prove(engine)
    finally:
        engine.close()


def _require_tellable(model: ModelDescription) -> None:
    """Raise ModelRefused where the model's description cannot be encoded in the greeting of a client."""
    try:
        encode(0, Welcome(version=__version__, model=model, attached=()))
    except WireError as error:
        raise ModelRefused(f"{model.name} cannot be described in a message: {error}") from None


def _require_positions(loaded: LoadedModel) -> None:
    """Raise ModelRefused where the model has fewer positions than the self-test takes."""
    have = position_limit(loaded.model.config.get_text_config())
    if have is not None and have < LEAST_POSITIONS:
        raise ModelRefused.inexact(
            type(loaded.model).__name__,
            f"it has {have} positions, and the load-time self-test takes {LEAST_POSITIONS}",
            "Load a model with more; where positions are computed (rotary, ALiBi) and not learned, raise "
            "max_position_embeddings in its config.json.",
        )


def _require_pages(name: str, geometry: CacheGeometry, settled: Settled) -> None:
    """Raise ModelDoesNotFit where the weights leave less than LEAST_PAGES pages of each group."""
    least = least_page_bytes(geometry)
    if settled.page_bytes < least:
        raise ModelDoesNotFit(
            f"The weights of {name} leave {spell_bytes(settled.page_bytes)} of the allowed memory for pages, and "
            f"{LEAST_PAGES} pages of each kind take {spell_bytes(least)}; allow more with --device-memory, or make "
            "pages smaller with --page-positions."
        )
