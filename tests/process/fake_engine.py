"""The in-memory double of an engine: sessions with holders, runs of one token a tick, a stop when token 99 is fed; a
prompt of token 98 breaks it."""

from __future__ import annotations

import math
import struct
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType, SimpleNamespace

from djinn_jupyter.engine.loop.mailbox import Holder, LostHolder, Mailbox, QueuedRequest
from djinn_jupyter.engine.session.session import RequestId
from djinn_jupyter.engine.system.faults import Faults
from djinn_jupyter.errors import DjinnError, EngineBroken, IllegalMove, SessionHeld, UnknownSession
from djinn_jupyter.files import Stamps
from djinn_jupyter.wire import replies
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.arrays import Array
from djinn_jupyter.wire.nouns import (
    EngineStatistics,
    ModelDescription,
    OwnerBudget,
    SessionDescription,
    Snapshot,
    StopIdentity,
)
from djinn_jupyter.wire.replies import Event, Reply, Sessions

STOP_TOKEN = 99

DESCRIPTION = ModelDescription(
    name="fake",
    revision=None,
    architecture="Fake",
    dtype="float32",
    device="cpu",
    attention="sdpa",
    layers=8,
    hidden_size=2,
    vocab_size=100,
    context_length=None,
    parameters=0,
    weight_bytes=0,
    has_tokenizer=False,
    has_chat_template=False,
    eos_token_ids=(),
    points=(),
    cache_groups=(),
    recurrent_state_bytes=0,
    feeding="chunks",
    generation_defaults={},
    checks=(),
)


@dataclass
class FakeSession:
    name: str
    owner: str
    holder: str | None
    notebook: str | None = None
    tokens: list[int] = field(default_factory=list)
    run: QueuedRequest | None = None
    left: int = 0
    new: int = 0
    pausing: bool = False
    stop: replies.Paused | None = None
    edits: int = 0
    opened: float = field(default_factory=time.monotonic)

    @property
    def stop_identity(self) -> StopIdentity:
        return StopIdentity(session=self.name, number=len(self.tokens), edition=len(self.tokens) + self.edits)


class FakeEngine:
    """`publish` gets every event on the thread that ticks. `explode`: a request for `explode` raises in `submit`."""

    def __init__(self, publish: Callable[[Event], None] = lambda event: None) -> None:
        self.description = DESCRIPTION
        self.mailbox, self.faults = Mailbox(), Faults()
        self.scheduler: tuple[()] = ()
        self.watchful, self.due_in = False, math.inf
        self.publish = publish
        self.sessions: dict[str, FakeSession] = {}
        self.departed: list[str] = []
        self.notes: list[tuple[str, str]] = []
        self._read()

    def accept(
        self,
        request: ask.Request,
        holder: Holder,
        reply: Callable[[Reply], None],
        known_as: RequestId | None = None,
    ) -> None:
        if isinstance(request, ask.Tokenize):
            raise ZeroDivisionError("a fault of the engine")
        self.mailbox.post(QueuedRequest(request=request, holder=holder, reply=reply))

    def lose_holder(self, holder: Holder) -> None:
        self.departed.append(holder.name)
        self.mailbox.post(LostHolder(holder=holder))

    keeps_sessions = False
    files: Stamps = MappingProxyType({})
    worked: Mapping[str | None, float] = {}
    extents: Mapping[str, int] = {}

    def access(self, session: str, person: str) -> None: ...

    def left_by(self, holder: Holder) -> tuple[str, ...]:
        return ()

    def forget_sessions(self) -> None: ...

    def apply_owner_budgets(
        self, budget_of: Callable[[str], OwnerBudget], require_reader: Callable[[str], None] | None = None
    ) -> None: ...

    def close(self) -> None: ...

    def abandon(self) -> None: ...

    def tick(self, let_out: Callable[[], None] = lambda: None) -> bool:
        busy = False
        for queued in self.mailbox.take_all():
            busy = True
            if isinstance(queued, LostHolder):
                for session in self.sessions.values():
                    session.holder = None if session.holder == queued.holder.name else session.holder
            else:
                self._dispatch(queued)
        for session in self.sessions.values():
            if session.run is not None:
                busy = True
                self._advance(session, session.run)
        self._read()
        return busy

    def _dispatch(self, queued: QueuedRequest) -> None:
        try:
            reply = self._handle(queued)
        except EngineBroken:
            raise
        except DjinnError as error:
            reply = replies.Failed(code=error.code, message=str(error))
        if reply is not None:
            queued.reply(reply)

    def _handle(self, queued: QueuedRequest) -> Reply | None:
        request, holder = queued.request, queued.holder
        if isinstance(request, ask.Open):
            return self._open(request, holder)
        session = self.sessions.get(getattr(request, "session", ""))
        if session is None:
            raise UnknownSession("no such session")
        match request:
            case ask.Run(tokens=(98,)):  # the accounting is broken
                raise EngineBroken("The accounting does not agree.")
            case ask.Run():
                if session.run is not None:
                    raise IllegalMove("it is running")
                session.run, session.left, session.new = queued, request.max_new_tokens, 0
                session.tokens = list(request.tokens or (1,))
                session.stop = None
                self.publish(replies.SessionRunning(session=session.name))
                return None
            case ask.Resume():
                if session.stop is None:
                    raise IllegalMove("it is not stopped")
                session.run, session.stop, session.new = queued, None, 0
                session.tokens[-1] = 1  # past what it stopped at
                self.publish(replies.SessionRunning(session=session.name))
                return None
            case ask.Note():
                self.notes.append((session.name, request.activity))
                return replies.Noted()
            case ask.Detach():
                session.holder = None if session.holder == holder.name else session.holder
                return replies.Detached()
            case ask.Pause():
                session.pausing = session.run is not None
                return replies.Pausing(was_running=session.pausing)
            case ask.Close():
                del self.sessions[session.name]
                return replies.Closed(pages_freed=0)
            case ask.Describe():
                return replies.Described(session=self._describe(session))
            case ask.ReadStop():
                if session.stop is None:
                    raise IllegalMove("it is not stopped")
                return session.stop
            case ask.Inspect():
                value = struct.pack("<2f", 1.0, float(session.edits))
                snapshot = Snapshot(
                    stop=session.stop_identity,
                    site="resid_post.4",
                    value=Array(dtype="float32", shape=(1, 2), data=value),
                    axes="T D",
                    positions=request.positions or (0,),
                    dtype="float32",
                    exactness="exact",
                )
                return replies.Inspected(snapshot=snapshot)
            case ask.ReadLogits():
                logits = Array(dtype="float32", shape=(2,), data=struct.pack("<2f", 0.5, 2.0))
                return replies.Logits(logits=logits, stop=session.stop_identity)
            case ask.ApplyEdit():
                session.edits += 1
                return replies.Edited(
                    stop=session.stop_identity,
                    site="resid_post.4",
                    edit=type(request.edit).__name__,
                    shape=(1, 2),
                    positions=request.positions or (0,),
                    norm_before=1.0,
                    norm_after=1.0,
                    relative_size=None,
                    entries_changed=2,
                )
        raise IllegalMove("the fake knows no such verb")

    def _open(self, request: ask.Open, holder: Holder) -> replies.Opened:
        session = self.sessions.get(request.session)
        created = session is None
        if session is None:
            session = FakeSession(name=request.session, owner=holder.user, holder=holder.name)
            self.sessions[session.name] = session
        elif session.holder not in (None, holder.name) and not request.join:
            raise SessionHeld(f"held by {session.holder}")
        elif session.holder is None:
            session.holder = holder.name
        return replies.Opened(session=self._describe(session), created=created)

    def _advance(self, session: FakeSession, run: QueuedRequest) -> None:
        if session.pausing or session.tokens[-1] == STOP_TOKEN:
            reason = "interrupt" if session.pausing else "breakpoint"
            session.run, session.pausing = None, False
            session.stop = self._paused(session, reason)
            site = session.stop.site
            self.publish(
                replies.SessionPaused(
                    session=session.name, stop=session.stop_identity, site=site, step=0, reason=reason
                )
            )
            run.reply(session.stop)
        elif session.left == 0:
            session.run = None
            self.publish(
                replies.SessionFinished(
                    session=session.name, stop=session.stop_identity, reason="length", new_tokens=session.new
                )
            )
            run.reply(self._finished(session))
        else:
            session.left, session.new = session.left - 1, session.new + 1
            token = session.new % STOP_TOKEN
            session.tokens.append(token)
            self.publish(replies.TokenSampled(session=session.name, step=session.new, token=token, text=f" {token}"))

    def _paused(self, session: FakeSession, reason: str) -> replies.Paused:
        return replies.Paused(
            session=session.name,
            stop=session.stop_identity,
            site="resid_post.4",
            reason=reason,
            breakpoint=None,
            also=(),
            matched=None,
            step=session.new,
            layer=5,
            layers=8,
            positions=tuple(range(len(session.tokens))),
            tokens=tuple(session.tokens),
            texts=tuple(f" {token}" for token in session.tokens),
            prompt_tokens=1,
            prompt_text="".join(f" {token}" for token in session.tokens),
            new_text="",
            log_probabilities=(),
            shape=(len(session.tokens), 2),
            axes="T D",
            dtype="float32",
            norms=tuple(1.0 for _ in session.tokens),
            edits=(),
            history_index=0,
            history_length=1,
            layers_run=5,
        )

    def _finished(self, session: FakeSession) -> replies.Finished:
        new = session.tokens[len(session.tokens) - session.new :]
        return replies.Finished(
            session=session.name,
            stop=session.stop_identity,
            reason="length",
            detail=None,
            tokens=tuple(new),
            texts=tuple(f" {token}" for token in new),
            text="".join(f" {token}" for token in new),
            prompt_tokens=tuple(session.tokens[: len(session.tokens) - session.new]),
            prompt_texts=(),
            prompt_text="",
            log_probabilities=tuple(-1.0 for _ in new),
            top=(),
            rules=(),
            ignored_defaults=(),
            layers_run=8,
            passes=session.new,
        )

    def _describe(self, session: FakeSession) -> SessionDescription:
        return SessionDescription(
            name=session.name,
            owner=session.owner,
            holder=session.holder,
            notebook=session.notebook,
            state="running" if session.run else "paused" if session.stop else "idle",
            tokens=len(session.tokens),
            committed=0,
            stopped_at=None,
            step=None,
            breakpoints=(),
            rules=(),
            watches=(),
            stops_kept=0,
            stop=None if session.run else session.stop_identity,
            pages=0,
            device_bytes=0,
            idle_seconds=time.monotonic() - session.opened,
        )

    def _read(self) -> None:
        statistics = EngineStatistics(
            pid=1,
            uptime_seconds=0.0,
            sessions=len(self.sessions),
            sessions_running=0,
            passes=0,
            layers_run=0,
            tokens_sampled=0,
            requests_answered=0,
            preemptions=0,
            weight_bytes=0,
            slabs=(),
            process_bytes=None,
            device_bytes_in_use=None,
            device_bytes_total=None,
        )
        sessions = tuple(self._describe(session) for session in self.sessions.values())
        self.reading = SimpleNamespace(
            statistics=statistics,
            sessions=sessions,
            page=lambda first: Sessions(sessions=sessions[first:], first=first, total=len(sessions)),
        )
