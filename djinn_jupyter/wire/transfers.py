"""Moves of a session between the device and its tiers. Values only."""

from __future__ import annotations

from typing import Literal

from djinn_jupyter.wire.frozen import Frozen

Tier = Literal["host", "disk"]


class Transfer(Frozen, frozen=True):
    """One move of a session's bytes between the device and a tier: how many really moved, and how long it took."""

    direction: Literal["out", "in"]
    tier: Tier
    bytes_moved: int
    seconds: float  # from its beginning to its end, with waits for room, for other moves and for computing
    cause: Literal["asked", "pressure", "idleness", "prefetch", "needed", "write_through"]
    copy_seconds: float | None = None  # of them those of the mover, in which the bytes were copied
