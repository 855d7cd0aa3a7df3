"""Letters to sessions: answered at once, made a job, or laid by until the session can be worked on. Runs no job."""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING

from djinn_jupyter.engine.enquiries import with_tokens
from djinn_jupyter.engine.keeping.recomputing import recompute
from djinn_jupyter.engine.mailbox import Letter
from djinn_jupyter.engine.scheduler import Job, JobKind, Steps, Underway
from djinn_jupyter.engine.session import Session
from djinn_jupyter.engine.verbs import (
    AT_ONCE,
    CHANGES_NOTHING,
    NEEDS_WEIGHTS,
    OPENS,
    VERBS,
    WHILE_AWAY,
    WHILE_RUNNING,
    WITHOUT_ROWS,
)
from djinn_jupyter.errors import IllegalMove, SlabFull, UsageError
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.nouns import Transfer
from djinn_jupyter.wire.replies import Failed, Pausing, Reply, SessionSwapped

if TYPE_CHECKING:
    from djinn_jupyter.engine.engine import Engine


class Letters:
    """Every letter gets one reply. Those of one session are answered in the order in which they came, but for what
    need not wait."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._changes_seen = 0

    def deliver(self, letter: Letter) -> None:
        """Answer a letter, start a job for it, or lay it by. Whatever goes wrong answers it, and nobody else."""
        session: Session | None = None
        try:
            if isinstance(letter.request, ask.SessionRequest):
                session = self._engine.sessions.get(letter.request.session)
            self._deliver(letter, session)
        except Exception as error:  # noqa: BLE001  the request's edge
            self._fail(letter, session, error)

    def _deliver(self, letter: Letter, session: Session | None) -> None:
        """It is laid by while somebody looks at its session's stop, while the session's bytes are elsewhere, or while
        there is no room."""
        request = letter.request
        if session is not None and type(request) not in WHILE_AWAY:
            self._engine.notebooks.asked(session)
        if session is not None and isinstance(request, ask.Pause) and self._withdraw_unread(session):
            self._engine.answer(letter, Pausing(was_running=True))
            return
        if session is None or not (self._has_to_wait(session, request) or (letter.unread and session.job is None)):
            self._deliver_now(letter, session)
            return
        session.waiting.append(letter)
        if _looked_at(session):
            return
        if self._needs_bytes(session, request):
            self._engine.swapping.swap_in(session, "needed")
        elif _needs_rows(session, request):
            self._recompute(session)

    def _fail(self, letter: Letter, session: Session | None, error: Exception) -> None:
        """The letter waits no more, and is answered unless it was before the error came. A run that was not begun
        leaves its session idle."""
        if session is not None and letter in session.waiting:
            session.waiting.remove(letter)
        if session is not None and session.state == "running" and session.job is None:
            self._engine.turns.break_off(session)
        self._engine.swapping.changes += 1  # its session may leave now
        failure = self._engine.faults.reply_to(error)
        if letter.answered:
            self._engine.faults.note(f"it finished with a {type(letter.request).__name__} that was answered", error)
        else:
            self._engine.answer(letter, failure)

    def _has_to_wait(self, session: Session, request: ask.Request) -> bool:
        looked_at = _looked_at(session) and not isinstance(request, ask.Close | ask.Note)
        behind = bool(session.waiting) and type(request) not in AT_ONCE
        return looked_at or behind or self._needs_bytes(session, request) or _needs_rows(session, request)

    def _withdraw_unread(self, session: Session) -> bool:
        """Whether a prompt was still being tokenized: it is refused now, for a person who breaks in."""
        letter = next((waiting for waiting in session.waiting if waiting.unread), None)
        if letter is None or letter.tokens is None:
            return False
        letter.tokens.withdrawn = True
        message = f"Session {session.name!r} was paused before its prompt was tokenized; run it again."
        self._fail(letter, session, IllegalMove(message))
        return True

    def read(self, name: str) -> None:
        """The tokens of a prompt are there."""
        session = self._engine.sessions.get(name)
        if session is not None:
            self.take_up(session)

    def _recompute(self, session: Session) -> None:
        """What an earlier process had in memory is made again, for those who wait."""
        steps = recompute(self._engine, session)
        self._engine.scheduler.add(Job(kind="look", session=session, steps=steps, letter=None))

    def _needs_bytes(self, session: Session, request: ask.Request) -> bool:
        here = session.residence
        if here.present or type(request) in WHILE_AWAY:
            return False
        return not (isinstance(request, ask.Run) and not request.extend and here.state in ("host", "disk"))

    def _deliver_now(self, letter: Letter, session: Session | None) -> bool:
        """False when it was laid by again, for want of room. Raises what the verb raises."""
        try:
            self._begin(letter, session)
        except SlabFull:
            if session is None or not self._engine.room.find(session, self._wanted(letter.request)):
                raise
            session.waiting.appendleft(letter)
            session.residence.wants_room = True
            return False
        finally:
            if session is not None and letter not in session.waiting:
                self._note_done(session, letter.request)
        return True

    def _note_done(self, session: Session, request: ask.Request) -> None:
        """A verb has had the session, be it that it refused."""
        with self._engine.faults.during("it noted what a notebook did"):
            if type(request) not in CHANGES_NOTHING:
                self._engine.keeping.touch(session.name)
            if type(request) not in WHILE_AWAY:
                session.residence.touch()
                self._engine.notebooks.left_alone(session)

    def _begin(self, letter: Letter, session: Session | None) -> None:
        """Do what the letter asks, or make a job of it."""
        request = letter.request
        if isinstance(request, ask.SessionRequest):
            self._engine.bulletin.touch(request.session)
            if type(request) not in OPENS:
                session = self._engine.session(request.session)
        if session is not None and isinstance(request, ask.StopRequest) and request.stop is not None:
            session.check_stop(request.stop)
        if session is not None and session.job is not None and type(request) not in WHILE_RUNNING:
            raise IllegalMove(f"Session {session.name!r} is running; pause it first.")
        request = letter.request = with_tokens(self._engine, letter)
        verb = VERBS.get(type(request))
        if verb is None:
            raise UsageError(f"The engine has no verb {type(request).__name__}.")
        if type(request) in NEEDS_WEIGHTS:
            self._engine.weights.wake()  # before the verb changes anything: it may find no room
        self._accept(letter, session, verb(self._engine, request, letter.holder))

    def _wanted(self, request: ask.Request) -> int:
        """Bytes of pages for a prompt."""
        count = len(request.tokens or ()) if isinstance(request, ask.Run) else 0
        return sum(-(-count // group.page_positions) * group.page_bytes for group in self._engine.geometry.groups)

    def _accept(self, letter: Letter, session: Session | None, result: Reply | Steps | Underway) -> None:
        """What a verb returned: a reply, or steps, which are a job of the letter's session or of the one they name."""
        if isinstance(result, Underway):
            session, steps = result.session, result.steps
        elif isinstance(result, Generator):
            steps = result
        else:
            self._engine.answer(letter, result)
            return
        if session is None:
            raise TypeError(f"The steps of {type(letter.request).__name__} are for no session.")
        kind: JobKind = "run" if session.state == "running" else "look"
        self._engine.scheduler.add(Job(kind=kind, session=session, steps=steps, letter=letter))

    def answer_job(self, job: Job, reply: Reply) -> None:
        """A job has ended. One without a letter was for those who wait; they are told what went wrong."""
        if job.letter is None:
            self.answer_waiting(job.session, reply)
            self._engine.notebooks.left_alone(job.session)
            return
        self._engine.answer(job.letter, reply)
        self._note_done(job.session, job.letter.request)

    def answer_waiting(self, session: Session, reply: Reply) -> None:
        while session.waiting:
            self._engine.answer(session.waiting.popleft(), reply)

    def take_up(self, session: Session) -> None:
        """Letters that waited come before the mail."""
        while session.waiting:
            letter = session.waiting[0]
            try:
                if not self._take_up_first(session):
                    return
            except Exception as error:  # noqa: BLE001  the request's edge
                self._fail(letter, session, error)

    def _take_up_first(self, session: Session) -> bool:
        """Whether the first letter that waits was worked on; else it waits on."""
        if session.waiting[0].unread:
            return False
        request = session.waiting[0].request
        if self._needs_bytes(session, request):
            self._engine.swapping.swap_in(session, "needed")
        if self._needs_bytes(session, request) or _looked_at(session):
            return False
        session.residence.wants_room = False
        if _needs_rows(session, request):
            if session.job is None:
                self._recompute(session)
            return False
        return self._deliver_now(session.waiting.popleft(), session)

    def take_up_all(self) -> bool:
        """Whether there was a reason to look again at who waits."""
        before = self._changes_seen
        while self._changes_seen != self._engine.swapping.changes:
            self._changes_seen = self._engine.swapping.changes
            for session in [session for session in self._engine.sessions.values() if session.waiting]:
                self.take_up(session)
        return before != self._changes_seen

    def swapped(self, session: Session, transfer: Transfer | None) -> None:
        """A session's move between device and tiers has ended. Who waited for one that failed is told."""
        self._engine.bulletin.touch(session.name)
        self._engine.notebooks.swapped(session, transfer)
        if transfer is not None:
            self._engine.publish(SessionSwapped(session=session.name, transfer=transfer))
            if session.residence.state == "disk":
                self._engine.keeping.touch(session.name)  # which says from now on where its pages are
        error = session.residence.error
        while error is not None and session.waiting and self._needs_bytes(session, session.waiting[0].request):
            self._engine.answer(session.waiting.popleft(), Failed(code=error.code, message=str(error)))


def _looked_at(session: Session) -> bool:
    return session.job is not None and session.job.kind == "look"


def _needs_rows(session: Session, request: ask.Request) -> bool:
    """Whether it reads or goes on from rows and states that went with an earlier process."""
    begins_anew = isinstance(request, ask.Run) and not request.extend
    return session.lost and type(request) not in WITHOUT_ROWS and not begins_anew
