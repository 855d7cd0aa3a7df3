"""A closed network of queues: users who think, then ask, with resources that serve one at a time.

Exact mean value analysis (Reiser and Lavenberg 1980): the mean seconds that a user waits, from what a visit costs each
resource. Independent of the distribution of thinking times. A resource is taken to be shared by those present, as an
engine's turns are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """The load of `users`: seconds until an answer, answers a second of all of them, and each resource's busy part."""

    users: int
    response_seconds: float
    per_second: float
    busy: Mapping[str, float]

    @property
    def busiest(self) -> str:
        return max(self.busy, key=lambda name: self.busy[name])


def load_of(users: int, thinking_seconds: float, demands: Mapping[str, float]) -> Load:
    """Return the load of so many users. `demands` are the seconds of each resource for one answer."""
    waiting = dict.fromkeys(demands, 0.0)
    response = per_second = 0.0
    for present in range(1, users + 1):
        at = {name: seconds * (1 + waiting[name]) for name, seconds in demands.items()}
        response = sum(at.values())
        per_second = present / (thinking_seconds + response)
        waiting = {name: per_second * seconds for name, seconds in at.items()}
    busy = {name: per_second * seconds for name, seconds in demands.items()}
    return Load(users=users, response_seconds=response, per_second=per_second, busy=busy)
