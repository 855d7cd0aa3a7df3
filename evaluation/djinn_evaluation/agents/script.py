"""The words and pauses of each agent: drawn from a seed, before anything runs. Knows no engine."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from random import Random
from typing import Any

from djinn_evaluation.configuration.agents import AgentsFile, PauseKind, Pauses
from djinn_jupyter.api.arguments import given_path
from djinn_jupyter.errors import UsageError

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
    """One agent. `prefix` are the tokens shared with others, empty where all are its own; the first turn's pause is the
    time until it arrives."""

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
