"""Counters of an engine's work since it started."""

from __future__ import annotations

import time
from dataclasses import dataclass, field


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
        """Note how many layers have been replayed in all, and how many wait for memory to be recorded."""
        self.layers_replayed, self.graphs_postponed = replayed, postponed

    def count_token(self) -> None:
        self.tokens_sampled += 1

    def count_answer(self) -> None:
        self.requests_answered += 1

    def count_whole_head(self) -> None:
        self.whole_heads += 1

    def note_recovered(self, *, exact: int, recomputed: int) -> None:
        """Note the sessions that the last start brought back; an engine that begins anew keeps its counters."""
        self.recovered_exact, self.recovered_recomputed = exact, recomputed

    def count_preemption(self) -> None:
        self.preemptions += 1
