"""Metrics by person. Each value of a label is a series that Prometheus keeps: the MOST_PERSONS who have most have one
of their own, the rest one together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from djinn_jupyter.wire.holdings import PersonMemory
from djinn_jupyter.wire.naming import person_of
from djinn_jupyter.wire.nouns import SessionDescription

MOST_PERSONS: Final = 50
OWN_USER: Final = "engine's user"  # no name of a person has an apostrophe or a space
OTHERS: Final = "all others"
Samples = Iterable[tuple[tuple[str, ...], float | None]]


def session_samples(sessions: Iterable[SessionDescription]) -> Samples:
    """Return the sessions of each person, by state."""
    found = Counter((_label(person_of(one.name)), one.state) for one in sessions)
    by_person = Counter[str]()
    for (person, _), count in found.items():
        by_person[person] += count
    named = _largest(by_person)
    return _summed(((person if person in named else OTHERS, state), count) for (person, state), count in found.items())


def memory_samples(people: Iterable[PersonMemory], sessions: Iterable[SessionDescription]) -> Samples:
    """Return the bytes of each person on device, host and disk; `people` is empty where all is the engine's own
    user's."""
    told = {_label(one.person): _sizes(one.device_bytes, one.host_bytes, one.disk_bytes) for one in people}
    if not told:
        every = tuple(sessions)
        told[OWN_USER] = _sizes(
            sum(one.device_bytes for one in every),
            sum(one.host_bytes for one in every),
            sum(one.disk_bytes for one in every),
        )
    named = _largest({person: sum(sizes.values()) for person, sizes in told.items()})
    return _summed(
        ((person if person in named else OTHERS, tier), size)
        for person, sizes in told.items()
        for tier, size in sizes.items()
    )


def time_samples(worked: Mapping[str | None, float]) -> Samples:
    """Return the seconds that the engine has worked for each person. The first MOST_PERSONS for whom it worked have a
    series of their own and keep it: one that moved to another series would have the sums of both fall and rise."""
    named = {OWN_USER, *[_label(person) for person in worked if person is not None][:MOST_PERSONS]}
    labelled = ((_label(person), seconds) for person, seconds in worked.items())
    return _summed(((person if person in named else OTHERS,), seconds) for person, seconds in labelled)


def _sizes(device: int, host: int, disk: int) -> dict[str, int]:
    return {"device": device, "host": host, "disk": disk}


def _label(person: str | None) -> str:
    return OWN_USER if person is None else person


def _largest(sizes: Mapping[str, int]) -> set[str]:
    ordered = sorted(sizes, key=lambda person: (-sizes[person], person))
    return {OWN_USER, *[person for person in ordered if person != OWN_USER][:MOST_PERSONS]}


def _summed(samples: Iterable[tuple[tuple[str, ...], float]]) -> Iterator[tuple[tuple[str, ...], float]]:
    sums: dict[tuple[str, ...], float] = {}
    for labels, count in samples:
        sums[labels] = sums.get(labels, 0) + count
    yield from sorted(sums.items())
