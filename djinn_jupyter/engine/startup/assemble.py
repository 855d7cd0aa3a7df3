"""Ties the parts of an engine together: each is given its collaborators in its constructor. Loads nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial

from djinn_jupyter.engine.accounting import Accounting
from djinn_jupyter.engine.config import EngineConfig
from djinn_jupyter.engine.delivery import Delivery
from djinn_jupyter.engine.engine import Engine
from djinn_jupyter.engine.forward.forward import Forward
from djinn_jupyter.engine.memory.budget import Budget
from djinn_jupyter.engine.memory.budgets import by_device
from djinn_jupyter.engine.memory.kv.cache import PagedCache
from djinn_jupyter.engine.memory.kv.slab import Slab
from djinn_jupyter.engine.memory.offload.disk import DiskTier
from djinn_jupyter.engine.memory.offload.host import HostTier
from djinn_jupyter.engine.memory.offload.mover import ThreadMover
from djinn_jupyter.engine.memory.offload.storages import StorageTable
from djinn_jupyter.engine.memory.offload.tiers import Tiers
from djinn_jupyter.engine.memory.weights.idle_sleep import IdleSleep
from djinn_jupyter.engine.model.loading.tokenizer import TokenText
from djinn_jupyter.engine.model.loading.tokenizer_process import TokenizerProcess
from djinn_jupyter.engine.parallel.ranks import Ranks
from djinn_jupyter.engine.parts import Parts
from djinn_jupyter.engine.persistence.file_worker import until_done
from djinn_jupyter.engine.persistence.persistence import Persistence
from djinn_jupyter.engine.persistence.shutdown import OrderlyShutdown
from djinn_jupyter.engine.process_memory import ProcessFootprint
from djinn_jupyter.engine.promises import Promises
from djinn_jupyter.engine.requests.answers import Answers
from djinn_jupyter.engine.requests.dispatcher import Dispatcher
from djinn_jupyter.engine.requests.ended_moves import EndedMoves
from djinn_jupyter.engine.requests.extents import extents
from djinn_jupyter.engine.requests.handlers import request_handlers
from djinn_jupyter.engine.requests.handles import RequestHandlers
from djinn_jupyter.engine.requests.intake import Intake
from djinn_jupyter.engine.requests.lifecycle import SessionLifecycle
from djinn_jupyter.engine.requests.moving import SessionMoves
from djinn_jupyter.engine.requests.owners import Owners
from djinn_jupyter.engine.requests.quotas import RequestQuotas
from djinn_jupyter.engine.requests.repeats import RepeatedRequests
from djinn_jupyter.engine.requests.stateless import StatelessRequests
from djinn_jupyter.engine.residency.eviction_policy import by_rest, in_order
from djinn_jupyter.engine.residency.residency import Residency
from djinn_jupyter.engine.scheduling.giving_way import GivingWay
from djinn_jupyter.engine.scheduling.lockstep import Lockstep
from djinn_jupyter.engine.scheduling.mailbox import Mailbox
from djinn_jupyter.engine.scheduling.running_time import RunningTime
from djinn_jupyter.engine.scheduling.scheduler import Scheduler
from djinn_jupyter.engine.scheduling.tokenizing import Tokenizing
from djinn_jupyter.engine.scheduling.waiting import Waiting
from djinn_jupyter.engine.session.adapters import AdapterTable
from djinn_jupyter.engine.session.added_modules import ModuleTable, SeenModules
from djinn_jupyter.engine.session.holdings import memory_of_persons
from djinn_jupyter.engine.session.runtime import Runtime
from djinn_jupyter.engine.session.sharing import SharedPasses
from djinn_jupyter.engine.session.table import SessionTable
from djinn_jupyter.engine.state_publisher import StatePublisher
from djinn_jupyter.engine.system.counters import Counters
from djinn_jupyter.engine.system.device import Usage
from djinn_jupyter.engine.system.faults import Faults
from djinn_jupyter.engine.system.prefill_throttle import PrefillThrottle
from djinn_jupyter.engine.turns import Turns
from djinn_jupyter.engine.upkeep import Upkeep
from djinn_jupyter.wire.nouns import ModelDescription
from djinn_jupyter.wire.replies import Event


@dataclass(frozen=True, slots=True, kw_only=True)
class Foundation:
    """The basis of an engine: a model whose points are known, and its memory and folders."""

    config: EngineConfig
    forward: Forward
    tokenizer: TokenText
    description: ModelDescription
    budget: Budget
    slabs: tuple[Slab, ...]
    persistence: Persistence
    publish: Callable[[Event], None]  # gets every event, on the engine's thread
    host: HostTier | None = None
    disk: DiskTier | None = None
    tokenizer_process: TokenizerProcess | None = None
    footprint: ProcessFootprint | None = None
    ranks: Ranks | None = None  # of a split model, besides this process


def assemble(given: Foundation) -> Engine:
    """Return an engine with an empty session table."""
    tied = _Assembly(given)
    parts = Parts(
        config=tied.config,
        runtime=tied.runtime,
        faults=tied.faults,
        budget=tied.budget,
        slabs=tied.slabs,
        mover=tied.mover,
        tiers=tied.tiers,
        storage_table=tied.storage_table,
        accounting=tied.accounting,
        sessions=tied.sessions,
        residency=tied.residency,
        persistence=tied.persistence,
        mailbox=tied.mailbox,
        tokenizing=tied.tokenizing,
        intake=tied.intake,
        waiting=tied.waiting,
        handlers=tied.handlers,
        dispatcher=tied.dispatcher,
        delivery=tied.delivery,
        promises=tied.promises,
        state_publisher=tied.state_publisher,
        scheduler=tied.scheduler,
        giving_way=tied.giving_way,
        running_time=tied.running_time,
        turns=tied.turns,
        lifecycle=tied.lifecycle,
        upkeep=tied.upkeep,
        orderly_shutdown=tied.orderly_shutdown,
        ranks=given.ranks,
    )
    if given.ranks is not None:
        given.ranks.on_loss(tied.mailbox.wake)
    return Engine(parts)


class _Assembly:
    """Each part is built once, when another one asks for it; two that asked for each other would never end."""

    def __init__(self, given: Foundation) -> None:
        self.given, self.config, self.persistence = given, given.config, given.persistence
        self.slabs, self.budget, self.device = given.slabs, given.budget, given.forward.device
        self.mailbox, self.faults, self.counters = Mailbox(), Faults(), Counters()
        self.waiting, self.answers, self.running_time = Waiting(), Answers(self.counters), RunningTime()
        self.weights, self.budgets = given.forward.weights, by_device(given.budget, self.device)

    # --- the memory ------------------------------------------------------------------------------------------------

    @cached_property
    def mover(self) -> ThreadMover:
        return ThreadMover(self.mailbox.post, *self.budgets)

    @cached_property
    def tiers(self) -> Tiers:
        return Tiers(self.given.host, self.given.disk, self.mover, *self.budgets)

    @cached_property
    def storage_table(self) -> StorageTable:
        return StorageTable(self.budgets)

    @cached_property
    def accounting(self) -> Accounting:
        return Accounting(
            self.sessions,
            self.slabs,
            self.tiers,
            self.storage_table,
            self.faults,
            of_no_session=lambda: self.runtime.sharing.caches,
            ranks=self.given.ranks,
        )

    # --- the sessions ----------------------------------------------------------------------------------------------

    @cached_property
    def sessions(self) -> SessionTable:
        return SessionTable(self.storage_table, changed=self.persistence.touch, forgotten=self.persistence.forget)

    @cached_property
    def residency(self) -> Residency:
        ended = EndedMoves(self.sessions, self.waiting, self.answers, self.given.publish)
        return Residency(
            self.sessions,
            self.slabs,
            self.budget,
            self.tiers,
            self.storage_table,
            options=self.config,
            begun=Usage.read(*self.budgets),
            faults=self.faults,
            waiting=self.waiting,
            others_go_on=self.scheduler.others_go_on,
            at_work=lambda: (job.session for job in self.scheduler.jobs),
            swapped=ended.ended,
            new_cache=self._new_cache,
            saved=lambda person: self.persistence.checkpoints.bytes_by_person().get(person, 0),
            added=self._added,
            order=by_rest if self.config.evict_by_last_use else in_order,
            prefetches=not self.config.no_prefetch,
        )

    @cached_property
    def lifecycle(self) -> SessionLifecycle:
        return SessionLifecycle(
            self.sessions,
            self.scheduler,
            self.residency,
            self.waiting,
            self.answers,
            self.faults,
            self.given.publish,
        )

    @cached_property
    def moves(self) -> SessionMoves:
        return SessionMoves(self.sessions, self.lifecycle, self.persistence)

    @cached_property
    def orderly_shutdown(self) -> OrderlyShutdown:
        return OrderlyShutdown(
            self.sessions,
            self.scheduler,
            self.residency,
            moving=lambda: self.tiers.moving,
            hear=self.delivery.hear,
        )

    # --- requests, from their arrival to their replies -------------------------------------------------------------

    @cached_property
    def owners(self) -> Owners:
        return Owners(self.sessions, self.residency)

    @cached_property
    def repeats(self) -> RepeatedRequests:
        return RepeatedRequests(self.sessions)

    @cached_property
    def quotas(self) -> RequestQuotas:
        return RequestQuotas(self.sessions, self.residency, self.scheduler, self.running_time)

    @cached_property
    def tokenizing(self) -> Tokenizing:
        given = self.given
        return Tokenizing(given.tokenizer, given.tokenizer_process, self.mailbox.wake, self.faults.reply_to)

    @cached_property
    def stateless(self) -> StatelessRequests:
        return StatelessRequests(self.runtime, self.tokenizing, self.persistence.checkpoints, self.faults)

    @cached_property
    def extents(self) -> dict[str, int]:
        return extents(self.runtime.description.context_length)

    @cached_property
    def intake(self) -> Intake:
        return Intake(self.mailbox, self.stateless, self.faults, self.extents)

    @cached_property
    def handlers(self) -> RequestHandlers:
        return request_handlers(
            sessions=self.sessions,
            lifecycle=self.lifecycle,
            owners=self.owners,
            moves=self.moves,
            runtime=self.runtime,
            residency=self.residency,
            persistence=self.persistence,
            storage_table=self.storage_table,
            budget=self.budget,
            running_time=self.running_time,
            options=self.config,
            until=partial(until_done, self.mailbox, self.scheduler),
            extents=self.extents,
        )

    @cached_property
    def dispatcher(self) -> Dispatcher:
        return Dispatcher(
            self.handlers,
            self.owners,
            self.repeats,
            self.quotas,
            self.stateless,
            self.runtime,
            sessions=self.sessions,
            life=self.lifecycle,
            scheduler=self.scheduler,
            residency=self.residency,
            waiting=self.waiting,
            answers=self.answers,
            faults=self.faults,
        )

    @cached_property
    def delivery(self) -> Delivery:
        return Delivery(
            self.mailbox,
            self.dispatcher,
            sessions=self.sessions,
            life=self.lifecycle,
            residency=self.residency,
            storage_table=self.storage_table,
            faults=self.faults,
        )

    @cached_property
    def state_publisher(self) -> StatePublisher:
        return StatePublisher(
            self.sessions,
            self.slabs,
            self.scheduler,
            tuple(self.budgets),
            self.weights,
            self.tiers,
            self.residency,
            self.faults,
            self.budget,
            self.counters,
            self.given.footprint,
            lambda: memory_of_persons(self.sessions.values(), self.storage_table, self._added),
            self.given.config.limits,
        )

    @cached_property
    def promises(self) -> Promises:
        return Promises(
            self.answers,
            self.repeats,
            self.accounting,
            self.state_publisher,
            sessions=self.sessions,
            persistence=self.persistence,
            faults=self.faults,
        )

    # --- passes, jobs, and what belongs to no request --------------------------------------------------------------

    @cached_property
    def scheduler(self) -> Scheduler:
        return Scheduler(Lockstep(self.given.forward.layers) if self.weights.streamed else None)

    @cached_property
    def giving_way(self) -> GivingWay:
        return GivingWay(self.mailbox, self.scheduler, PrefillThrottle.of(*self.budgets))

    def _new_cache(self) -> PagedCache:
        forward = self.given.forward
        return PagedCache.create(forward.model.config, forward.geometry, self.slabs)

    @cached_property
    def modules(self) -> ModuleTable:
        return ModuleTable(self.budget)

    @cached_property
    def adapters(self) -> AdapterTable:
        return AdapterTable(self.budget)

    def _added(self, person: str | None) -> int:
        """Return the bytes that a person has added to the model."""
        return self.modules.bytes_of(person) + self.adapters.bytes_of(person)

    @cached_property
    def runtime(self) -> Runtime:
        forward = self.given.forward
        return Runtime(
            forward=forward,
            tokenizer=self.given.tokenizer,
            description=self.given.description,
            space=self.residency,
            counters=self.counters,
            giving_way=self.giving_way,
            publish=self.given.publish,
            modules=SeenModules(self.modules, self.adapters),
            sharing=SharedPasses(forward, self._new_cache, self.giving_way.asked, self.budget),
        )

    @cached_property
    def turns(self) -> Turns:
        return Turns(
            self.dispatcher,
            self.runtime,
            giving_way=self.giving_way,
            sessions=self.sessions,
            life=self.lifecycle,
            scheduler=self.scheduler,
            residency=self.residency,
            running_time=self.running_time,
            quotas=self.quotas,
            faults=self.faults,
        )

    @cached_property
    def upkeep(self) -> Upkeep:
        return Upkeep(
            self.accounting,
            IdleSleep(self.weights, self.config, self.device),
            self.state_publisher,
            sessions=self.sessions,
            persistence=self.persistence,
            residency=self.residency,
            moves=self.moves,
            scheduler=self.scheduler,
            faults=self.faults,
        )
