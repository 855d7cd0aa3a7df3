"""One session's state of residency and the move under way. Separate from the session's own state."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Literal

from djinn_jupyter.engine.memory.offload.mover import Batch
from djinn_jupyter.engine.memory.offload.storages import Blob
from djinn_jupyter.engine.memory.offload.swappable import Item
from djinn_jupyter.engine.session import residence_states
from djinn_jupyter.errors import DjinnError, IllegalMove
from djinn_jupyter.wire.nouns import Residency, Tier, Transfer

Cause = Literal["asked", "pressure", "idleness", "prefetch", "needed", "write_through"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Storages:
    """A session's storages that are not pages, each once. `own` are those of its present place, from which it goes on;
    `past` those that only going back reads: its other stops and the kept states, in the order of eviction."""

    own: list[Blob]
    past: list[Blob]


@dataclass(slots=True, kw_only=True)
class Moving:
    """A move under way, to a tier or (None) back to the device. `waits_for_room`: it cannot proceed until another
    session has been evicted."""

    goal: Tier | None
    cause: Cause
    items: list[Item]
    begun: float = field(default_factory=time.monotonic)
    batches: set[Batch] = field(default_factory=set)
    bytes_moved: int = 0
    from_disk: bool = False
    waits_for_room: bool = False

    def transfer(self) -> Transfer:
        tier: Tier = self.goal or ("disk" if self.from_disk else "host")
        return Transfer(
            direction="in" if self.goal is None else "out",
            tier=tier,
            bytes_moved=self.bytes_moved,
            seconds=time.monotonic() - self.begun,
            cause=self.cause,
        )


@dataclass(slots=True, kw_only=True)
class Residence:
    """`busy` counts readers of the session's bytes outside it; while there are any it is not evicted. `version` grows
    with every change of the session: copies of its recurrent states made before are stale. `error` is what ended the
    last move, None where it succeeded. `written_through` and `refused_at` are the versions in which that was last
    tried; `wants_room`: its first queued request waits for evictions. `inherited`: its rows lie where an earlier
    process put them; rows that cannot be read there are made again."""

    state: Residency = "resident"
    busy: int = 0
    version: int = 0
    moving: Moving | None = None
    last_transfer: Transfer | None = None
    error: DjinnError | None = None
    written_through: int = -1
    refused_at: int = -1
    wants_room: bool = False
    inherited: bool = False
    touched: float = field(default_factory=time.monotonic)
    storages_known: tuple[int, Storages] | None = None

    def touch(self) -> None:
        """Note a change of the session."""
        self.version += 1
        self.touched = time.monotonic()

    def move(self, move: residence_states.Move, name: str) -> None:
        self.state = residence_states.after(self.state, move, name)

    @property
    def settled(self) -> bool:
        return self.moving is None

    @property
    def present(self) -> bool:
        """True while all bytes are on the device and may be used."""
        return self.state == "resident"

    def hold(self) -> None:
        """Keep the session on the device for a reader outside it. Raises IllegalMove where it is not resident."""
        if not self.present:
            raise IllegalMove(f"A session that is {self.state} was to be held on the device.")
        self.busy += 1

    def let_go(self) -> None:
        if not self.busy:
            raise IllegalMove("A session was let go that nobody held.")
        self.busy -= 1
