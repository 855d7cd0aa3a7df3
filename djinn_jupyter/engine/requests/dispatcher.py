"""The mail: each request is answered at once, made a job, or queued until its session can be worked on. Runs no job."""

from __future__ import annotations

from collections.abc import Generator

from djinn_jupyter.engine.log.logged import WorkingOn
from djinn_jupyter.engine.memory.offload.mover import Moved
from djinn_jupyter.engine.memory.offload.storages import StorageTable
from djinn_jupyter.engine.persistence.recompute import recompute
from djinn_jupyter.engine.requests import repeats
from djinn_jupyter.engine.requests.handles import Answered, RequestHandlers
from djinn_jupyter.engine.requests.intake import Intake
from djinn_jupyter.engine.requests.lifecycle import SessionLifecycle
from djinn_jupyter.engine.requests.needs import lacks_bytes, lacks_rows
from djinn_jupyter.engine.requests.owners import Owners
from djinn_jupyter.engine.requests.quotas import RequestQuotas
from djinn_jupyter.engine.residency.quotas import AwaitedRoom
from djinn_jupyter.engine.residency.residency import Residency
from djinn_jupyter.engine.scheduling.jobs import Job, Underway
from djinn_jupyter.engine.scheduling.mailbox import Departure, Holder, Mail, Mailbox, QueuedRequest, TextRead
from djinn_jupyter.engine.scheduling.open_requests import OpenRequests
from djinn_jupyter.engine.scheduling.scheduler import Scheduler
from djinn_jupyter.engine.session.runtime import Runtime
from djinn_jupyter.engine.session.session import Session
from djinn_jupyter.engine.session.steps import GaveWay, JobKind, Steps
from djinn_jupyter.engine.session.table import SessionTable
from djinn_jupyter.engine.system.faults import Faults
from djinn_jupyter.errors import IllegalMove, SlabFull
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.replies import Pausing, Reply
from djinn_jupyter.wire.texts import in_quotes


class Dispatcher:
    """Every request gets one reply. Requests of one session are answered in order of arrival, except those that need
    not wait."""

    def __init__(
        self,
        mailbox: Mailbox,
        handlers: RequestHandlers,
        owners: Owners,
        quotas: RequestQuotas,
        intake: Intake,
        runtime: Runtime,
        *,
        sessions: SessionTable,
        life: SessionLifecycle,
        scheduler: Scheduler,
        residency: Residency,
        open_requests: OpenRequests,
        storage_table: StorageTable,
        faults: Faults,
    ) -> None:
        self._mailbox, self._handlers, self._owners, self._quotas = mailbox, handlers, owners, quotas
        self._intake, self._runtime, self._storage_table = intake, runtime, storage_table
        self._sessions, self._life, self._scheduler, self._residency = sessions, life, scheduler, residency
        self._open, self._faults = open_requests, faults
        self._changes_seen = 0

    def read_mail(self) -> bool:
        """Handle the mail that is there; mail that comes meanwhile waits until a job has had its slice. Return False
        where there was none."""
        mail = self._mailbox.take_all()
        for piece in mail:
            self._handle(piece)
        with self._faults.during("it tidied up"):
            self._storage_table.tidy()
        return bool(mail)

    def hear(self, seconds: float) -> None:
        """Wait for mail for so many seconds at most, and read it."""
        self._mailbox.wait(seconds)
        self.read_mail()

    def _handle(self, piece: Mail) -> None:
        match piece:
            case Departure(holder=holder):
                with self._faults.during("a holder went"):
                    self._let_go(holder)
            case Moved():
                with self._faults.during("it settled a move between tiers"):
                    self._residency.settle(piece)
            case TextRead(session=name):
                session = self._sessions.get(name)
                if session is not None:
                    self.take_up(session)
            case QueuedRequest():
                self.dispatch(piece)

    def _let_go(self, holder: Holder) -> None:
        """Close the holder's temporary sessions and detach the others."""
        for session in [one for one in self._sessions.values() if one.holder == holder.name]:
            if session.temporary:
                self._life.close(session)
            else:
                session.detach()
                self._residency.note(session, "gone")
                self._sessions.touch(session.name)

    def dispatch(self, queued: QueuedRequest) -> None:
        """Answer a request, start a job for it, or queue it. An error answers this request and no other."""
        with WorkingOn(queued.logged_as):
            self._take(queued)

    def _take(self, queued: QueuedRequest) -> None:
        session: Session | None = None
        try:
            if isinstance(queued.request, ask.SessionRequest):
                session = self._sessions.get(queued.request.session)
            self._dispatch(queued, session)
        except Exception as error:  # noqa: BLE001  the request's edge
            self._fail(queued, session, error)

    def _dispatch(self, queued: QueuedRequest, session: Session | None) -> None:
        """Queue the request while a look at its session is under way, while the session's bytes are elsewhere, or while
        there is no room. Answer one that came before."""
        request = queued.request
        self._owners.require_shared(request, queued.holder)
        known = repeats.reply_to(queued, self._sessions)
        if known is not None:
            self._open.answer(queued, known)
            return
        if session is not None and not type(request).terms.while_away:
            self._residency.asked(session)
        if session is not None and isinstance(request, ask.Pause) and self._withdraw(session):
            self._open.answer(queued, Pausing(was_running=True))
            return
        if session is None or not (self._has_to_wait(session, request) or (queued.unread and session.work is None)):
            self._dispatch_now(queued, session)
            return
        self._open.add(session, queued)
        if _looked_at(session):
            return
        if lacks_bytes(session, request):
            self._residency.need(session)
        elif lacks_rows(session, request):
            self._recompute(session)

    def _fail(self, queued: QueuedRequest, session: Session | None, error: Exception) -> None:
        """Take the request out of the queue, and reply with the error unless it was answered before. A run that had not
        begun leaves its session idle."""
        if session is not None:
            self._open.remove(session, queued)
        if session is not None and session.state == "running" and session.work is None:
            self._life.break_off(session)
        self._residency.room_changed()  # its session may be evicted now
        failure = self._faults.reply_to(error)
        if queued.answered:
            self._faults.note(f"it finished with a {type(queued.request).__name__} that was answered", error)
        else:
            self._open.answer(queued, failure)

    def _has_to_wait(self, session: Session, request: ask.Request) -> bool:
        looked_at = _looked_at(session) and not type(request).terms.while_looking
        behind = session in self._open and not type(request).terms.at_once
        return looked_at or behind or lacks_bytes(session, request) or lacks_rows(session, request)

    def _withdraw(self, session: Session) -> bool:
        """Refuse the run whose prompt is still being tokenized, or that waits for room to begin or to go on, because
        its user interrupts. True where there was one."""
        return self._withdraw_unread(session) or self._withdraw_without_room(session)

    def _withdraw_unread(self, session: Session) -> bool:
        queued = next((waiting for waiting in self._open.of(session) if waiting.unread), None)
        if queued is None or queued.tokens is None:
            return False
        queued.tokens.withdraw()
        message = f"Session {in_quotes(session.name)} was paused before its prompt was tokenized; run it again."
        self._fail(queued, session, IllegalMove(message))
        return True

    def _withdraw_without_room(self, session: Session) -> bool:
        if session not in self._open or not session.residence.waits_for_room:
            return False
        queued = self._open.first(session)
        terms = type(queued.request).terms
        if not (terms.wakes_weights and terms.changes):
            return False
        session.residence.note_room()
        begins = isinstance(queued.request, ask.Run)
        what = "its run; run it again" if begins else "it to go on; ask again"
        message = f"Session {in_quotes(session.name)} was paused before there was room for {what}."
        self._fail(queued, session, IllegalMove(message))
        return True

    def _recompute(self, session: Session) -> None:
        """Recompute rows and states that an earlier process had in memory, for the queued requests."""
        steps = recompute(self._runtime.of(session), session)
        self._scheduler.add(Job(kind="look", session=session, steps=steps, for_request=None))

    def _dispatch_now(self, queued: QueuedRequest, session: Session | None) -> bool:
        """Answer or start a request. False when it was queued again for want of room. Raises the handler's error."""
        try:
            self._begin(queued, session)
        except SlabFull as full:
            if session is None or not (isinstance(full, AwaitedRoom) or self._finds_room(session, queued)):
                raise
            self._open.put_back(session, queued)
            if session.residence.want_room():
                self._residency.room_changed()  # what was asked for earlier may have this session's place
            return False
        finally:
            if session is not None and queued not in self._open.of(session):
                session.residence.note_room()
                self._note_done(session, queued.request)
        return True

    def _finds_room(self, session: Session, queued: QueuedRequest) -> bool:
        return self._residency.find(session, self._wanted(queued.request))

    def _note_done(self, session: Session, request: ask.Request) -> None:
        """Note that a handler has had the session, even if it refused."""
        with self._faults.during("it noted what a notebook did"):
            if type(request).terms.changes:
                self._sessions.changed(session.name)
            if not type(request).terms.while_away:
                session.residence.touch()
                self._residency.left_alone(session)

    def _begin(self, queued: QueuedRequest, session: Session | None) -> None:
        """Answer the request, or start a job for it."""
        request = queued.request
        terms = type(request).terms
        self._owners.require_shared(request, queued.holder)
        self._owners.require_own(request, queued.holder)
        if isinstance(request, ask.SessionRequest):
            self._sessions.touch(request.session)
            if not terms.opens:
                session = self._sessions.find(request.session)
        if session is not None and isinstance(request, ask.StopRequest) and request.stop is not None:
            session.check_stop(request.stop)
        if session is not None and session.moving.present is not None and not isinstance(request, ask.SettleMove):
            raise IllegalMove(f"Session {in_quotes(session.name)} is on its way between two engines; ask again.")
        if session is not None and session.work is not None and not terms.while_running:
            raise IllegalMove(f"Session {in_quotes(session.name)} is running; pause it first.")
        self._quotas.require(request, queued.holder, session)
        request = queued.take_tokens(self._intake.with_tokens(queued))
        self._quotas.require_room(request, session, self._wanted(request))
        if session is not None and terms.wakes_weights:
            session.require_computable()
        if terms.wakes_weights:
            self._runtime.forward.weights.wake()  # before the handler changes anything: it may find no room
        self._accept(queued, session, self._handlers.answer(request, queued.holder))

    def _wanted(self, request: ask.Request) -> int:
        """Return the bytes of pages that a prompt needs."""
        count = len(request.tokens or ()) if isinstance(request, ask.Run) else 0
        return sum(
            -(-count // group.page_positions) * group.page_bytes for group in self._runtime.forward.geometry.groups
        )

    def _accept(self, queued: QueuedRequest, session: Session | None, result: Answered) -> None:
        """Handle a handler's result: a reply, or steps, which become a job of the request's session or of the one they
        name."""
        if isinstance(result, Underway):
            session, steps = result.session, result.steps
        elif isinstance(result, Generator):
            steps = result
            if session is not None:
                repeats.begin(queued, session)
        else:
            self._open.answer(queued, result)
            return
        if session is None:
            raise TypeError(f"The steps of {type(queued.request).__name__} are for no session.")
        kind: JobKind = "run" if session.state == "running" else "look"
        if kind == "look":
            steps = self._to_the_end(steps, queued, session)
        self._scheduler.add(Job(kind=kind, session=session, steps=steps, for_request=queued))

    def _to_the_end(self, steps: Steps[Reply], queued: QueuedRequest, session: Session) -> Steps[Reply]:
        """Run the steps of a look. Where it gave way, wait for the work that was begun earlier and begin it anew."""
        while True:
            try:
                return (yield from steps)
            except GaveWay:
                pass  # and hold nothing of the frames in which it was raised
            yield from self._residency.behind_earlier(session)
            again = self._handlers.answer(queued.request, queued.holder)
            assert isinstance(again, Generator)
            steps = again

    def answer_job(self, job: Job, reply: Reply) -> None:
        """Reply for a job that has ended. A job without a request (`for_request`) was for the queued ones; they get its
        error."""
        if job.for_request is None:
            self._open.answer_all(job.session, reply)
            self._residency.left_alone(job.session)
            return
        self._open.answer(job.for_request, reply)
        self._note_done(job.session, job.for_request.request)

    def take_up(self, session: Session) -> None:
        """Work on a session's queued requests, which come before new mail."""
        while session in self._open:
            with WorkingOn(self._open.first(session).logged_as):
                if not self._could_take_up_first(session):
                    return

    def _could_take_up_first(self, session: Session) -> bool:
        """Work on the first queued request, which is answered where that fails. False where it stays queued."""
        queued = self._open.first(session)
        try:
            if not self._take_up_first(session):
                return False
            self._residency.room_changed()  # unless it is at work now, the session may be evicted
        except Exception as error:  # noqa: BLE001  the request's edge
            self._fail(queued, session, error)
        return True

    def _take_up_first(self, session: Session) -> bool:
        """Work on the first queued request. False where it stays queued."""
        if self._open.first(session).unread:
            return False
        request = self._open.first(session).request
        if lacks_bytes(session, request):
            self._residency.need(session)
        if lacks_bytes(session, request) or _looked_at(session):
            return False
        if lacks_rows(session, request):
            if session.work is None:
                self._recompute(session)
            return False
        return self._dispatch_now(self._open.take(session), session)

    def take_up_all(self) -> bool:
        """Look again at queued requests where residency has changed. True where it had."""
        before = self._changes_seen
        while self._changes_seen != self._residency.changes:
            self._changes_seen = self._residency.changes
            for session in [one for one in self._sessions.values() if one in self._open]:
                self.take_up(session)
        return before != self._changes_seen


def _looked_at(session: Session) -> bool:
    return session.work == "look"
