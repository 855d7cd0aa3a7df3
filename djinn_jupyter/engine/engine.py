"""One model on one device, its slabs and its sessions; moved by `tick`. Knows no sockets.

Any thread may `submit`; everything else happens on the engine's thread: read the mail, give the next job a slice,
reply. A job gives way between layers whenever mail is there, so no command waits longer than a layer for somebody's
prefill."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Generator

import torch
from transformers import PreTrainedModel

from djinn_jupyter.engine import enquiries, promises
from djinn_jupyter.engine.bulletin import Books, Bulletin, EngineReading
from djinn_jupyter.engine.config import EngineConfig
from djinn_jupyter.engine.crossing import Outcome
from djinn_jupyter.engine.device import Usage
from djinn_jupyter.engine.faults import Faults, broken
from djinn_jupyter.engine.forward import Forward
from djinn_jupyter.engine.frame import Frame
from djinn_jupyter.engine.keeping.keeping import Keeping
from djinn_jupyter.engine.keeping.parting import put_away
from djinn_jupyter.engine.letters import Letters
from djinn_jupyter.engine.lockstep import Lockstep
from djinn_jupyter.engine.mailbox import Departure, Holder, Letter, Mailbox, TextRead
from djinn_jupyter.engine.memory.blobs import Blobs
from djinn_jupyter.engine.memory.books import check_books
from djinn_jupyter.engine.memory.budget import Budget
from djinn_jupyter.engine.memory.cache import PagedCache
from djinn_jupyter.engine.memory.disk import DiskTier
from djinn_jupyter.engine.memory.geometry import CacheGeometry
from djinn_jupyter.engine.memory.host import HostTier
from djinn_jupyter.engine.memory.mover import Moved, ThreadMover
from djinn_jupyter.engine.memory.slab import Slab
from djinn_jupyter.engine.memory.tiers import Tiers
from djinn_jupyter.engine.model.anatomy import Anatomy
from djinn_jupyter.engine.model.taps import Tap
from djinn_jupyter.engine.model.tokenizer import TokenText
from djinn_jupyter.engine.model.tokenizer_process import TokenizerProcess
from djinn_jupyter.engine.pace import Pace
from djinn_jupyter.engine.plan import Plan
from djinn_jupyter.engine.residency.neighbours import Neighbours
from djinn_jupyter.engine.residency.notebooks import Notebooks
from djinn_jupyter.engine.residency.room import Room
from djinn_jupyter.engine.residency.stop_room import entered
from djinn_jupyter.engine.residency.swapping import Swapping
from djinn_jupyter.engine.scheduler import Blocked, Scheduler
from djinn_jupyter.engine.session import Session
from djinn_jupyter.engine.tokenizing import PendingTokens, Tokenizing
from djinn_jupyter.engine.turns import Turns
from djinn_jupyter.engine.weights.drowsiness import Drowsiness
from djinn_jupyter.engine.weights.residence import Weights
from djinn_jupyter.errors import DjinnError, UnknownSession, from_code
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.codec import as_read
from djinn_jupyter.wire.nouns import ModelDescription
from djinn_jupyter.wire.replies import Event, Failed, Reply, SessionOpened
from djinn_jupyter.wire.sites import Site

log = logging.getLogger(__name__)

CHECKS_TAKE_ONE_IN = 50  # parts of the engine's time: books of thousands of pages take milliseconds to check


class Engine:
    """The parts are built by `open_engine` and passed in. `publish` gets every event, on the engine's thread."""

    def __init__(
        self,
        *,
        config: EngineConfig,
        model: PreTrainedModel,
        anatomy: Anatomy,
        geometry: CacheGeometry,
        budget: Budget,
        slabs: tuple[Slab, ...],
        forward: Forward,
        tokenizer: TokenText,
        weights: Weights,
        publish: Callable[[Event], None],
        host: HostTier | None = None,
        disk: DiskTier | None = None,
        tokenizer_process: TokenizerProcess | None = None,
    ) -> None:
        self.config, self.model, self.anatomy, self.geometry = config, model, anatomy, geometry
        self.budget, self.slabs, self.forward, self.tokenizer, self.weights = budget, slabs, forward, tokenizer, weights
        self.publish = publish
        self.mailbox, self.scheduler, self.faults = Mailbox(), Scheduler(), Faults()
        self.tokenizing = Tokenizing(tokenizer, tokenizer_process, self.mailbox.wake, self.faults.reply_to)
        self.sessions: dict[str, Session] = {}
        self.letters, self.turns = Letters(self), Turns(self, Pace.of(forward.device))
        self.mover = ThreadMover(self.mailbox.post, forward.device)
        self.tiers = Tiers(host, disk, self.mover, forward.device)
        self.blobs = Blobs(forward.device, budget)
        self.room = Room(self.sessions, self.scheduler, budget, idle_seconds=config.idle_swap_seconds)
        self.notebooks = Notebooks(self.sessions, slabs, budget, self.room.candidates)
        self.room.choose = self.notebooks.choose
        self.swapping = self.room.swapping = self.notebooks.swapping = Swapping(
            self.sessions, slabs, self.tiers, self.blobs, swapped=self.letters.swapped, find_room=self.room.find
        )
        self.older_stops = self.swapping.older_stops
        self.neighbours = Neighbours(self.sessions, self.room, self.swapping, Usage.read(forward.device))
        self.bulletin = Bulletin(
            self.sessions,
            slabs,
            self.scheduler,
            forward.device,
            weights,
            self.tiers,
            self.notebooks,
            self.faults,
            budget,
        )
        self.one_by_one = False
        self.recurrent = geometry.has_states
        self.description: ModelDescription  # by `opening`, when the self-test has been passed
        self.keeping: Keeping  # likewise
        self._answers: list[tuple[Letter, Reply]] = []
        self._last_edition = 0  # of sessions that were closed
        self._checked = True
        self._check_due = 0.0
        if weights.streamed:
            self.scheduler.lockstep = Lockstep(forward.layers)
        self._drowsy = Drowsiness(weights, config.nap_seconds, forward.device)

    def start_books(self, publish: Callable[[Event], None]) -> None:
        """From now on it counts: events are published, and what the self-test did is not in the books."""
        self.publish, self.bulletin.books = publish, Books()
        self.scheduler.preemptions = 0
        self.bulletin.publish()

    # --- from any thread -------------------------------------------------------------------------------------------

    def submit(self, request: ask.Request, holder: Holder, reply: Callable[[Reply], None]) -> None:
        """Take a request of this process, checked as if it had crossed the wire."""
        try:
            request = as_read(request)
        except Exception as error:  # noqa: BLE001  the request's edge
            return reply(self.faults.reply_to(error))
        self.accept(request, holder, reply)

    def accept(self, request: ask.Request, holder: Holder, reply: Callable[[Reply], None]) -> None:
        """Take a request that was read off the wire. What needs no session is answered by a worker, the rest posted to
        the engine's thread."""
        try:
            if isinstance(request, enquiries.ENQUIRIES):
                enquiries.answer_elsewhere(self, request, reply)
                return
            tokens = self._begin_tokens(request) if isinstance(request, ask.Run) else None
        except Exception as error:  # noqa: BLE001  the request's edge
            reply(self.faults.reply_to(error))
        else:
            self.mailbox.post(Letter(request=request, holder=holder, reply=reply, tokens=tokens))

    def _begin_tokens(self, request: ask.Run) -> PendingTokens | None:
        def post() -> None:
            self.mailbox.post(TextRead(session=request.session))

        return self.tokenizing.pending(request, self.description.context_length, post)

    def depart(self, holder: Holder) -> None:
        """The holder has gone; its sessions stay, detached."""
        self.mailbox.post(Departure(holder=holder))

    # --- on the engine's thread ------------------------------------------------------------------------------------

    @torch.inference_mode()
    def tick(self) -> bool:
        """Read the mail and give one job a slice; False when there was nothing to do. Raises EngineBroken alone."""
        changes = self.swapping.changes
        moved = self.read_mail()
        if moved:
            self._send()  # before the job's slice, which may last until the next letter
        advanced = self.turns.advance_next()
        took_up = self.letters.take_up_all()
        busy = moved or advanced or took_up
        if not busy:
            self._rest()
        with self.faults.during("it made room for stops"):
            self.room.relieve()
        busy = busy or self.swapping.changes != changes  # who waits for room looks again now, not at the next mail
        self._checked = not busy
        self._send(idle=not busy)
        self._look_around(busy)
        return busy

    def _look_around(self, busy: bool) -> None:
        """What is done for nobody's request, after each slice of work."""
        with self.faults.during("it sent weights to nap"):
            self._drowsy.tell(busy)
        with self.faults.during("it looked at what other programs need"):
            self.neighbours.heed(self.bulletin.outside)
        self._require_sound_books()
        with self.faults.during("it wrote the journal"):
            self.keeping.attend(self.sessions, idle=not busy)
        with self.faults.during("it told of the journal"):
            self.bulletin.heed_journal(self.keeping.trouble, self.keeping.unkept)

    def _rest(self) -> None:
        begun = time.monotonic()
        if not self._checked and not len(self.scheduler) and begun >= self._check_due:
            with self.faults.during("it checked the books"):
                self.check_books()
            self._check_due = begun + CHECKS_TAKE_ONE_IN * (time.monotonic() - begun)
        with self.faults.during("it rested"):
            self.blobs.purge()
            self.room.attend()

    def _require_sound_books(self) -> None:
        """EngineBroken where an error has left books that contradict each other: of what is wrong nothing is told and
        nothing written."""
        if not self.faults.suspected:
            return
        try:
            self.check_books()
        except Exception as error:
            raise broken(error) from error
        self.faults.suspected = False

    @property
    def watchful(self) -> bool:
        """Whether anybody rests on the device who may have to leave, or is yet to be kept: whoever waits for mail looks
        again soon."""
        return self.swapping.gives_back or bool(self.keeping.unkept) or bool(self.room.candidates())

    def check_books(self, contents: bool = False) -> None:
        """Raise BooksBroken unless slabs, tables and tiers agree; with `contents`, compare working copies too."""
        caches = [session.cache for session in self.sessions.values()]
        check_books(self.slabs, caches, contents, tiers=self.tiers, blobs=self.blobs)

    def ask(self, request: ask.Request, holder: Holder | None = None) -> Reply:
        """Submit and tick until this request is answered: the engine without threads or sockets. Raises what failed."""
        replies: list[Reply] = []
        self.submit(request, holder or Holder(name="here", user="here"), replies.append)
        while not replies:
            tokenizing = self.tokenizing.busy  # read first: whoever is done has replied before
            if self.tick() or replies:
                continue
            if self.tiers.moving or tokenizing:
                self.mailbox.wait()
            else:
                raise DjinnError("The engine is idle and the request is not answered; this is a fault of djinn.")
        if isinstance(replies[0], Failed):
            raise from_code(replies[0].code, replies[0].message)
        return replies[0]

    def wanted_elsewhere(self) -> bool:
        """Asked between layers: is there mail, or another job whose turn it is?"""
        return self.turns.wanted_elsewhere()

    def read_mail(self) -> bool:
        """Deliver the letters that are there; those that come meanwhile wait until a job has had its slice."""
        letters = self.mailbox.take_all()
        for letter in letters:
            match letter:
                case Departure(holder=holder):
                    with self.faults.during("a holder went"):
                        self._detach_all(holder)
                case Moved():
                    with self.faults.during("it settled a move between tiers"):
                        self.swapping.settle(letter)
                case TextRead(session=session):
                    self.letters.read(session)
                case Letter():
                    self.letters.deliver(letter)
        with self.faults.during("it tidied up"):
            self.blobs.tidy()
        return bool(letters)

    def _detach_all(self, holder: Holder) -> None:
        for session in self.sessions.values():
            if session.holder == holder.name:
                session.holder = None
                self.notebooks.note(session, "gone")
                self.bulletin.touch(session.name)

    def answer(self, letter: Letter, reply: Reply) -> None:
        """Replies go out by `_send`, when the journal has and the bulletin knows what they tell of."""
        letter.answered = True
        self.books.requests_answered += 1
        self._answers.append((letter, reply))

    def _send(self, idle: bool = False) -> None:
        self._require_sound_books()
        answers, self._answers = self._answers, []
        with self.faults.during("it wrote the journal"):
            answers = promises.keep(self.keeping, self.sessions, answers)
        with self.faults.during("it described its sessions"):
            self.bulletin.heed_journal(self.keeping.trouble, self.keeping.unkept)
            if answers or self.bulletin.due:
                self.bulletin.publish(all_sessions=idle)
        for letter, reply in answers:
            with self.faults.during("a reply was handed over"):
                letter.reply(reply)

    # --- what verbs and jobs ask for -------------------------------------------------------------------------------

    @property
    def books(self) -> Books:
        return self.bulletin.books

    @property
    def reading(self) -> EngineReading:
        """The last published bulletin; may be read from any thread."""
        return self.bulletin.reading

    @property
    def keeps_sessions(self) -> bool:
        """Whether the sessions are found again by the next engine; may be asked from any thread."""
        return self.keeping.journal is not None

    def forget_sessions(self) -> None:
        """At its end the engine leaves no journal; may be said from any thread."""
        self.keeping.forgets = True

    def session(self, name: str) -> Session:
        found = self.sessions.get(name)
        if found is None:
            known = ", ".join(self.sessions) or "none"
            raise UnknownSession(f"There is no session {name!r}; there are: {known}.")
        return found

    def add_session(self, session: Session) -> Session:
        """It stands under a new number, also where it was restored: the stop that was kept may have been edited since,
        under numbers that were shown."""
        session.last_edition = max(session.last_edition, self._last_edition)
        session.stand()
        self.sessions[session.name] = session
        session.blobs = self.blobs
        self.keeping.touch(session.name)
        self.publish(SessionOpened(session=session.name))
        return session

    def close(self) -> None:
        """The end of the engine: sessions that are kept are put away, and threads that copy or work on files end what
        they have begun."""
        if self.keeps_sessions and not self.keeping.forgets:
            put_away(self)
        self.keeping.close(self.sessions)
        self.tokenizing.close()
        self.tiers.stop()

    def abandon(self) -> None:
        """The end of an engine that is broken: what it has handed over is written, and nothing else of it."""
        self.keeping.abandon()

    def drop_session(self, session: Session) -> int:
        """Forget a session and give its pages back; the number of pages it held."""
        if session.job is not None:
            job = session.job
            job.steps.close()
            self.scheduler.remove(job)
            if job.letter is not None:
                self.answer(job.letter, Failed(code="IllegalMove", message=f"Session {session.name!r} was closed."))
        self.letters.answer_waiting(
            session, Failed(code="UnknownSession", message=f"Session {session.name!r} was closed meanwhile.")
        )
        pages = session.cache.statistics().pages
        session.cache.free()
        session.residence.moving = None
        del self.sessions[session.name]
        self._last_edition = max(self._last_edition, session.last_edition)
        self.blobs.untidy = True
        self.keeping.forget(session.name)
        self.notebooks.closed(session.name)
        self.turns.room_changed()
        return pages

    def entered(self, session: Session, frame: Frame, plan: Plan) -> Generator[Blocked | None, None, Outcome]:
        """Enter a pass of a session, once there is room for it. Raises SlabFull where none can be made."""
        return entered(self, session, frame, plan, session.cache, session.journal)

    def settled(self, session: Session) -> Generator[Blocked | None, None, None]:
        """Steps until no move of the session is under way."""
        while not session.residence.settled:
            yield lambda: not session.residence.settled

    def present(self, session: Session) -> Generator[Blocked | None, None, None]:
        """Steps until the session's bytes are on the device. Raises what keeps them from coming."""
        if not session.residence.present:
            self.swapping.swap_in(session, "needed")
            yield from self.settled(session)
        if self.session(session.name) is not session or not session.residence.present:
            raise session.residence.error or UnknownSession(f"Session {session.name!r} was closed meanwhile.")

    def new_cache(self) -> PagedCache:
        return PagedCache.create(self.model.config, self.geometry, self.slabs)

    def resolve(self, site: Site) -> Tap:
        """The tap of the whole site. A selector is checked here and applied by whoever holds the site."""
        return self.anatomy.resolve(site).at(site.whole())

    def text_of(self, token: int) -> str:
        return self.tokenizer.text_of(token)

    def token_id(self, text: str) -> int:
        return self.tokenizer.token_id(text)
