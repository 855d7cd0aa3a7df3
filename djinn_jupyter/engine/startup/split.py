"""A model split among ranks (`--tensor-parallel`): its points are found while it is whole, then each rank keeps its
part, and what the taps meet is compared with what they met before."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
import torch

from djinn_jupyter.engine.config import EngineConfig
from djinn_jupyter.engine.memory.kv.geometry import CacheGeometry, probe_geometry
from djinn_jupyter.engine.memory.weights.flat import HOST
from djinn_jupyter.engine.model.discovery.model_map import Anatomy, discover
from djinn_jupyter.engine.model.loading.load import LoadedModel
from djinn_jupyter.engine.model.loading.other_parts import leave_out
from djinn_jupyter.engine.parallel.cutting import cut, refused, split_plan
from djinn_jupyter.engine.parallel.group import RankGroup
from djinn_jupyter.engine.parallel.leader import Leader
from djinn_jupyter.engine.parallel.places import Survey
from djinn_jupyter.engine.parallel.ranks import RankLost, Ranks
from djinn_jupyter.engine.persistence.identity import identity_of
from djinn_jupyter.engine.startup.weight_plan import Settled, Tell, page_positions, settle_part
from djinn_jupyter.errors import EngineStartFailed, UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitModel:
    """A model whose layers run on all ranks, and what was found of it before."""

    ranks: Ranks
    leader: Leader
    geometry: CacheGeometry
    anatomy: Anatomy
    settled: Settled
    parameters: int  # of the whole model


def require_splittable(config: EngineConfig) -> None:
    """Raise UsageError where the options do not go with `tensor_parallel`, before anything is loaded."""
    if config.tensor_parallel == 1:
        return
    given = {"--devices": config.devices is not None, "--cuda-graphs": config.cuda_graphs}
    for option in (name for name, is_given in given.items() if is_given):
        raise UsageError(f"--tensor-parallel and {option} do not go together: leave one of them out.")


def devices_of(first: torch.device, ranks: int) -> list[str]:
    """Return each rank's device: the CPU for all, or as many GPUs from the first on. Raises UsageError where there are
    not so many."""
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
    """Split a model that is loaded whole. Raises ModelRefused, ModelDoesNotFit, and EngineStartFailed where a rank
    ends on the way; none is left behind then."""
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
    identity = identity_of(loaded.model, loaded.device)
    parameters = sum(parameter.numel() for parameter in leave_out(loaded.model).parameters())
    tell("finding the layers and the points of the whole model")
    geometry = probe_geometry(loaded.model, HOST, page_positions(config))
    anatomy = discover(loaded.model, geometry.held)
    _require_heads(loaded, geometry, anatomy, ranks.count)
    plan = split_plan(loaded.model, anatomy.stack.paths, ranks.count)
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
    """Raise ModelRefused where layers hand on more than the hidden state, keep states, or have heads that the ranks
    cannot share out."""
    if anatomy.stack.mappings or anatomy.stack.handed:
        raise refused(loaded.model, "its layers hand on more than the hidden state")
    if geometry.has_states or any(group.kind in ("index", "positions") for group in geometry.groups):
        raise refused(loaded.model, "its layers keep more than the keys and values of heads")
    uneven = next((layer.kv_heads for layer in geometry.layers if layer.kv_heads % ranks), None)
    if uneven is not None:
        raise refused(
            loaded.model,
            f"its layers have {uneven} heads of keys and values, which {ranks} ranks cannot share out evenly",
        )
