"""Sessions for the time of one piece of work: empty, like those of a recipe, or fed its line again pass by pass."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import count
from typing import Any, Protocol

import msgspec

from djinn_jupyter.api import interrupts
from djinn_jupyter.errors import DjinnError, SessionHeld, UsageError
from djinn_jupyter.link.channel import Channel, all_sessions, ask_for, expect
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.looks import Circumstances, FedTokens
from djinn_jupyter.wire.modules import AdapterIdentity, AddedModuleDescription, ModuleIdentity
from djinn_jupyter.wire.nouns import AttentionName
from djinn_jupyter.wire.replies import Finished, Paused
from djinn_jupyter.wire.request_base import Answer, SessionRequest
from djinn_jupyter.wire.running import Steer
from djinn_jupyter.wire.texts import label


@contextmanager
def temporary_session(channel: Channel, kind: str, adapter: str | None = None) -> Iterator[str]:
    """Open the first free one of "sweep 1", "sweep 2" and so on (for the `kind` "sweep") that no other client takes
    meanwhile, with the named adapter if any. If the connection comes back to a new engine, the session is not there;
    another client's may have its name by then, and is not closed."""
    name, engine = open_temporarily(channel, kind), channel.welcome.engine
    try:
        if adapter is not None:
            ask_for(channel, ask.SetAdapter(session=name, adapter=adapter))
        yield name
    finally:
        if channel.welcome.engine == engine:
            with suppress(DjinnError):  # another client closed it, which ended the work, or the engine is gone
                ask_for(channel, ask.Close(session=name))


def answered(
    channel: Channel,
    kind: str,
    request: SessionRequest[Answer],
    work: str,
    kept: Callable[[Answer], object] = lambda reply: None,
    *,
    adapter: str | None = None,
) -> Answer:
    """Return the reply to a request in a temporary session, and show its progress. WorkInterrupted, with what `kept`
    makes of the finished parts."""
    with interrupts.interruptible(work), temporary_session(channel, kind, adapter) as name:
        return interrupts.replied_in_parts(channel, msgspec.structs.replace(request, session=name), work, kept)


def open_temporarily(channel: Channel, kind: str) -> str:
    """Open a session under the first free name of that kind; it ends with this client at the latest."""
    taken = {label(one.name) for one in all_sessions(channel)}
    while True:
        name = next(name for n in count(1) if (name := f"{kind} {n}") not in taken)
        taken.add(name)
        with suppress(SessionHeld):
            try:
                if ask_for(channel, ask.Open(session=name, temporary=True)).created:
                    return name
            except KeyboardInterrupt:  # it may exist by now, and nothing else would close it
                channel.ask(ask.Close(session=name))
                raise


def same_adapter(channel: Channel, kept: AdapterIdentity | None) -> str | None:
    """Return the name of the adapter here with the same files as a result's adapter; None for a result without one.
    Raises UsageError where it is not there."""
    if kept is None:
        return None
    there = ask_for(channel, ask.ListAdapters()).adapters
    name = next((one.name for one in there if one.digest == kept.digest), None)
    if name is None:
        raise UsageError(
            f"It was computed with the adapter {kept.name} of {kept.folder}, which is not added here as it was; add it "
            f"first (%djinn_add_adapter {kept.name} {kept.folder})."
        )
    return name


class HowComputed(Protocol):
    """The settings of passes: their attention (None for the engine's own) and their adapter."""

    @property
    def attention(self) -> AttentionName | None: ...
    @property
    def adapter(self) -> AdapterIdentity | None: ...


@contextmanager
def session_like(channel: Channel, kind: str, made: HowComputed | None) -> Iterator[str]:
    """Open a session with the settings of these passes, or with the engine's own where there are none."""
    adapter = None if made is None else same_adapter(channel, made.adapter)
    with temporary_session(channel, kind, adapter) as name:
        if made is not None and made.attention is not None:
            ask_for(channel, ask.SetAttention(session=name, attention=made.attention))
        yield name


def require_modules(channel: Channel, modules: Sequence[ModuleIdentity | AddedModuleDescription]) -> None:
    """Raise UsageError unless these modules are added here, with the same files."""
    there = ask_for(channel, ask.ListAddedModules()).modules if modules else ()
    for one in modules:
        same = (one.name, one.at, one.digest, one.error_term)
        if same not in {(other.name, other.at, other.digest, other.error_term) for other in there}:
            error_term = "" if one.error_term else " --no-error-term"
            raise UsageError(
                f"It was computed with the module {one.name} of {one.folder} at {one.at}, which is not added here as "
                f"it was; add it first (%djinn_add_module {one.name} {one.folder} --at {one.at}{error_term})."
            )


@contextmanager
def ruling_session(channel: Channel, made: Circumstances) -> Iterator[str | None]:
    """Yield the name of a session with the original rules, attention and adapter; None where none is needed."""
    if not made.rules and made.attention is None and made.adapter is None:
        yield None
        return
    require_modules(channel, made.modules)
    with session_like(channel, "rules", made) as name:
        for rule in made.rules:
            ask_for(channel, msgspec.structs.replace(rule, session=name))
        yield name


@dataclass(frozen=True, slots=True)
class OnePass:
    """Positions [start, end) of a sequence, fed in one pass under these rules."""

    start: int
    end: int
    rules: tuple[Steer, ...]


@contextmanager
def stopped_again(
    channel: Channel, kind: str, made: Circumstances, line: Sequence[int], fed: Sequence[FedTokens], site: str
) -> Iterator[tuple[str, Paused]]:
    """Open a session with the original settings, replay the passes, and yield its name and its stop at this site."""
    with session_like(channel, kind, made) as name:
        for one in passes_of(line, fed):
            feed(channel, name, line, one)
        ask_for(channel, ask.SetBreakpoint(session=name, site=site))
        begins = max((one.end for one in fed), default=0)
        run = ask.Run(session=name, tokens=tuple(line[begins:]), max_new_tokens=1, extend=begins > 0)
        yield name, expect(ask_for(channel, run), Paused)


def fed_recipe(fed: Sequence[FedTokens]) -> dict[str, Any]:
    """Return the passes of a sequence and their rules from a recipe."""
    rules = [rule for one in fed for rule in one.rules]
    return {"passes": [(one.start, one.end, one.each) for one in fed], "rules": rules}


def passes_of(line: Sequence[int], fed: Sequence[FedTokens]) -> Iterator[OnePass]:
    """Yield the passes of a sequence one by one. Raises UsageError where they exceed it."""
    if any(one.end > len(line) for one in fed):
        raise UsageError("its passes go beyond its line: the file is not as it was written.")
    for one in fed:
        for start in range(one.start, one.end, one.each):
            yield OnePass(start, min(start + one.each, one.end), one.rules)


def feed(channel: Channel, session: str, line: Sequence[int], one: OnePass) -> None:
    """Feed the next pass of a sequence; no rule is in force afterwards."""
    for rule in one.rules:
        ask_for(channel, msgspec.structs.replace(rule, session=session))
    tokens = tuple(line[one.start : one.end])
    expect(
        ask_for(channel, ask.Run(session=session, tokens=tokens, max_new_tokens=0, extend=one.start > 0, free=True)),
        Finished,
    )
    if one.rules:
        ask_for(channel, ask.Unsteer(session=session))
