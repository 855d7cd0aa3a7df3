"""The memory demand against the capacity, from the model's real numbers, before anything runs."""

from __future__ import annotations

from dataclasses import dataclass

from djinn_evaluation.memory import limits_card
from djinn_jupyter.api.engine import RemoteEngine
from djinn_jupyter.units import spell_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Arithmetic:
    """All in bytes. `capacity` is the device memory for weights and pages together, `host` the host memory for swapped
    data (None: the file sets none)."""

    weights: int
    per_session: int
    sessions: int
    capacity: int
    capacity_imposed: bool
    capacity_accounted: bool  # by the engine's accounting, for no card is so small
    host: int | None

    @property
    def demand(self) -> int:
        return self.weights + self.sessions * self.per_session

    @property
    def exceeds(self) -> bool:
        return self.demand > self.capacity

    def sentences(self) -> list[str]:
        card = "imposed" if self.capacity_imposed else "of the device"
        lines = [
            f"Weights {_bytes(self.weights)} + {self.sessions} sessions x {_bytes(self.per_session)} of "
            f"keys and values = {_bytes(self.demand)}; capacity {_bytes(self.capacity)} ({card}).",
            f"Writing all of them through takes {_bytes(self.sessions * self.per_session)} of host memory"
            + (f"; there are {_bytes(self.host)}, the rest goes to disk." if self.host is not None else "."),
        ]
        if not self.exceeds:
            lines.append("The demand does not exceed the capacity: this run proves nothing and fails.")
        return lines


def arithmetic(
    engine: RemoteEngine, positions: int, sessions: int, imposed: int | None, host: int | None
) -> Arithmetic:
    """Compute the demand. `positions` are one session's, its continuation included; keys and values are counted in
    whole pages."""
    reading = engine.statistics()
    per_session = sum(-(-positions // g.page_positions) * g.page_bytes for g in engine.description.cache_groups)
    limit = max((slab.bytes_limit for slab in reading.slabs), default=0) + reading.weight_bytes
    return Arithmetic(
        weights=reading.weight_bytes,
        per_session=per_session,
        sessions=sessions,
        capacity=imposed if imposed is not None else limit,
        capacity_imposed=imposed is not None,
        capacity_accounted=imposed is not None and not limits_card(imposed),
        host=host,
    )


def _bytes(count: int) -> str:
    """Spell bytes with the digit more that a sum needs to be followed."""
    return spell_bytes(count, 4)
