"""One agent on a real engine: it arrives, reads, replies, pauses, and goes on. Its tokens and times, measured by it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from threading import Event
from typing import Final

from djinn_evaluation.agents.script import SHARED, AgentScript
from djinn_evaluation.agents.ways import Way
from djinn_evaluation.outcomes import finished
from djinn_jupyter.api.engine import RemoteEngine
from djinn_jupyter.api.session import RemoteSession
from djinn_jupyter.api.stops import Finished
from djinn_jupyter.errors import MemoryShortage

AGAIN_SECONDS: Final = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplyRecord:
    """One turn: the reply's tokens, and the logits of those that are most likely after it (the reply has them: a
    request of their own would bring the session back); milliseconds from the request to its first token, and from token
    to token; `asked` and `ended` in seconds since the agents began."""

    tokens: tuple[int, ...]
    logits: tuple[tuple[int, float], ...]
    first_ms: float
    token_ms: float
    asked: float
    ended: float


@dataclass(slots=True, kw_only=True)
class AgentRecord:
    """The turns that an agent completed; `asked_again`: how often the engine had no room for a turn or the rest of it;
    `refused` is its sentence where that did not change in time."""

    script: AgentScript
    replies: list[ReplyRecord] = field(default_factory=list)
    asked_again: int = 0
    refused: str | None = None

    @property
    def whole(self) -> bool:
        return len(self.replies) == len(self.script.turns)

    def same_as(self, other: AgentRecord) -> bool:
        """Return whether the completed turns have the tokens, and the bits of the logits after them, that the other's
        have."""
        return all(
            (mine.tokens, mine.logits) == (theirs.tokens, theirs.logits)
            for mine, theirs in zip(self.replies, other.replies, strict=False)
        )

    def same_tokens_as(self, other: AgentRecord) -> bool:
        return all(mine.tokens == theirs.tokens for mine, theirs in zip(self.replies, other.replies, strict=False))


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """The engine that agents live on. `prefix_reply` follows the shared prompt; `begun` is the moment at which they
    begin; `over` ends all pauses; `reply_tokens` are generated in a turn, for whose room an agent waits so long."""

    engine: RemoteEngine
    way: Way
    reply_tokens: int
    patience_seconds: float
    prefix_reply: tuple[int, ...]
    begun: float
    over: Event = field(default_factory=Event)


def read_shared(engine: RemoteEngine, prefix: Sequence[int]) -> tuple[int, ...]:
    """Run the shared prompt in a session of its own, which agents fork. Return the token that follows it."""
    return finished(engine.session(SHARED, fresh=True).run(list(prefix), max_new_tokens=1, ignore_eos=True)).tokens


def live(stage: Stage, script: AgentScript, *, pauses: bool = True) -> AgentRecord:
    """Live through the script; without `pauses`, turn after turn. Ends early where the engine has no room."""
    record = AgentRecord(script=script)
    session: RemoteSession | None = None
    for turn in script.turns:
        if pauses:
            _pause(stage, session, turn.pause_seconds, known=turn.known)
        if stage.over.is_set():
            break
        asked, there = time.perf_counter(), session is not None
        try:
            session = _opened(stage, record, asked) if session is None else session
            record.replies.append(_reply(stage, record, session, asked, there=there))
        except MemoryShortage as error:
            record.refused = str(error)
            break
        if stage.way.recomputes and pauses:
            session.close()
            session = None
    if session is not None:
        session.close()
    return record


def _pause(stage: Stage, session: RemoteSession | None, seconds: float, *, known: bool) -> None:
    until = time.perf_counter() + seconds
    if known and stage.way.hints and session is not None:
        session.rest(expected_seconds=seconds)
    stage.over.wait(max(until - time.perf_counter(), 0.0))


def _reply(stage: Stage, record: AgentRecord, session: RemoteSession, asked: float, *, there: bool) -> ReplyRecord:
    """Take the next turn, part by part where the engine ends it for want of room. `there`: the session has the tokens
    before it. MemoryShortage where that takes too long."""
    moments: list[float] = []
    tokens, extend = _reading(stage, record, there=there)
    generated: tuple[int, ...] = ()
    while True:
        try:
            done = _run(stage, session, tokens, len(generated), moments, extend=extend)
        except MemoryShortage as error:
            why = str(error)
            if extend and tokens is not None and _took(session, tokens):
                tokens = None
        else:
            generated, tokens, extend = generated + done.tokens, None, True
            if len(generated) == stage.reply_tokens:
                break
            why = f"A reply ended after {len(generated)} tokens: {done.reason}."
        record.asked_again += 1
        _wait_for_room(stage, asked, why)
    return ReplyRecord(
        tokens=generated,
        logits=tuple((top.token, top.logit) for top in done.top),
        first_ms=1000 * (moments[0] - asked),
        token_ms=1000 * (moments[-1] - moments[0]) / (len(moments) - 1),
        asked=asked - stage.begun,
        ended=time.perf_counter() - stage.begun,
    )


def _took(session: RemoteSession, tokens: Sequence[int]) -> bool:
    """True where a refused turn has left its tokens in the session, to be read: the engine had no room for their pass,
    after it had taken them. Asked for again they would stand there twice."""
    found = session.describe()
    return found.tokens - found.committed > len(tokens)


def _run(
    stage: Stage, session: RemoteSession, tokens: list[int] | None, so_far: int, moments: list[float], *, extend: bool
) -> Finished:
    return finished(
        session.run(
            tokens,
            max_new_tokens=stage.reply_tokens - so_far,
            ignore_eos=True,
            extend=extend,
            on_token=lambda token: moments.append(time.perf_counter()),
        )
    )


def _wait_for_room(stage: Stage, asked: float, why: str) -> None:
    """Wait a moment; raise MemoryShortage where the turn has waited for too long."""
    if stage.over.wait(AGAIN_SECONDS) or time.perf_counter() - asked > stage.patience_seconds:
        raise MemoryShortage(why)


def _opened(stage: Stage, record: AgentRecord, asked: float) -> RemoteSession:
    """Open the agent's session; the first one forks the shared prompt, for whose way back there may be no room now.
    MemoryShortage where that takes too long."""
    script = record.script
    while True:
        try:
            if script.prefix and not record.replies:
                return stage.engine.session(SHARED).fork(script.name)
            return stage.engine.session(script.name, fresh=True)
        except MemoryShortage as error:
            record.asked_again += 1
            _wait_for_room(stage, asked, str(error))


def _reading(stage: Stage, record: AgentRecord, *, there: bool) -> tuple[list[int] | None, bool]:
    """Return the tokens to run, and whether they extend those of the session."""
    script, number = record.script, len(record.replies)
    if there or number == 0:
        return [*script.turns[number].tokens], there or bool(script.prefix)
    before = script.tokens_before(number, [reply.tokens for reply in record.replies])
    return [*script.prefix, *(stage.prefix_reply if script.prefix else ()), *before[len(script.prefix) :]], False
