"""The passes of a line, fed again in a session for the time of one piece of work, each as it was fed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import msgspec

from djinn_jupyter.api.likeness import session_like
from djinn_jupyter.errors import UsageError
from djinn_jupyter.link.channel import Channel, ask_for, expect
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.looks import Circumstances, FedTokens
from djinn_jupyter.wire.replies import Finished, Paused
from djinn_jupyter.wire.running import Steer


@dataclass(frozen=True, slots=True)
class OnePass:
    """Positions [start, end) of a line, fed at once under these rules."""

    start: int
    end: int
    rules: tuple[Steer, ...]


@contextmanager
def stopped_again(
    channel: Channel, kind: str, made: Circumstances, line: Sequence[int], fed: Sequence[FedTokens], site: str
) -> Iterator[tuple[str, Paused]]:
    """Open a session that computes as it was done then, feed it the line as it was fed, and yield its name and its stop
    at this site of the last pass."""
    with session_like(channel, kind, made) as name:
        for one in passes_of(line, fed):
            feed(channel, name, line, one)
        ask_for(channel, ask.SetBreakpoint(session=name, site=site))
        begins = max((one.end for one in fed), default=0)
        run = ask.Run(session=name, tokens=tuple(line[begins:]), max_new_tokens=1, extend=begins > 0)
        yield name, expect(ask_for(channel, run), Paused)


def fed_recipe(fed: Sequence[FedTokens]) -> dict[str, Any]:
    """Return the passes of a line, and the rules that held in them, as a recipe tells them."""
    rules = [rule for one in fed for rule in one.rules]
    return {"passes": [(one.start, one.end, one.each) for one in fed], "rules": rules}


def passes_of(line: Sequence[int], fed: Sequence[FedTokens]) -> Iterator[OnePass]:
    """Yield the passes of a line one by one. Raises UsageError where they go beyond it."""
    if any(one.end > len(line) for one in fed):
        raise UsageError("its passes go beyond its line: the file is not as it was written.")
    for one in fed:
        for start in range(one.start, one.end, one.each):
            yield OnePass(start, min(start + one.each, one.end), one.rules)


def feed(channel: Channel, session: str, line: Sequence[int], one: OnePass) -> None:
    """Feed the next pass of a line; no rule is in force afterwards."""
    for rule in one.rules:
        ask_for(channel, msgspec.structs.replace(rule, session=session))
    tokens = tuple(line[one.start : one.end])
    expect(
        ask_for(channel, ask.Run(session=session, tokens=tokens, max_new_tokens=0, extend=one.start > 0, free=True)),
        Finished,
    )
    if one.rules:
        ask_for(channel, ask.Unsteer(session=session))
