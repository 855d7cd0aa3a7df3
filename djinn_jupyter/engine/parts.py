"""The parts of one engine, each of which got its collaborators in its constructor. Does nothing."""

from __future__ import annotations

from dataclasses import dataclass

from djinn_jupyter.engine.accounting import Accounting
from djinn_jupyter.engine.config import EngineConfig
from djinn_jupyter.engine.delivery import Delivery
from djinn_jupyter.engine.memory.budget import Budget
from djinn_jupyter.engine.memory.kv.slab import Slab
from djinn_jupyter.engine.memory.offload.mover import Mover
from djinn_jupyter.engine.memory.offload.storages import StorageTable
from djinn_jupyter.engine.memory.offload.tiers import Tiers
from djinn_jupyter.engine.parallel.ranks import Ranks
from djinn_jupyter.engine.persistence.persistence import Persistence
from djinn_jupyter.engine.persistence.shutdown import OrderlyShutdown
from djinn_jupyter.engine.promises import Promises
from djinn_jupyter.engine.requests.dispatcher import Dispatcher
from djinn_jupyter.engine.requests.handles import RequestHandlers
from djinn_jupyter.engine.requests.intake import Intake
from djinn_jupyter.engine.requests.lifecycle import SessionLifecycle
from djinn_jupyter.engine.residency.residency import Residency
from djinn_jupyter.engine.scheduling.giving_way import GivingWay
from djinn_jupyter.engine.scheduling.mailbox import Mailbox
from djinn_jupyter.engine.scheduling.running_time import RunningTime
from djinn_jupyter.engine.scheduling.scheduler import Scheduler
from djinn_jupyter.engine.scheduling.tokenizing import Tokenizing
from djinn_jupyter.engine.scheduling.waiting import Waiting
from djinn_jupyter.engine.session.runtime import Runtime
from djinn_jupyter.engine.session.table import SessionTable
from djinn_jupyter.engine.state_publisher import StatePublisher
from djinn_jupyter.engine.system.faults import Faults
from djinn_jupyter.engine.turns import Turns
from djinn_jupyter.engine.upkeep import Upkeep


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    config: EngineConfig
    runtime: Runtime  # the model, and what running a pass needs
    faults: Faults

    # the memory
    budget: Budget
    slabs: tuple[Slab, ...]
    mover: Mover
    tiers: Tiers
    storage_table: StorageTable
    accounting: Accounting

    # the sessions
    sessions: SessionTable
    residency: Residency
    persistence: Persistence

    # requests, from their arrival to their replies
    mailbox: Mailbox
    tokenizing: Tokenizing
    intake: Intake
    waiting: Waiting
    handlers: RequestHandlers
    dispatcher: Dispatcher
    delivery: Delivery
    promises: Promises
    state_publisher: StatePublisher

    # jobs
    scheduler: Scheduler
    giving_way: GivingWay
    running_time: RunningTime
    turns: Turns

    # beside requests
    lifecycle: SessionLifecycle
    upkeep: Upkeep
    orderly_shutdown: OrderlyShutdown
    ranks: Ranks | None
