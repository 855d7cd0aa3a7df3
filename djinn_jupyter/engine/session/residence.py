"""The places of a session's bytes and the moves between them, as a table; the steps of a request's work.

resident   on the device, all of them
storing    still on the device, while those without a copy are copied; can be called back at any moment
host       swapped out, with copies in main memory
disk       swapped out, with copies on disk of some or all
loading    on the way back to the device
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass, field
from typing import Final, Literal, TypeVar

from djinn_jupyter.engine.memory.offload.mover import MoverBatch
from djinn_jupyter.engine.memory.offload.swappable import Item, Storage
from djinn_jupyter.engine.session.states import follow
from djinn_jupyter.errors import DjinnError, IllegalMove
from djinn_jupyter.wire.base import ReplyBase
from djinn_jupyter.wire.nouns import Residency, Tier, Transfer
from djinn_jupyter.wire.running import Finished, Paused
from djinn_jupyter.wire.texts import in_quotes

ResidenceMove = Literal["leave", "call_back", "reach_host", "reach_disk", "sink", "come", "arrive", "begin_anew"]

MOVES: Final[dict[tuple[Residency, ResidenceMove], Residency]] = {
    ("resident", "leave"): "storing",
    ("storing", "call_back"): "resident",
    ("storing", "reach_host"): "host",
    ("storing", "reach_disk"): "disk",
    ("host", "sink"): "disk",
    ("host", "come"): "loading",
    ("disk", "come"): "loading",
    ("loading", "arrive"): "resident",
    ("loading", "reach_host"): "host",
    ("loading", "reach_disk"): "disk",
    ("host", "begin_anew"): "resident",
    ("disk", "begin_anew"): "resident",
}


def after(state: Residency, move: ResidenceMove, name: str) -> Residency:
    """Return the state that `move` leads to from `state`. IllegalMove, with the session's name, if there is none."""
    return follow(MOVES, state, move, f"Session {in_quotes(name)} is {state} and cannot {move.replace('_', ' ')}.")


Answer = TypeVar("Answer", bound=ReplyBase)
Blocked = Callable[[], bool]  # True while there is still something to wait for
Pieces = Generator[Blocked | None, None, None]  # steps that return nothing
Steps = Generator[Blocked | None, None, Answer]  # those of a request, which return its reply
RunSteps = Steps[Paused | Finished]
Made = TypeVar("Made")
JobKind = Literal["run", "look"]


def counted(steps: Generator[None, None, Made], count: Callable[[], None]) -> Generator[None, None, Made]:
    """Take steps, call `count` after each, and return what they return. Other jobs may run after each."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            made: Made = end.value
            return made
        count()
        yield


class GaveWay(Exception):
    """Raised in waiting work when it gives its reservation to earlier work."""


Cause = Literal["asked", "pressure", "idleness", "prefetch", "needed", "write_through"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionStorages:
    """A session's storages that are not pages, each once. `own` are those of its present place, from which it
    continues; `past` those that only going back reads: its other stops and the kept states, in the order of
    eviction."""

    own: list[Storage]
    past: list[Storage]


@dataclass(slots=True, kw_only=True)
class Swap:
    """A swap in progress, to a tier or (None) back to the device. `waits_for_room`: it cannot proceed until another
    session has been evicted."""

    goal: Tier | None
    cause: Cause
    items: list[Item]
    begun: float = field(default_factory=time.monotonic)
    batches: set[MoverBatch] = field(default_factory=set)
    bytes_moved: int = 0
    copy_seconds: float = 0.0
    from_disk: bool = False
    waits_for_room: bool = False

    def settle(self, batch: MoverBatch, size: int, seconds: float) -> None:
        """Record the end of a batch of the move, which moved `size` bytes in `seconds` of the mover."""
        self.batches.discard(batch)
        self.bytes_moved += size
        self.copy_seconds += seconds

    def go_to_disk(self) -> None:
        """Continue to the disk in place of the host."""
        self.goal = "disk"

    def note_room(self, there: bool) -> None:
        self.waits_for_room = not there

    def take_items(self, items: Iterable[Item]) -> None:
        """Move these items in place of the initial ones."""
        self.items = list(items)

    def transfer(self) -> Transfer:
        tier: Tier = self.goal or ("disk" if self.from_disk else "host")
        return Transfer(
            direction="in" if self.goal is None else "out",
            tier=tier,
            bytes_moved=self.bytes_moved,
            seconds=time.monotonic() - self.begun,
            cause=self.cause,
            copy_seconds=self.copy_seconds if self.bytes_moved else None,
        )


@dataclass(slots=True, kw_only=True)
class Residence:
    """`busy` counts readers of the session's bytes outside it; while there are any it is not evicted. `version` grows
    with every change of the session: copies of its recurrent states made before are stale. `error` is the error of the
    last move, None where it succeeded. `written_through` and `refused_at` are the versions in which that was last
    tried. `wants_room`: its first queued request waits for evictions; `parked`: its work does, the job that began at
    `work_begun`; `over_owner_budget`: it waits for its owner's budget. `asked`: since when its queued request waits for
    room, on its way back or here, infinite where none does. Earlier work may request the bytes that its work has
    `reserved` (`asked_back`). `inherited`: its rows lie where an earlier process put them; unreadable ones are
    recomputed."""

    state: Residency = "resident"
    busy: int = 0
    version: int = 0
    moving: Swap | None = None
    last_transfer: Transfer | None = None
    error: DjinnError | None = None
    written_through: int = -1
    refused_at: int = -1
    wants_room: bool = False
    parked: bool = False
    work_begun: float = math.inf
    over_owner_budget: bool = False
    asked: float = math.inf
    reserved: int = 0
    asked_back: bool = False
    inherited: bool = False
    touched: float = field(default_factory=time.monotonic)
    storages_known: tuple[int, SessionStorages] | None = None

    def touch(self) -> None:
        """Record a change of the session."""
        self.version += 1
        self.touched, self.asked = time.monotonic(), math.inf

    def move(self, move: ResidenceMove, name: str) -> None:
        self.state = after(self.state, move, name)

    def begin_move(self, moving: Swap) -> None:
        self.error, self.moving = None, moving

    def end_move(self, transfer: Transfer) -> None:
        self.moving, self.last_transfer = None, transfer

    def fail_move(self, error: DjinnError) -> Swap | None:
        """End the move with an error. Return the move."""
        moving, self.moving, self.error, self.asked = self.moving, None, error, math.inf
        return moving

    def give_up_move(self) -> None:
        self.moving = None

    def go_on_with(self, moving: Swap) -> None:
        """Continue a failed move, without the rows of an earlier process."""
        self.moving, self.error, self.inherited = moving, None, False

    def finish_move(self, name: str) -> None:
        """Record that all bytes of the session `name` are on the device."""
        self.move("arrive", name)
        self.inherited = False

    def begin_write_through(self) -> bool:
        """Return True where this version of the session was not yet written through."""
        begun, self.written_through = self.written_through != self.version, self.version
        return begun

    @property
    def refused(self) -> bool:
        """True where the session could not leave in this version."""
        return self.error is not None and self.refused_at == self.version

    def refuse(self) -> None:
        self.refused_at = self.version

    def ask(self) -> None:
        """Record that a queued request waits for room from now on, if none did before."""
        self.asked = min(self.asked, time.monotonic())

    def want_room(self) -> bool:
        """Record that its first queued request waits for evictions: it may leave meanwhile. Return True if it just
        began."""
        self.ask()
        begun, self.wants_room = not self.wants_room, True
        return begun

    def note_room(self) -> None:
        self.wants_room = False

    def park(self) -> bool:
        """Record that its work waits for room: it may leave meanwhile, in its own version. Return True if it just
        began."""
        begun, self.parked = not self.parked, True
        self.version += begun
        return begun

    def unpark(self) -> bool:
        """Record that its work has room, or has ended. Return True where it waited."""
        waited, self.parked = self.parked, False
        return waited

    def note_over_budget(self, within: bool) -> None:
        self.over_owner_budget = not within

    @property
    def asked_since(self) -> float:
        """The moment since which its work, its request or its way back wants room."""
        since = min(self.work_begun, self.asked)
        return since if self.moving is None or since < math.inf else self.moving.begun

    @property
    def in_line(self) -> bool:
        """True where a request waits for evictions for it, or for its person's quota. A prefetch is not, unless
        requested."""
        if self.moving is None or not self.moving.waits_for_room:
            return self.parked or self.wants_room
        return self.parked or self.moving.cause != "prefetch" or self.asked < math.inf

    @property
    def is_short(self) -> bool:
        """True where it waits for room, not for a quota: later requests come after it."""
        return self.in_line and not self.over_owner_budget

    def reserve(self, size: int) -> None:
        """Count bytes that its work holds besides the session's own, negative where they are returned."""
        self.reserved += size

    def ask_back(self) -> None:
        """Request the reservation of its work, which waits for room."""
        self.asked_back = True

    def require_unasked(self) -> None:
        """Raise GaveWay where earlier work has requested its work's reservation."""
        asked, self.asked_back = self.asked_back, False
        if asked and self.reserved:
            raise GaveWay

    @property
    def waits_for_room(self) -> bool:
        """True where its first queued request, or its way back to the device, waits for evictions."""
        return self.wants_room or (self.moving is not None and self.moving.waits_for_room)

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
            raise IllegalMove("A session was let go that was not held.")
        self.busy -= 1
