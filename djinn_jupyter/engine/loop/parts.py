"""The parts that the loop and the handlers of the core are built of, spelled once."""

from __future__ import annotations

from djinn_jupyter.engine.loop.mailbox import Mailbox, OpenRequests
from djinn_jupyter.engine.loop.scheduler import Scheduler
from djinn_jupyter.engine.memory.budget import Budget
from djinn_jupyter.engine.memory.kv.slab import Slab
from djinn_jupyter.engine.memory.offload.swappable import StorageTable
from djinn_jupyter.engine.memory.offload.tiers import Tiers
from djinn_jupyter.engine.residency.residency import Residency
from djinn_jupyter.engine.session.runtime import Runtime
from djinn_jupyter.engine.session.table import RunningTime, SessionTable
from djinn_jupyter.engine.store.persistence import Persistence
from djinn_jupyter.engine.system.config import EngineConfig
from djinn_jupyter.engine.system.faults import Counters, Faults


class EngineParts:
    """Each is set once, before what is built of it: the composition root says in which order."""

    config: EngineConfig
    faults: Faults
    counters: Counters
    budget: Budget
    slabs: tuple[Slab, ...]
    tiers: Tiers
    storage_table: StorageTable
    persistence: Persistence
    sessions: SessionTable
    running_time: RunningTime
    mailbox: Mailbox
    open_requests: OpenRequests
    scheduler: Scheduler
    residency: Residency
    runtime: Runtime


class BuiltOfParts:
    """A part of the loop, or an object with handlers."""

    def __init__(self, parts: EngineParts) -> None:
        self._parts, self._runtime, self._forward = parts, parts.runtime, parts.runtime.forward
        self._sessions, self._storage_table, self._residency = parts.sessions, parts.storage_table, parts.residency
        self._mailbox, self._open, self._scheduler = parts.mailbox, parts.open_requests, parts.scheduler
        self._persistence, self._faults = parts.persistence, parts.faults
