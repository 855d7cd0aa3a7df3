"""Unforeseen errors of the engine, and the error for memory accounting that contradicts itself, which every module of
the engine may raise."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, field
from types import TracebackType

from djinn_jupyter.errors import DjinnError, EngineBroken
from djinn_jupyter.wire.replies import Failed
from djinn_jupyter.wire.texts import sendable


class InvariantError(DjinnError):
    """The memory accounting contradicts itself, or a caller requested what it excludes: a fault in the engine."""


# Unforeseen errors of the engine: logged with their traces, counted where they belong to no request, reported in the
# statistics. Repairs nothing, and knows neither sessions nor requests.

log = logging.getLogger(__name__)


class Faults:
    """`count` and `last` cover errors outside any request. `suspected`: an error may have left wrong state behind, so
    the memory accounting must be checked before the state is used."""

    def __init__(self) -> None:
        self.count = 0
        self.last: str | None = None
        self.suspected = False
        self._said: str | None = None

    def reply_to(self, error: Exception) -> Failed:
        """Return the reply for a request that `error` ended. Logs an error that the engine does not know."""
        if isinstance(error, DjinnError) and not isinstance(error, InvariantError):
            return Failed.of(error)
        self.suspected = True
        log.error("A request met an error that the engine does not know", exc_info=error)
        return Failed(
            code="DjinnError", message=f"The engine met an error it does not know ({in_short(error)}); see %djinn_log."
        )

    def note(self, doing: str, error: Exception) -> None:
        """Record an error that belongs to no request. A repeated error is logged, and sets `suspected`, once."""
        self.count += 1
        self.last = f"while {doing}: {in_short(error)}"
        if self.last != self._said:
            self._said, self.suspected = self.last, True
            log.error("An error that belongs to no request, %s", self.last, exc_info=error)

    def clear_suspicion(self) -> None:
        """Record that the memory accounting has been checked and is sound."""
        self.suspected = False

    def during(self, doing: str) -> FaultScope:
        """Return a context for one part of the engine's work (`it measured memory`); an error ends only that part."""
        return FaultScope(self, doing)


class FaultScope:
    """Context of `Faults.during`. A class and not a generator: the engine enters several in every slice."""

    __slots__ = ("_doing", "_faults")

    def __init__(self, faults: Faults, doing: str) -> None:
        self._faults, self._doing = faults, doing

    def __enter__(self) -> None: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if not isinstance(error, Exception):
            return False
        self._faults.note(self._doing, error)
        return True


def broken(error: Exception) -> EngineBroken:
    """Return the error for every session: no result of this engine can be trusted any more."""
    return EngineBroken(
        f"The engine's own account of its memory contradicts itself ({in_short(error)}), so it begins anew: load the "
        "model again; its sessions come back as they were last kept."
    )


def lost(error: Exception) -> EngineBroken:
    """Return the same error where the device does no more work for this process."""
    return EngineBroken(
        f"The device does no more work for the engine ({in_short(error)}), so it begins anew: load the model again; "
        "its sessions come back as they were last kept."
    )


def in_short(error: Exception) -> str:
    """Return the first line of an error, with its type, in a form to send."""
    lines = f"{type(error).__name__}: {error}".splitlines() or [type(error).__name__]
    return sendable(lines[0].removesuffix(": "))


@dataclass(slots=True)
class Counters:
    """Counts of one engine. Written on the engine's thread only."""

    started: float = field(default_factory=time.monotonic)
    passes: int = 0
    layers_run: int = 0
    layers_replayed: int = 0
    graphs_postponed: int = 0
    tokens_sampled: int = 0
    requests_answered: int = 0
    preemptions: int = 0
    whole_heads: int = 0
    recovered_exact: int = 0
    recovered_recomputed: int = 0

    def count_pass(self) -> None:
        self.passes += 1

    def count_layers(self, count: int) -> None:
        self.layers_run += count

    def note_graphs(self, *, replayed: int, postponed: int) -> None:
        """Record how many layers have been replayed in all, and how many wait for memory to be recorded."""
        self.layers_replayed, self.graphs_postponed = replayed, postponed

    def count_token(self) -> None:
        self.tokens_sampled += 1

    def count_answer(self) -> None:
        self.requests_answered += 1

    def count_whole_head(self) -> None:
        self.whole_heads += 1

    def note_recovered(self, *, exact: int, recomputed: int) -> None:
        """Record the sessions that the last start recovered; an engine that starts again keeps its counters."""
        self.recovered_exact, self.recovered_recomputed = exact, recomputed

    def count_preemption(self) -> None:
        self.preemptions += 1
