"""One agent: its words and pauses, drawn from a seed, the way in which it is kept, and its life on a real engine."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from random import Random
from threading import Event
from typing import Any, Final

from djinn_evaluation.configuration.sections import AgentsFile, PauseKind, Pauses, WayName
from djinn_evaluation.memory import bytes_of, options_for_limit
from djinn_evaluation.serving import finished
from djinn_jupyter.api.arguments import given_path
from djinn_jupyter.api.engine import RemoteEngine
from djinn_jupyter.api.session import RemoteSession
from djinn_jupyter.api.stops import Finished
from djinn_jupyter.errors import MemoryShortage, UsageError

SHARED = "shared prompt"
BURST = 3  # pauses of a burst, the last of them a long one


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptedTurn:
    """Tokens that are read before the turn's reply, and the pause before them; `known`: the agent knows its length."""

    tokens: tuple[int, ...]
    pause_seconds: float
    known: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentScript:
    """One agent: `prefix` is shared with others, or empty; the first turn's pause lasts until it arrives."""

    name: str
    kind: PauseKind
    prefix: tuple[int, ...]
    turns: tuple[ScriptedTurn, ...]

    def tokens_before(self, turn: int, replies: Sequence[Sequence[int]]) -> list[int]:
        """Return all tokens that the session has read when the turn's reply begins."""
        found = [*self.prefix]
        for number, scripted in enumerate(self.turns[: turn + 1]):
            found += [*scripted.tokens, *(replies[number] if number < turn else ())]
        return found


def as_events(
    script: AgentScript, taken: Iterable[float], sizes: Iterable[int], tells: Callable[[ScriptedTurn], bool]
) -> list[dict[str, Any]]:
    """Return an agent's turns for the replay, by their seconds and bytes; `rest` is a pause of which it tells."""
    found, at = [], 0.0
    for turn, following, seconds, nbytes in zip(script.turns, (*script.turns[1:], None), taken, sizes, strict=True):
        at += turn.pause_seconds
        rest = following.pause_seconds if following is not None and tells(following) else None
        last = following is None
        found.append(
            {"session": script.name, "time": at, "seconds": seconds, "bytes": nbytes, "rest": rest, "last": last}
        )
        at += seconds
    return found


def scripts(file: AgentsFile, count: int, vocabulary: int, repetition: int = 0) -> list[AgentScript]:
    """Return the scripts of `count` agents: the same ones for every way."""
    crowd, recorded = file.agents, recorded_pauses(file.pauses)
    prefix = tuple(Random(f"{crowd.seed} shared").choices(range(vocabulary), k=crowd.shared_tokens))
    arrivals, now = Random(f"{crowd.seed} {repetition} arrivals"), 0.0
    found = []
    for number in range(count):
        draw = Random(f"{crowd.seed} {repetition} {number}")
        kind = file.pauses.kinds[number % len(file.pauses.kinds)]
        pauses = pauses_of(kind, file.pauses, recorded, draw)
        now += arrivals.expovariate(1.0 / crowd.arrival_seconds)
        lengths = [crowd.prompt_tokens, *[crowd.tool_tokens] * (crowd.turns - 1)]
        turns = [
            ScriptedTurn(
                tokens=tuple(draw.choices(range(vocabulary), k=length)),
                pause_seconds=next(pauses) if turn else now,
                known=bool(turn) and kind == "tool",
            )
            for turn, length in enumerate(lengths)
        ]
        shares = math.floor((number + 1) * crowd.shared) > math.floor(number * crowd.shared)
        name = f"agent {number + 1}"
        found.append(AgentScript(name=name, kind=kind, prefix=prefix if shares else (), turns=tuple(turns)))
    return found


def pauses_of(kind: PauseKind, pauses: Pauses, recorded: Sequence[float], draw: Random) -> Iterator[float]:
    """Yield the pauses of one agent, without end."""
    number = 0
    while True:
        number += 1
        match kind:
            case "tool":
                seconds = draw.choice(pauses.tool_seconds)
            case "burst" if number % BURST:
                seconds = pauses.burst_seconds
            case "recorded":
                seconds = draw.choice(recorded) * pauses.recorded_scale
            case _:
                seconds = draw.lognormvariate(math.log(pauses.median_seconds), pauses.sigma)
        yield min(seconds, pauses.longest_seconds)


def recorded_pauses(pauses: Pauses) -> list[float]:
    """Return the recorded pauses. UsageError where the file holds none."""
    if pauses.recorded is None:
        text = (resources.files(__package__) / "recorded_pauses.json").read_text()
    else:
        text = _read(given_path(pauses.recorded, "file of pauses"))
    try:
        seconds: Any = json.loads(text)["seconds"]
        if seconds and all(isinstance(one, int | float) and 0 <= one < math.inf for one in seconds):
            return [float(one) for one in seconds]
    except (ValueError, TypeError, KeyError):
        pass
    raise UsageError(f"{pauses.recorded} holds no pauses: a JSON object with `seconds`, a list of numbers from 0 up.")


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"pauses.recorded: {path} cannot be read: {error}.") from None


NEVER_IDLE = 7 * 86400.0  # seconds
THREADS = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """`swaps`: sessions may leave the device; `recomputes`: an agent closes its session at a pause and runs all its
    tokens again; `hints`: it announces the pauses whose length it knows."""

    name: WayName
    swaps: bool = True
    recomputes: bool = False
    hints: bool = False
    by_last_use: bool = False
    idles: bool = True
    prefetches: bool = True

    def options(self, file: AgentsFile) -> dict[str, Any]:
        """Return the options of an engine that keeps its sessions this way."""
        limit = bytes_of(file.hardware.vram_limit_gb)
        return {
            "dtype": file.model.dtype,
            "page_positions": file.model.page_positions,
            "threads": THREADS,
            "no_journal": True,
            "host_memory": bytes_of(file.hardware.host_limit_gb) if self.swaps else 0,
            "disk_memory": None if self.swaps else 0,
            "evict_by_last_use": self.by_last_use,
            "no_prefetch": not self.prefetches,
            "idle_swap_seconds": file.idle_seconds if self.idles else NEVER_IDLE,
            **options_for_limit(limit),
        }


WAYS: Final[dict[str, Way]] = {
    way.name: way
    for way in (
        Way(name="never", swaps=False, prefetches=False, idles=False),
        Way(name="recompute", swaps=False, recomputes=True, prefetches=False, idles=False),
        Way(name="lru", by_last_use=True, idles=False, prefetches=False),
        Way(name="time_out", by_last_use=True, prefetches=False),
        Way(name="learned", prefetches=False),
        Way(name="hinted_no_prefetch", hints=True, prefetches=False),
        Way(name="hinted", hints=True),
    )
}
"""Each way after `lru` changes one thing: the time after which idle sessions leave, the order in which they do, what
the engine is told, and what it fetches ahead. Without a hint nothing says when an agent comes back, so that there is
nothing to fetch."""


def by_engine(file: AgentsFile) -> list[tuple[dict[str, Any], list[Way]]]:
    """Return the ways in the order of the file, those together that one engine can keep."""
    found: list[tuple[dict[str, Any], list[Way]]] = []
    for way in (WAYS[name] for name in file.ways):
        options = way.options(file)
        same = next((ways for asked, ways in found if asked == options), None)
        found.append((options, [way])) if same is None else same.append(way)
    return found


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
    """The turns that an agent completed; `asked_again` for want of room; `refused` where that did not change."""

    script: AgentScript
    replies: list[ReplyRecord] = field(default_factory=list)
    asked_again: int = 0
    refused: str | None = None

    @property
    def whole(self) -> bool:
        return len(self.replies) == len(self.script.turns)

    def same_as(self, other: AgentRecord) -> bool:
        """Return whether the completed turns have the same tokens and the same bits of the logits after them."""
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
    """Take the next turn, in parts where room is short. `there`: the session has the tokens before it."""
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
    """True where a refused turn left its tokens in the session: a second request would add them twice."""
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
    """Open the agent's session; the first one forks the shared prompt. MemoryShortage after too long a wait."""
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
