"""The memory by kind: every cell is a reading; one of arithmetic ends in `_computed` and stands beside its reading."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from djinn_evaluation.course import Unmeasured
from djinn_evaluation.memory import pages_in_use
from djinn_evaluation.outcomes import paused
from djinn_jupyter.api.engine import RemoteEngine
from djinn_jupyter.units import GIB, spell_bytes
from djinn_jupyter.wire.nouns import EngineStatistics

STOPS = "stops and states"  # the budget's name of this kind of holder
EXPLANATION = (
    "The slab grows on demand; preallocated is what it had before anything ran. Keys and values of a session are the "
    "pages that it took, the activation stack is what the engine holds more for its stop: both read before and after. "
    "Computed: positions in whole pages, and one hidden state [positions, features]."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoppedBytes:
    """Bytes that one stopped session holds on the device, by the engine's accounting."""

    pages: int
    stop: int


def slab_bytes(engine: RemoteEngine) -> int:
    return sum(slab.bytes_allocated for slab in engine.statistics().slabs)


def read_breakdown(engine: RemoteEngine, layer: int, prompt: list[int], preallocated: int) -> dict[str, Any]:
    """Return the fields of `memory_breakdown`. `preallocated` bytes of the slab were allocated before anything ran."""
    held, reading = _held_at_a_stop(engine, layer, prompt), engine.statistics()
    total = reading.device_bytes_total
    return {
        "vmu_slab_preallocated_gb": preallocated / GIB,
        "slab_allocated_gb": sum(slab.bytes_allocated for slab in reading.slabs) / GIB,
        "slab_limit_gb": max((slab.bytes_limit for slab in reading.slabs), default=0) / GIB,
        "model_weights_gb": reading.weight_bytes / GIB,
        "kv_cache_per_session_gb": held.pages / GIB,
        "kv_cache_per_session_gb_computed": _pages(engine, len(prompt)) / GIB,
        "activation_stack_gb": held.stop / GIB,
        "activation_stack_gb_computed": _hidden(engine, len(prompt)) / GIB,
        "gpu_total_gb": Unmeasured(reason="no GPU") if total is None else total / GIB,
        "explanation": EXPLANATION,
    }


def sentences(breakdown: dict[str, Any], positions: int) -> list[str]:
    """Return the breakdown as the report's first sentences."""
    names = ("model_weights_gb", "kv_cache_per_session_gb", "activation_stack_gb")
    weights, session, hidden = (spell_bytes(breakdown[name] * GIB, 4) for name in names)
    return [
        f"Weights {weights}, once for all sessions. One of {positions} positions has {session} of "
        f"keys and values in whole pages, and {hidden} more while it is stopped."
    ]


def _held_at_a_stop(engine: RemoteEngine, layer: int, prompt: list[int]) -> StoppedBytes:
    """Stop a session of its own; return the difference that it makes to the engine's accounting."""
    before = engine.statistics()
    session = engine.session("breakdown", fresh=True)
    session.breakpoint(f"resid_post.{layer}", when="step == 0")
    paused(session.run(prompt, max_new_tokens=1, ignore_eos=True))
    after = engine.statistics()
    session.close()
    return StoppedBytes(pages=pages_in_use(after) - pages_in_use(before), stop=_kept(after) - _kept(before))


def _kept(reading: EngineStatistics) -> int:
    holdings = () if reading.budget is None else reading.budget.holdings
    return sum(holding.bytes_held for holding in holdings if holding.kind == STOPS)


def _pages(engine: RemoteEngine, positions: int) -> int:
    return sum(-(-positions // g.page_positions) * g.page_bytes for g in engine.description.cache_groups)


def _hidden(engine: RemoteEngine, positions: int) -> int:
    return positions * engine.description.hidden_size * (4 if engine.description.dtype == "float32" else 2)
