"""The ways of keeping agents that pause: options of a real engine, and what the agent does at a pause."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from djinn_evaluation.configuration.agents import AgentsFile, WayName
from djinn_evaluation.memory import bytes_of, options_for_limit

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
