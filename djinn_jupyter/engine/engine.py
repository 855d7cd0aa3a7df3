"""One model on one device, its slabs and its sessions; moved by `tick`. Knows no sockets.

Any thread may `submit`; everything else happens on the engine's thread: read the mail, give the next job a slice,
reply. A job yields between layers whenever there is mail, so no command waits longer than a layer for another session's
prefill."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from functools import partial

import torch

from djinn_jupyter.engine import promises
from djinn_jupyter.engine.config import EngineConfig
from djinn_jupyter.engine.forward.forward import Forward
from djinn_jupyter.engine.memory.budget import Budget
from djinn_jupyter.engine.memory.kv.cache import PagedCache
from djinn_jupyter.engine.memory.kv.invariants import check_books
from djinn_jupyter.engine.memory.kv.slab import Slab
from djinn_jupyter.engine.memory.offload.disk import DiskTier
from djinn_jupyter.engine.memory.offload.host import HostTier
from djinn_jupyter.engine.memory.offload.mover import Moved, ThreadMover
from djinn_jupyter.engine.memory.offload.storages import Blobs
from djinn_jupyter.engine.memory.offload.tiers import Tiers
from djinn_jupyter.engine.memory.weights.idle_sleep import Drowsiness
from djinn_jupyter.engine.model.loading.tokenizer import TokenText
from djinn_jupyter.engine.model.loading.tokenizer_process import TokenizerProcess
from djinn_jupyter.engine.persistence.file_worker import until_done
from djinn_jupyter.engine.persistence.persistence import Keeping
from djinn_jupyter.engine.persistence.shutdown import OrderlyShutdown
from djinn_jupyter.engine.process_memory import Footprint
from djinn_jupyter.engine.requests.answers import Answers
from djinn_jupyter.engine.requests.attribution import Attributing
from djinn_jupyter.engine.requests.checkpoints import CheckpointRequests
from djinn_jupyter.engine.requests.dispatcher import Dispatcher
from djinn_jupyter.engine.requests.execution import Moving
from djinn_jupyter.engine.requests.handles import Handlers
from djinn_jupyter.engine.requests.inspection import Looking
from djinn_jupyter.engine.requests.interventions import Breakpoints, Edits, Rules
from djinn_jupyter.engine.requests.lifecycle import Lifecycle
from djinn_jupyter.engine.requests.sessions import SessionRequests
from djinn_jupyter.engine.requests.stateless import STATELESS, StatelessRequests
from djinn_jupyter.engine.requests.swap import Residing
from djinn_jupyter.engine.requests.switching import Switching
from djinn_jupyter.engine.requests.tree import Branches
from djinn_jupyter.engine.requests.weights import WeightRequests
from djinn_jupyter.engine.residency.residency import Residency
from djinn_jupyter.engine.scheduling.giving_way import GivingWay
from djinn_jupyter.engine.scheduling.lockstep import Lockstep
from djinn_jupyter.engine.scheduling.mailbox import (
    Departure,
    Holder,
    Mailbox,
    QueuedRequest,
    TextRead,
)
from djinn_jupyter.engine.scheduling.scheduler import Scheduler
from djinn_jupyter.engine.scheduling.tokenizing import PendingTokens, Tokenizing
from djinn_jupyter.engine.scheduling.waiting import Waiting
from djinn_jupyter.engine.session.runtime import Runtime
from djinn_jupyter.engine.session.session import Session
from djinn_jupyter.engine.session.table import SessionTable
from djinn_jupyter.engine.state_publisher import EngineReading, StatePublisher
from djinn_jupyter.engine.system.counters import Counters
from djinn_jupyter.engine.system.device import Usage
from djinn_jupyter.engine.system.faults import Faults, broken
from djinn_jupyter.engine.system.prefill_throttle import Pace
from djinn_jupyter.engine.turns import Turns
from djinn_jupyter.errors import DjinnError, from_code
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.codec import as_read
from djinn_jupyter.wire.nouns import ModelDescription, Transfer
from djinn_jupyter.wire.replies import Event, Failed, Reply

log = logging.getLogger(__name__)

CHECKS_TAKE_ONE_IN = 50  # parts of the engine's time: the accounting of thousands of pages takes milliseconds to check


class Engine:
    """The parts are built by `open_engine` and passed in. `publish` gets every event, on the engine's thread."""

    def __init__(
        self,
        *,
        config: EngineConfig,
        forward: Forward,
        tokenizer: TokenText,
        description: ModelDescription,
        budget: Budget,
        slabs: tuple[Slab, ...],
        keeping: Keeping,
        publish: Callable[[Event], None],
        host: HostTier | None = None,
        disk: DiskTier | None = None,
        tokenizer_process: TokenizerProcess | None = None,
        footprint: Footprint | None = None,
    ) -> None:
        self.config, self.forward, self.tokenizer, self.keeping = config, forward, tokenizer, keeping
        self.model, self.anatomy, self.geometry = forward.model, forward.anatomy, forward.geometry
        self.budget, self.slabs, self.weights = budget, slabs, forward.weights
        self.mailbox, self.faults, self.counters = Mailbox(), Faults(), Counters()
        self.scheduler = Scheduler(Lockstep(forward.layers) if self.weights.streamed else None)
        self.tokenizing = Tokenizing(tokenizer, tokenizer_process, self.mailbox.wake, self.faults.reply_to)
        self.waiting, self.answers = Waiting(), Answers(self.counters)
        self.giving_way = GivingWay(self.mailbox, self.scheduler, Pace.of(forward.device))
        self.mover = ThreadMover(self.mailbox.post, forward.device)
        self.tiers = Tiers(host, disk, self.mover, forward.device)
        self.blobs = Blobs(forward.device, budget)
        self.sessions = SessionTable(self.blobs, changed=keeping.touch, forgotten=keeping.forget)
        self.residency = Residency(
            self.sessions,
            slabs,
            budget,
            self.tiers,
            self.blobs,
            idle_seconds=config.idle_swap_seconds,
            begun=Usage.read(forward.device),
            faults=self.faults,
            waiting=self.waiting,
            others_go_on=self.scheduler.others_go_on,
            swapped=self._swapped,
        )
        self.state_publisher = StatePublisher(
            self.sessions,
            slabs,
            self.scheduler,
            forward.device,
            self.weights,
            self.tiers,
            self.residency,
            self.faults,
            budget,
            self.counters,
            footprint,
        )
        self.runtime = Runtime(
            forward=forward,
            tokenizer=tokenizer,
            description=description,
            space=self.residency,
            counters=self.counters,
            should_yield=lambda: self.giving_way.asked(),
            publish=publish,
            new_cache=lambda: PagedCache.create(forward.model.config, forward.geometry, slabs),
        )
        self.lifecycle = Lifecycle(
            self.sessions, self.scheduler, self.residency, self.waiting, self.answers, self.faults, publish
        )
        self.stateless = StatelessRequests(self.runtime, self.tokenizing, keeping.checkpoints, self.faults)
        self.handlers = self._handlers()
        self.dispatcher = Dispatcher(
            self.handlers,
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
        self.turns = Turns(
            self.dispatcher,
            self.runtime,
            giving_way=self.giving_way,
            sessions=self.sessions,
            life=self.lifecycle,
            scheduler=self.scheduler,
            residency=self.residency,
            faults=self.faults,
        )
        self.orderly_shutdown = OrderlyShutdown(
            self.sessions, self.scheduler, self.residency, moving=lambda: self.tiers.moving, hear=self._hear
        )
        self._checked = True
        self._check_due = 0.0
        self._drowsy = Drowsiness(self.weights, config.sleep_seconds, forward.device)

    def _handlers(self) -> Handlers:
        """Return one handler for each kind of request, given the parts that it works with."""
        sessions, runtime, residency, kept = self.sessions, self.runtime, self.residency, self.config.stops_kept
        until = partial(until_done, self.mailbox, self.scheduler)
        return Handlers(
            SessionRequests(sessions, self.lifecycle, runtime, residency, kept),
            Moving(sessions, runtime, residency),
            Breakpoints(sessions, runtime),
            Edits(sessions, runtime, residency),
            Rules(sessions, runtime),
            Switching(sessions, runtime, residency),
            Looking(sessions, runtime),
            Attributing(sessions, runtime),
            Branches(sessions, runtime),
            Residing(sessions, residency),
            WeightRequests(sessions, self.weights),
            CheckpointRequests(sessions, self.lifecycle, runtime, self.keeping, residency, self.blobs, until, kept),
        )

    def _swapped(self, session: Session, transfer: Transfer | None) -> None:
        self.dispatcher.swapped(session, transfer)

    # --- from any thread -------------------------------------------------------------------------------------------

    def submit(self, request: ask.Request, holder: Holder, reply: Callable[[Reply], None]) -> None:
        """Take a request of this process, checked as if it had come over the wire."""
        try:
            request = as_read(request)
        except Exception as error:  # noqa: BLE001  the request's edge
            return reply(self.faults.reply_to(error))
        self.accept(request, holder, reply)

    def accept(self, request: ask.Request, holder: Holder, reply: Callable[[Reply], None]) -> None:
        """Take a request that was read off the wire. A request that needs no session is answered by a worker; the rest
        are posted to the engine's thread."""
        try:
            if isinstance(request, STATELESS):
                self.stateless.answer_elsewhere(request, reply)
                return
            tokens = self._begin_tokens(request) if isinstance(request, ask.Run) else None
        except Exception as error:  # noqa: BLE001  the request's edge
            reply(self.faults.reply_to(error))
        else:
            self.mailbox.post(QueuedRequest(request=request, holder=holder, reply=reply, tokens=tokens))

    def _begin_tokens(self, request: ask.Run) -> PendingTokens | None:
        def post() -> None:
            self.mailbox.post(TextRead(session=request.session))

        return self.stateless.begin_tokens(request, post)

    def depart(self, holder: Holder) -> None:
        """Post that the holder has gone; its sessions stay, detached."""
        self.mailbox.post(Departure(holder=holder))

    # --- on the engine's thread ------------------------------------------------------------------------------------

    @torch.inference_mode()
    def tick(self) -> bool:
        """Read the mail and give one job a slice. Return False when there was nothing to do. Raises EngineBroken
        alone."""
        changes = self.residency.changes
        moved = self.read_mail()
        if moved:
            self._send()  # before the job's slice, which may last until the next mail
        advanced = self.turns.advance_next()
        took_up = self.dispatcher.take_up_all()
        busy = moved or advanced or took_up
        if not busy:
            self._rest()
        with self.faults.during("it made room for stops"):
            self.residency.relieve()
        busy = busy or self.residency.changes != changes  # jobs that wait for room look again now
        self._checked = not busy
        self._send(idle=not busy)
        self._look_around(busy)
        return busy

    def _look_around(self, busy: bool) -> None:
        """Do the work that belongs to no request, after each slice."""
        with self.faults.during("it sent weights to nap"):
            self._drowsy.tell(busy)
        with self.faults.during("it looked at what other programs need"):
            self.residency.heed(self.state_publisher.outside)
        self._require_sound_books()
        with self.faults.during("it wrote the journal"):
            self.keeping.attend(self.sessions, idle=not busy)
        with self.faults.during("it told of the journal"):
            self.state_publisher.heed_journal(self.keeping.trouble, self.keeping.unkept)

    def _rest(self) -> None:
        begun = time.monotonic()
        if not self._checked and not len(self.scheduler) and begun >= self._check_due:
            with self.faults.during("it checked the books"):
                self.check_books()
            self._check_due = begun + CHECKS_TAKE_ONE_IN * (time.monotonic() - begun)
        with self.faults.during("it rested"):
            self.residency.rest()

    def _require_sound_books(self) -> None:
        """Raise EngineBroken where an error has left inconsistent accounting, before wrong state is sent or written."""
        if not self.faults.suspected:
            return
        try:
            self.check_books()
        except Exception as error:
            raise broken(error) from error
        self.faults.suspected = False

    @property
    def watchful(self) -> bool:
        """True while some session could be evicted, evicted ones left memory to give back, or a session is not yet in
        the journal; the daemon then ticks every second instead of every five."""
        return bool(self.keeping.unkept) or self.residency.has_to_look

    def check_books(self, contents: bool = False) -> None:
        """Raise BooksBroken unless slabs, tables and tiers agree; with `contents`, compare working copies too."""
        caches = [session.cache for session in self.sessions.values()]
        check_books(self.slabs, caches, contents, tiers=self.tiers, blobs=self.blobs)

    def ask(self, request: ask.Request, holder: Holder | None = None) -> Reply:
        """Submit and tick until this request is answered: for use without threads or sockets. Raises its error."""
        replies: list[Reply] = []
        self.submit(request, holder or Holder(name="here", user="here"), replies.append)
        while not replies:
            tokenizing = self.tokenizing.busy  # read first: a worker that is done has replied before
            if self.tick() or replies:
                continue
            if self.tiers.moving or tokenizing:
                self.mailbox.wait()
            else:
                raise DjinnError("The engine is idle and the request is not answered; this is a fault of djinn.")
        if isinstance(replies[0], Failed):
            raise from_code(replies[0].code, replies[0].message)
        return replies[0]

    def _hear(self, seconds: float) -> None:
        self.mailbox.wait(seconds)
        self.read_mail()

    def read_mail(self) -> bool:
        """Deliver the mail that is there; mail that comes meanwhile waits until a job has had its slice."""
        mail = self.mailbox.take_all()
        for queued in mail:
            match queued:
                case Departure(holder=holder):
                    with self.faults.during("a holder went"):
                        self._detach_all(holder)
                case Moved():
                    with self.faults.during("it settled a move between tiers"):
                        self.residency.settle(queued)
                case TextRead(session=session):
                    self.dispatcher.read(session)
                case QueuedRequest():
                    self.dispatcher.dispatch(queued)
        with self.faults.during("it tidied up"):
            self.blobs.tidy()
        return bool(mail)

    def _detach_all(self, holder: Holder) -> None:
        for session in self.sessions.values():
            if session.holder == holder.name:
                session.holder = None
                self.residency.note(session, "gone")
                self.sessions.touch(session.name)

    def _send(self, idle: bool = False) -> None:
        self._require_sound_books()
        answers = self.answers.take()
        with self.faults.during("it wrote the journal"):
            answers = promises.keep(self.handlers, self.keeping, self.sessions, answers)
        with self.faults.during("it described its sessions"):
            self.state_publisher.heed_journal(self.keeping.trouble, self.keeping.unkept)
            if answers or self.state_publisher.due:
                self.state_publisher.publish(all_sessions=idle)
        for queued, reply in answers:
            with self.faults.during("a reply was handed over"):
                queued.reply(reply)

    # --- for verbs and jobs ----------------------------------------------------------------------------------------

    @property
    def description(self) -> ModelDescription:
        return self.runtime.description

    @property
    def reading(self) -> EngineReading:
        """The last published state; may be read from any thread."""
        return self.state_publisher.reading

    @property
    def keeps_sessions(self) -> bool:
        """True where the next engine will recover the sessions; may be read from any thread."""
        return self.keeping.journal is not None

    def forget_sessions(self) -> None:
        """Have the engine leave no journal at its end; may be called from any thread."""
        self.keeping.forgets = True

    def close(self) -> None:
        """End the engine: put away sessions that are kept, and let threads that copy or work on files finish what they
        have begun."""
        if self.keeps_sessions and not self.keeping.forgets:
            self.orderly_shutdown.put_away()
        self.keeping.close(self.sessions)
        self.tokenizing.close()
        self.tiers.stop()

    def abandon(self) -> None:
        """End a broken engine: only the writes that it has handed over are completed."""
        self.keeping.abandon()
