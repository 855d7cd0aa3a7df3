"""The parts of one engine, each built once from the parts above it. The composition root: it decides nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from djinn_jupyter.engine.loop.dispatch import Dispatcher, SessionLifecycle
from djinn_jupyter.engine.loop.intake import Intake, Tokenizing, extents, most_tokens
from djinn_jupyter.engine.loop.mailbox import Mailbox, OpenRequests
from djinn_jupyter.engine.loop.owners import Owners
from djinn_jupyter.engine.loop.parts import EngineParts
from djinn_jupyter.engine.loop.replies import Accounting, ReplyGate, StatePublisher
from djinn_jupyter.engine.loop.scheduler import Lockstep, Scheduler
from djinn_jupyter.engine.loop.turns import OrderlyShutdown, Turns, Upkeep
from djinn_jupyter.engine.memory.budget import Budget, by_device
from djinn_jupyter.engine.memory.kv.cache import PagedCache
from djinn_jupyter.engine.memory.kv.slab import Slab
from djinn_jupyter.engine.memory.offload.disk import DiskTier
from djinn_jupyter.engine.memory.offload.host import HostTier
from djinn_jupyter.engine.memory.offload.mover import ThreadMover
from djinn_jupyter.engine.memory.offload.swappable import StorageTable
from djinn_jupyter.engine.memory.offload.tiers import Tiers
from djinn_jupyter.engine.memory.weights.residence import IdleSleep
from djinn_jupyter.engine.model.loading.tokenizer import TokenText
from djinn_jupyter.engine.model.loading.tokenizer_process import TokenizerProcess
from djinn_jupyter.engine.passes.forward import Forward
from djinn_jupyter.engine.requests.execution import ExecutionRequests
from djinn_jupyter.engine.requests.handlers import MethodParts, RequestHandlers, handlers_of_methods
from djinn_jupyter.engine.requests.inspection import InspectionRequests
from djinn_jupyter.engine.requests.interventions import InterventionRequests
from djinn_jupyter.engine.requests.sessions import (
    CheckpointRequests,
    SessionRequests,
    WeightRequests,
    WholeImages,
)
from djinn_jupyter.engine.residency.eviction_policy import latest_return_first, least_recently_used
from djinn_jupyter.engine.residency.residency import ProcessFootprint, Residency
from djinn_jupyter.engine.session.runtime import Runtime
from djinn_jupyter.engine.session.sharing import SharedPasses
from djinn_jupyter.engine.session.table import RunningTime, SessionTable, memory_of_persons
from djinn_jupyter.engine.store.persistence import Persistence
from djinn_jupyter.engine.system.config import EngineConfig
from djinn_jupyter.engine.system.device import PrefillThrottle, Usage
from djinn_jupyter.engine.system.faults import Counters, Faults
from djinn_jupyter.modules.engine.added import AdapterTable, ModuleTable, SeenModules
from djinn_jupyter.modules.engine.handlers import AdapterRequests, AddedModuleRequests
from djinn_jupyter.parallel.ranks import Ranks
from djinn_jupyter.remote.engine.people import PeopleRequests
from djinn_jupyter.remote.engine.requests_moving import MoveRequests, SessionMoves
from djinn_jupyter.wire.nouns import ModelDescription
from djinn_jupyter.wire.replies import Event


@dataclass(frozen=True, slots=True, kw_only=True)
class Foundation:
    """The basis of an engine: a probed model, and its memory and folders."""

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


class Parts(EngineParts):
    """The session table is empty at first."""

    def __init__(self, given: Foundation) -> None:
        self.config, self.persistence, self.ranks = given.config, given.persistence, given.ranks
        self.forward, self.tokenizer = given.forward, given.tokenizer
        self.weights, self.model = given.forward.weights, given.forward.model
        self.anatomy, self.geometry = given.forward.anatomy, given.forward.geometry
        self.budget, self.slabs = given.budget, given.slabs
        self.mailbox, self.faults, self.counters = Mailbox(), Faults(), Counters()
        self.open_requests, self.running_time = OpenRequests(self.counters), RunningTime()
        self._build_memory(given)
        self._build_sessions(given)
        self._build_loop(given)
        if given.ranks is not None:
            given.ranks.on_loss(self.mailbox.wake)

    def _build_memory(self, given: Foundation) -> None:
        self._budgets = by_device(given.budget, given.forward.device)
        self.mover = ThreadMover(self.mailbox.post, *self._budgets)
        self.tiers = Tiers(given.host, given.disk, self.mover, *self._budgets)
        self.storage_table = StorageTable(self._budgets)
        self._modules, self._adapters = ModuleTable(self.budget), AdapterTable(self.budget)

    def _build_sessions(self, given: Foundation) -> None:
        self.sessions = SessionTable(
            self.storage_table, changed=self.persistence.touch, forgotten=self.persistence.forget
        )
        new_cache = partial(PagedCache.create, self.model.config, self.geometry, self.slabs)
        lockstep = Lockstep(given.forward.layers) if self.weights.streamed else None
        self.scheduler = Scheduler(self.mailbox, PrefillThrottle.of(*self._budgets), lockstep)
        self.residency = Residency(
            self.sessions,
            self.slabs,
            self.budget,
            self.tiers,
            self.storage_table,
            options=self.config,
            begun=Usage.read(*self._budgets),
            faults=self.faults,
            waiting=self.open_requests,
            others_go_on=self.scheduler.others_go_on,
            at_work=lambda: (job.session for job in self.scheduler.jobs),
            swapped=lambda session, transfer: self.lifecycle.moved(session, transfer),
            new_cache=new_cache,
            saved=lambda person: self.persistence.checkpoints.bytes_by_person().get(person, 0),
            added=self._added,
            order=least_recently_used if self.config.evict_by_last_use else latest_return_first,
            prefetches=not self.config.no_prefetch,
        )
        self.runtime = Runtime(
            forward=given.forward,
            tokenizer=given.tokenizer,
            description=given.description,
            space=self.residency,
            counters=self.counters,
            giving_way=self.scheduler,
            publish=given.publish,
            modules=SeenModules(self._modules, self._adapters),
            sharing=SharedPasses(given.forward, new_cache, self.scheduler.asked, self.budget),
        )
        self.lifecycle = SessionLifecycle(self)
        self.moves = SessionMoves(self.sessions, self.lifecycle, self.persistence)

    def _build_loop(self, given: Foundation) -> None:
        self.accounting = Accounting(self, given.ranks)
        self.state_publisher = StatePublisher(
            self,
            tuple(self._budgets),
            given.footprint,
            lambda: memory_of_persons(self.sessions.values(), self.storage_table, self._added),
        )
        self.tokenizing = Tokenizing(
            given.tokenizer,
            given.tokenizer_process,
            most_tokens(given.description.context_length),
            self.mailbox.wake,
            self.faults.reply_to,
        )
        owners = Owners(self)
        self.extents = extents(given.description.context_length)
        self.intake = Intake(self, self.tokenizing, self.extents)
        self.handlers = self._handlers(owners)
        self.dispatcher = Dispatcher(self, self.handlers.answer, owners, self.intake, self.lifecycle)
        self.turns = Turns(self, self.dispatcher, self.lifecycle, owners)
        self.reply_gate = ReplyGate(self, self.accounting, self.state_publisher)
        idle_sleep = IdleSleep(self.weights, self.config, given.forward.device)
        self.upkeep = Upkeep(self, self.accounting, idle_sleep, self.state_publisher, self.moves.settle_old)
        self.orderly_shutdown = OrderlyShutdown(self, self.dispatcher)

    def _handlers(self, owners: Owners) -> RequestHandlers:
        """Return one handler for each kind of request."""
        until = self.scheduler.until_done
        inspection, interventions = InspectionRequests(self), InterventionRequests(self)
        images = WholeImages(self)
        methods = MethodParts(
            sessions=self.sessions,
            runtime=self.runtime,
            budget=self.budget,
            identity=self.persistence.identity,
            files=self.persistence.file_worker,
            until_done=until,
            extents=self.extents,
        )
        return RequestHandlers(
            self.sessions,
            SessionRequests(self, self.lifecycle),
            ExecutionRequests(self, inspection, interventions),
            interventions,
            inspection,
            PeopleRequests(self),
            WeightRequests(self),
            AddedModuleRequests(self.sessions, self.runtime),
            AdapterRequests(self.sessions, self.runtime),
            CheckpointRequests(self, self.lifecycle, owners, images, until),
            MoveRequests(self, self.lifecycle, self.moves, images, until),
            *handlers_of_methods(methods),
            split=self.runtime.forward.split,
        )

    def _added(self, person: str | None) -> int:
        """Return the bytes that a person has added to the model."""
        return self._modules.bytes_of(person) + self._adapters.bytes_of(person)
