"""The one interface to residency: moves between the tiers, evictions and notebook activity, joined."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch
from jupyter_core.paths import jupyter_data_dir
from torch import nn

from djinn_jupyter.engine.memory.budget import Budget, Growth
from djinn_jupyter.engine.memory.kv.cache import PagedCache
from djinn_jupyter.engine.memory.kv.slab import Slab
from djinn_jupyter.engine.memory.offload.disk import DirectFile, DiskTier
from djinn_jupyter.engine.memory.offload.host import HostTier, Memory
from djinn_jupyter.engine.memory.offload.swappable import StorageTable
from djinn_jupyter.engine.memory.offload.tiers import Tiers
from djinn_jupyter.engine.memory.weights.host_weights import bytes_in_memory, plain_parts, raw_bytes, weights_of
from djinn_jupyter.engine.residency.activity import SessionActivity
from djinn_jupyter.engine.residency.eviction import Eviction
from djinn_jupyter.engine.residency.eviction_policy import EvictionOrder, latest_return_first
from djinn_jupyter.engine.residency.owner_budgets import OwnerBudgets
from djinn_jupyter.engine.residency.room import ExternalPressure, StopRoom
from djinn_jupyter.engine.residency.swapping import Swapping
from djinn_jupyter.engine.session.residence import Pieces
from djinn_jupyter.engine.session.session import Session
from djinn_jupyter.engine.system.config import EngineConfig
from djinn_jupyter.engine.system.device import Usage
from djinn_jupyter.engine.system.faults import Faults
from djinn_jupyter.engine.system.host_memory import pageable, pinned_if_allowed
from djinn_jupyter.errors import StorageFailed
from djinn_jupyter.files import make_folder
from djinn_jupyter.machine import main_memory
from djinn_jupyter.settings import SettledOptions
from djinn_jupyter.wire.base import person_of
from djinn_jupyter.wire.nouns import ProcessMemory, Tier, Transfer, WeightsStatistics
from djinn_jupyter.wire.own import ELSEWHERE


class Residency:
    """`order` sorts the sessions to evict. Sessions in `waiting` have queued requests; `others_go_on` is True where the
    job of another session has work, `at_work` has the sessions of all jobs; `swapped` is called at the end of every
    move."""

    def __init__(
        self,
        sessions: Mapping[str, Session],
        slabs: Sequence[Slab],
        budget: Budget,
        tiers: Tiers,
        storage_table: StorageTable,
        *,
        options: SettledOptions,
        begun: Usage,
        faults: Faults,
        waiting: Container[Session],
        others_go_on: Callable[[Session, Callable[[Session], bool]], bool],
        at_work: Callable[[], Iterable[Session]],
        swapped: Callable[[Session, Transfer | None], None],
        new_cache: Callable[[], PagedCache],
        saved: Callable[[str], int] = lambda person: 0,
        added: Callable[[str | None], int] = lambda person: 0,
        order: EvictionOrder = latest_return_first,
        prefetches: bool = True,
    ) -> None:
        self._storage_table, self._faults, self._told = storage_table, faults, swapped
        self._most_given = budget.limit
        self.owner_budgets = OwnerBudgets(sessions, storage_table, saved, added)
        self.swapping = Swapping(
            sessions,
            slabs,
            tiers,
            storage_table,
            waiting=waiting,
            swapped=self._swapped,
            find_room=self.find,
            in_owner_budget=self._may_come,
        )
        self.activity = SessionActivity(sessions, slabs, budget, self.swapping, order, prefetches)
        self.eviction = Eviction(
            sessions,
            budget,
            self.swapping,
            self.owner_budgets,
            idle_seconds=options.idle_swap_seconds,
            choose=self.activity.choose,
            waiting=waiting,
            others_go_on=others_go_on,
            at_work=at_work,
            is_expected=self.activity.is_expected,
        )
        # Each call goes to the part that does it.
        older_stops = self.swapping.older_stops
        self.bound, self.pinned, self.away = older_stops.bound, older_stops.pinned, older_stops.away
        self.settle, self.require_tier = self.swapping.settle, tiers.keeper
        self.in_owner_budget, self.relieve = self.eviction.in_owner_budget, self.eviction.relieve
        self.note, self.asked = self.activity.note, self.activity.asked
        self.fetch_returning, self.statistics = self.activity.fetch_returning, self.activity.statistics
        self.apply_pressure = ExternalPressure(sessions, self.eviction, self.swapping, begun).apply
        self.new_cache, self.short_of_owner_budget = new_cache, self.owner_budgets.short
        self.note_tensors, self.let_go = storage_table.note, storage_table.note_freed
        room = StopRoom(budget, self.swapping, self.eviction)
        self.entered, self.with_room, self.behind_earlier = room.entered, room.with_room, room.behind_earlier
        self.set_aside, self.set_aside_now, self.put_back = room.set_aside, room.set_aside_now, room.put_back
        self.accounted, self.fetched = room.accounted, room.fetched

    def _swapped(self, session: Session, transfer: Transfer | None) -> None:
        self.activity.swapped(session, transfer)
        self._told(session, transfer)

    def _may_come(self, session: Session, need: int) -> bool:
        """Return `in_owner_budget` of a session that comes to the device; none leaves for one that no request needs."""
        moving = session.residence.moving
        if moving is not None and moving.cause == "prefetch" and self.owner_budgets.short(session, need):
            raise self.owner_budgets.refusal(session, need)
        return self.in_owner_budget(session, need)

    def announce_rest(self, session: Session, seconds: float) -> None:
        """Record that the session will be used again in so many seconds: it leaves the device now where idleness would
        make it leave before that, and is loaded in time."""
        self.activity.announce_rest(session, seconds)
        self.eviction.begin_rest(session, seconds)

    def holder_has_gone(self, session: Session) -> bool:
        """Return whether its kernel is known to have ended, although its client may not be missed yet."""
        return session.holder is not None and self.activity.signals(session.name).gone

    def left_alone(self, session: Session) -> None:
        """Record that the session's requests are done, for now. Stops may have waited for this to go to disk."""
        self.activity.left_alone(session)
        if session.work is not None:
            return
        if session.frame is None:
            session.cache.truncate(session.cache.length)  # no pass continues from the rows of a reading
        if session.history.beyond:
            self.bound(session)

    def closed(self, session: Session) -> None:
        session.residence.give_up_move()
        self.let_go()
        self.activity.closed(session.name)

    @property
    def changes(self) -> int:
        """The count of events that may have freed room or loaded a session."""
        return self.swapping.changes

    def room_changed(self) -> None:
        """Record that a session's work or queue has ended, or that it is gone; waiting jobs and moves retry."""
        self.swapping.note_change()
        with self._faults.during("it moved sessions between tiers"):
            self.swapping.advance_all()

    def swap_out(self, session: Session, tier: Tier) -> None:
        """Begin to swap the session out at a client's request. Raises IllegalMove and TierFull."""
        self.swapping.swap_out(session, tier, "asked")

    def swap_in(self, session: Session) -> None:
        """Begin to swap the session in at a client's request, or stop swapping it out."""
        self.swapping.swap_in(session, "asked")

    def need(self, session: Session) -> None:
        """Begin to swap the session in for a request that needs its bytes."""
        self.swapping.swap_in(session, "needed")

    def settled(self, session: Session) -> Pieces:
        """Run steps until no move of the session is under way."""
        while not session.residence.settled:
            yield lambda: not session.residence.settled

    def begin_anew(self, session: Session) -> None:
        """Drop the session's bytes: it counts as on the device, with none. An engine that never rests also checks which
        tensors of the old tokens are gone."""
        self.swapping.begin_anew(session)
        self.let_go()

    def find(self, wanting: Session, need: int) -> bool:
        """Evict other sessions. Return True when there is room now or waiting for the next change helps."""
        return self.eviction.find(wanting, need)

    def require_given(self, need: int) -> None:
        """Raise UsageError where the arrays of rules and edits would take more than sessions may have on the device."""
        self.owner_budgets.require_given(need, self._most_given)

    def drop_copies(self, person: str) -> bool:
        """Drop host copies of a person's data on the device. Return True where there were any."""
        return self.swapping.drop_copies_of_the_present(lambda session: person_of(session.name) == person)

    @property
    def has_to_look(self) -> bool:
        """True while some session could be evicted, or evicted ones left memory that is not yet released."""
        return self.swapping.gives_back or bool(self.swapping.candidates())

    @property
    def due_in(self) -> float:
        """The seconds until a session that announced its return has to be loaded; infinite where there is none."""
        return self.activity.due_in

    def rest(self) -> None:
        """Do the work of an idle engine: purge, write through, swap out, release memory."""
        self._storage_table.purge()
        self.eviction.attend()


FOLDER: Final = "djinn"


def open_host(config: EngineConfig, device: torch.device, growth: Growth | None = None) -> HostTier | None:
    """Return the host tier, None where the configuration has none. It grows as far as `growth` allows."""
    limit = _host_limit(config)
    if not limit:
        return None
    return HostTier(limit, memory=memory_of(device), growth=growth)


def open_disk(config: EngineConfig, device: torch.device, kept: Path | None = None) -> DiskTier | None:
    """Return the disk tier, None where the configuration has none. With `kept` its file stays under that name; else it
    has none. Raises StorageFailed."""
    folder = config.data_folder or Path(jupyter_data_dir()) / FOLDER
    if config.disk_memory == 0:
        return None
    try:
        make_folder(folder)
        limit = config.disk_memory
        if limit is None:
            limit = min(4 * (_host_limit(config) or main_memory().total), shutil.disk_usage(folder).free // 2)
        file = DirectFile(kept or folder / f"pages-{os.getpid()}-{id(config):x}", keep=kept is not None)
    except OSError as error:
        raise StorageFailed(
            f"The disk tier cannot be made in {folder} ({error.strerror or error}): {ELSEWHERE}, or start the "
            "engine with --disk-memory 0 (in Python disk_memory=0) to go on without it."
        ) from error
    return DiskTier(file, limit, memory=memory_of(device))


def memory_of(device: torch.device) -> Memory:
    return pinned_if_allowed if device.type == "cuda" else pageable


def _host_limit(config: EngineConfig) -> int:
    return main_memory().available // 2 if config.host_memory is None else config.host_memory


# The process's main and device memory beyond the engine's own accounting. Measures; decides nothing. With a model of
# 1.0 GiB served within 512 MiB on the CPU the process had 1,861 MB: 1,143 mapped from the model file, which the system
# can evict, and 717 of its own. Of the 717, 405 were accounted weights, 255 Python, torch and transformers before
# anything was loaded, and the rest kept by allocators from loading and the self-test.


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessFootprint:
    """The parts of the process's own main memory. `runtime` are the bytes it had before a model was loaded, `weights`
    the bytes of resident weights; both None where the system does not report them."""

    device: torch.device
    runtime: int | None
    weights: int | None

    def reading(self, usage: Usage, weights: WeightsStatistics, taken: int, tiers: Tiers) -> ProcessMemory:
        """Return the parts; `taken` are the bytes that sessions hold on all devices."""
        accounted = self._accounted(weights, taken, tiers)
        beyond = None
        if usage.anonymous_bytes is not None and self.runtime is not None:
            beyond = max(0, usage.anonymous_bytes - self.runtime - accounted)
        reserved = usage.reserved_bytes
        return ProcessMemory(
            anonymous_bytes=usage.anonymous_bytes,
            mapped_bytes=usage.mapped_bytes,
            accounted_bytes=accounted,
            runtime_bytes=self.runtime,
            beyond_bytes=beyond,
            device_beyond_bytes=None if reserved is None else max(0, reserved - weights.bytes_on_device - taken),
        )

    def _accounted(self, weights: WeightsStatistics, taken: int, tiers: Tiers) -> int:
        """Return the accounted bytes in main memory that are not mapped from a file."""
        in_tiers = tiers.host_bytes
        held = weights.bytes_held_on_host or 0
        if self.device.type != "cpu":
            return in_tiers + held
        streamed = weights.residency != "resident"
        return in_tiers + taken + held + (weights.bytes_on_device if streamed else self.weights or 0)


def footprint_of(model: nn.Module, device: torch.device, runtime: int | None) -> ProcessFootprint:
    """Return the footprint of a model whose weights are in place. Which of them are mapped from a file is read once."""
    parts = (part for weight in weights_of(model) for part in plain_parts(weight.tensor))
    own = bytes_in_memory(raw_bytes(part) for part in parts if part.is_contiguous())
    return ProcessFootprint(device=device, runtime=runtime, weights=own)
