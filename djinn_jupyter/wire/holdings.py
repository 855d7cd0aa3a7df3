"""Memory as the engine's accounting and the system tell it, side by side. Values only."""

from __future__ import annotations

from djinn_jupyter.wire.frozen import Frozen
from djinn_jupyter.wire.transfers import Tier


class Holding(Frozen, frozen=True):
    """Bytes on the device of one kind of holder: `pages`, `working copies`, `stops and states`."""

    kind: str
    bytes_held: int


class BudgetStatistics(Frozen, frozen=True):
    """The memory that all sessions together may have on the device, and have. `bytes_overdrawn`: what is above the
    limit, while older stops and sessions leave for it; 0 unless something was made whose room was not foreseen."""

    bytes_limit: int
    bytes_taken: int
    bytes_overdrawn: int
    holdings: tuple[Holding, ...]


class ProcessMemory(Frozen, frozen=True):
    """The main memory of the engine's process, as the system reports it, beside the accounting. Unmeasured is None."""

    anonymous_bytes: int | None  # its own
    mapped_bytes: int | None  # parts of files, which the system takes back when it needs them
    accounted_bytes: int  # of its own, counted: weights that are no part of a file, sessions on the CPU, the tiers
    runtime_bytes: int | None  # Python and its libraries, before a model was loaded
    beyond_bytes: int | None  # the rest of its own, not counted by any part
    device_beyond_bytes: int | None  # what the allocator has of a GPU beyond weights and sessions


class PersonMemory(Frozen, frozen=True):
    """The memory that the sessions of one person hold, None for the engine's own user. A page or tensor that several
    sessions share counts once, for the person of the oldest of them. Working copies and free pages are no one's."""

    person: str | None
    device_bytes: int
    host_bytes: int  # copies of what is on the device too
    disk_bytes: int


class GivenLimits(Frozen, frozen=True):
    """The limits that an engine was started with, in bytes, positions and seconds. None was left to the engine."""

    device_memory: int | None
    card_memory: int | None
    host_memory: int | None
    disk_memory: int | None
    page_positions: int | None
    idle_swap_seconds: float


class SlabStatistics(Frozen, frozen=True):
    pages: int
    pages_free: int
    pages_shared: int
    page_bytes: int
    bytes_allocated: int
    bytes_limit: int
    working_copies: int
    working_bytes: int


class TierStatistics(Frozen, frozen=True):
    """The accounting of the host or disk tier, in bytes; since the start `bytes_out` came to it, `bytes_in` went
    back."""

    tier: Tier
    pages: int
    bytes_used: int
    bytes_allocated: int
    bytes_limit: int
    bytes_out: int
    bytes_in: int
