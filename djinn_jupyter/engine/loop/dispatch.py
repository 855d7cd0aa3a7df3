"""From a request to its handler: each is answered at once, made a job, or queued until its session can be worked on.
Runs no job."""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator

from djinn_jupyter.engine.loop import replies
from djinn_jupyter.engine.loop.intake import Intake
from djinn_jupyter.engine.loop.mailbox import Holder, LostHolder, Mail, QueuedRequest, TextRead
from djinn_jupyter.engine.loop.owners import Owners
from djinn_jupyter.engine.loop.parts import BuiltOfParts, EngineParts
from djinn_jupyter.engine.loop.replies import lacks_bytes, lacks_rows
from djinn_jupyter.engine.loop.scheduler import Job, Underway
from djinn_jupyter.engine.memory.offload.mover import Moved
from djinn_jupyter.engine.residency.owner_budgets import AwaitedRoom
from djinn_jupyter.engine.session.residence import GaveWay, JobKind, Steps
from djinn_jupyter.engine.session.session import Session
from djinn_jupyter.engine.store.load import recompute
from djinn_jupyter.engine.system.log import WorkingOn
from djinn_jupyter.errors import IllegalMove, SlabFull
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.nouns import Transfer
from djinn_jupyter.wire.replies import Failed, Pausing, Reply, SessionClosed, SessionOpened, SessionSwapped
from djinn_jupyter.wire.texts import in_quotes

log = logging.getLogger(__name__)


class SessionLifecycle(BuiltOfParts):
    def __init__(self, parts: EngineParts) -> None:
        super().__init__(parts)
        self._publish = parts.runtime.publish

    def begin(self, session: Session) -> None:
        self._sessions.add(session)
        self._publish(SessionOpened(session=session.name))

    def replace(self, before: Session, session: Session) -> None:
        """Begin a session in the place of another, whose grants and replies it keeps."""
        session.shares.take_over(before.shares.by_person)
        session.answered.take_over(iter(before.answered), before.answered.let_go)
        self.end(before)
        self.begin(session)

    def end(self, session: Session) -> int:
        """Remove a session and free its pages. Return the number of pages it held."""
        job = self._scheduler.job_of(session)
        if job is not None:
            with self._faults.during(f"it ended the work of {in_quotes(session.name)}"):
                job.steps.close()
            self._scheduler.remove(job)
            if job.for_request is not None:
                closed = Failed(code="IllegalMove", message=f"Session {in_quotes(session.name)} was closed.")
                self._open.answer(job.for_request, closed)
        self._open.answer_all(
            session, Failed(code="UnknownSession", message=f"Session {in_quotes(session.name)} was closed meanwhile.")
        )
        pages = session.cache.statistics().pages
        session.cache.free()
        self._sessions.remove(session)
        self._residency.closed(session)
        self._residency.room_changed()
        return pages

    def close(self, session: Session) -> int:
        """End a session and notify the clients. Return the number of pages it held."""
        session.move("close")
        pages = self.end(session)
        self._publish(SessionClosed(session=session.name))
        return pages

    def break_off(self, session: Session) -> None:
        """End the session's failed run. A prompt that was not fed at all is then not part of its tokens."""
        with self._faults.during(f"it broke off the run of {in_quotes(session.name)}"):
            session.break_off()
            session.drop_unread_prompt()

    def moved(self, session: Session, transfer: Transfer | None) -> None:
        """Report the end of a move between device and tiers. `transfer` is None where it failed: the session's
        residence has its error, which goes to the queued requests that needed the move, up to the first that did
        not."""
        self._sessions.touch(session.name)
        if transfer is not None:
            _log(session.name, transfer)
            self._publish(SessionSwapped(session=session.name, transfer=transfer))
            if session.residence.state == "disk":
                self._sessions.changed(session.name)  # from now on the journal has the place of its pages
        error = session.residence.error
        while error is not None and session in self._open and lacks_bytes(session, self._open.first(session).request):
            self._open.answer(self._open.take(session), Failed.of(error))


def _log(session: str, moved: Transfer) -> None:
    """Log the end of a move, in the words that the original's users look for."""
    if moved.direction == "out":
        line = "evicted: session %r, %d bytes to the %s in %.6f s (%s)"
    else:
        line = "restored: session %r, %d bytes from the %s in %.6f s (%s)"
    log.info(line, session, moved.bytes_moved, moved.tier, moved.seconds, moved.cause)


Answered = Reply | Steps[Reply] | Underway


class Dispatcher(BuiltOfParts):
    """Every request gets one reply. A session's requests are answered in order, unless they need not wait. `answer`
    calls the handler of a request."""

    def __init__(
        self,
        parts: EngineParts,
        answer: Callable[[ask.Request, Holder], Answered],
        owners: Owners,
        intake: Intake,
        life: SessionLifecycle,
    ) -> None:
        super().__init__(parts)
        self._answer, self._owners, self._intake, self._life = answer, owners, intake, life
        self._changes_seen = 0

    def read_mail(self) -> bool:
        """Handle the present mail; later mail waits for a job's slice. Return False where there was none."""
        mail = self._mailbox.take_all()
        for piece in mail:
            self._handle(piece)
        with self._faults.during("it tidied up"):
            self._storage_table.tidy()
        return bool(mail)

    def _handle(self, piece: Mail) -> None:
        match piece:
            case LostHolder(holder=holder):
                with self._faults.during("a holder went"):
                    self._let_go(holder)
            case Moved():
                with self._faults.during("it settled a move between tiers"):
                    self._residency.settle(piece)
            case TextRead(session=name):
                session = self._sessions.get(name)
                if session is not None:
                    self.retry(session)
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
        """Answer a request, start a job for it, or queue it. An error answers only this request."""
        session: Session | None = None
        with WorkingOn(queued.logged_as):
            try:
                if isinstance(queued.request, ask.SessionRequest):
                    session = self._sessions.get(queued.request.session)
                self._dispatch(queued, session)
            except Exception as error:  # noqa: BLE001  the request's edge
                self._fail(queued, session, error)

    def _dispatch(self, queued: QueuedRequest, session: Session | None) -> None:
        """Queue the request while its session is being read, while the session's bytes are elsewhere, or while there is
        no room. Answer a repeated one."""
        request = queued.request
        self._owners.require_shared(request, queued.holder)
        known = replies.reply_to(queued, self._sessions)
        if known is not None:
            self._open.answer(queued, known)
            return
        if session is not None and not type(request).terms.while_away:
            self._residency.asked(session)
        if (
            session is not None
            and isinstance(request, ask.Pause)
            and (self._withdraw_unread(session) or self._withdraw_without_room(session))
        ):
            self._open.answer(queued, Pausing(was_running=True))
            return
        if session is None or not (self._has_to_wait(session, request) or (queued.unread and session.work is None)):
            self._dispatch_now(queued, session)
            return
        self._open.add(session, queued)
        if session.work == "look":
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
        looked_at = session.work == "look" and not type(request).terms.while_looking
        behind = session in self._open and not type(request).terms.at_once
        return looked_at or behind or lacks_bytes(session, request) or lacks_rows(session, request)

    def _withdraw_unread(self, session: Session) -> bool:
        """Refuse the run whose prompt is still being tokenized, because its user interrupts. True where there was
        one."""
        queued = next((waiting for waiting in self._open.of(session) if waiting.unread), None)
        if queued is None or queued.tokens is None:
            return False
        queued.tokens.withdrawn = True
        message = f"Session {in_quotes(session.name)} was paused before its prompt was tokenized; run it again."
        self._fail(queued, session, IllegalMove(message))
        return True

    def _withdraw_without_room(self, session: Session) -> bool:
        """Refuse the run that waits for room to begin or to go on."""
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
            if session is None or not (
                isinstance(full, AwaitedRoom) or self._residency.find(session, self._wanted(queued.request))
            ):
                raise
            self._open.put_back(session, queued)
            if session.residence.want_room():
                self._residency.room_changed()  # earlier requests may have this session's place
            return False
        finally:
            if session is not None and queued not in self._open.of(session):
                session.residence.note_room()
                self._note_done(session, queued.request)
        return True

    def _note_done(self, session: Session, request: ask.Request) -> None:
        """Record that a handler has used the session, even if it refused."""
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
        self._owners.require_budget(request, queued.holder, session)
        request = queued.request = self._intake.with_tokens(queued)
        self._owners.require_room(request, session, self._wanted(request))
        if session is not None and terms.wakes_weights:
            session.require_computable()
        if terms.wakes_weights:
            self._forward.weights.wake()  # before the handler changes anything: it may lack room
        self._accept(queued, session, self._answer(request, queued.holder))

    def _wanted(self, request: ask.Request) -> int:
        """Return the bytes of pages that a prompt needs."""
        count = len(request.tokens or ()) if isinstance(request, ask.Run) else 0
        return sum(-(-count // group.page_positions) * group.page_bytes for group in self._forward.geometry.groups)

    def _accept(self, queued: QueuedRequest, session: Session | None, result: Answered) -> None:
        """Handle a handler's result: a reply, or steps, a job of the request's session or of the one they name."""
        if isinstance(result, Underway):
            session, steps = result.session, result.steps
        elif isinstance(result, Generator):
            steps = result
            if session is not None:
                replies.begin(queued, session)
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
        """Run the steps of a reading. After it yielded, wait for the earlier work and start it again."""
        while True:
            try:
                return (yield from steps)
            except GaveWay:
                pass  # and keep none of the frames in which it was raised
            yield from self._residency.behind_earlier(session)
            again = self._answer(queued.request, queued.holder)
            assert isinstance(again, Generator)
            steps = again

    def answer_job(self, job: Job, reply: Reply) -> None:
        """Reply for a job that has ended. Without a request (`for_request`) the queued ones get its error."""
        if job.for_request is None:
            self._open.answer_all(job.session, reply)
            self._residency.left_alone(job.session)
            return
        self._open.answer(job.for_request, reply)
        self._note_done(job.session, job.for_request.request)

    def retry(self, session: Session) -> None:
        """Work on a session's queued requests, which come before new mail."""
        while session in self._open:
            with WorkingOn(self._open.first(session).logged_as):
                if not self._retry_first(session):
                    return

    def _retry_first(self, session: Session) -> bool:
        """Work on the first queued request, which a failure answers. False where it stays queued."""
        queued = self._open.first(session)
        try:
            if not self._dispatch_first(session):
                return False
            self._residency.room_changed()  # unless it is at work now, the session may be evicted
        except Exception as error:  # noqa: BLE001  the request's edge
            self._fail(queued, session, error)
        return True

    def _dispatch_first(self, session: Session) -> bool:
        """Work on the first queued request. False where it stays queued."""
        if self._open.first(session).unread:
            return False
        request = self._open.first(session).request
        if lacks_bytes(session, request):
            self._residency.need(session)
        if lacks_bytes(session, request) or session.work == "look":
            return False
        if lacks_rows(session, request):
            if session.work is None:
                self._recompute(session)
            return False
        return self._dispatch_now(self._open.take(session), session)

    def retry_all(self) -> bool:
        """Retry queued requests after a change of residency. True where there was one."""
        before = self._changes_seen
        while self._changes_seen != self._residency.changes:
            self._changes_seen = self._residency.changes
            for session in [one for one in self._sessions.values() if one in self._open]:
                self.retry(session)
        return before != self._changes_seen
