"""The passes of a line, fed again in a session for the time of one piece of work, each as it was fed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec

from djinn_jupyter.client.connection.channel import Channel, ask_for
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.circumstances import FedTokens
from djinn_jupyter.wire.interventions import Steer
from djinn_jupyter.wire.replies import Cleared, Finished, Steered


@dataclass(frozen=True, slots=True)
class OnePass:
    """Positions [start, end) of a line, fed at once under these rules."""

    start: int
    end: int
    rules: tuple[Steer, ...]


def passes_of(fed: Sequence[FedTokens]) -> Iterator[OnePass]:
    """Yield the passes of a line one by one."""
    for one in fed:
        for start in range(one.start, one.end, one.each):
            yield OnePass(start, min(start + one.each, one.end), one.rules)


def feed(channel: Channel, session: str, line: Sequence[int], one: OnePass) -> None:
    """Feed the next pass of a line; no rule is in force afterwards."""
    for rule in one.rules:
        ask_for(channel, msgspec.structs.replace(rule, session=session), Steered)
    tokens = tuple(line[one.start : one.end])
    ask_for(
        channel, ask.Run(session=session, tokens=tokens, max_new_tokens=0, extend=one.start > 0, free=True), Finished
    )
    if one.rules:
        ask_for(channel, ask.Unsteer(session=session), Cleared)
