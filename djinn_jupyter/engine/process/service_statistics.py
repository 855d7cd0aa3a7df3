"""The counts of the service in front of an engine."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceStatistics:
    """The service's counts. `dropped` could not be answered, `refused` were answered with Failed before the engine saw
    them, `unroutable` are replies whose client had gone, `pending` wait for the engine. `events` are those of the
    engine, `events_dropped` those that a client did not read."""

    requests: int
    replies: int
    refused: int
    dropped: int
    unroutable: int
    events: int
    events_dropped: int
    pending: int
    clients: int
