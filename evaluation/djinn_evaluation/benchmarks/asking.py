"""Requests at random moments while other work runs, each timed until its reply."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from time import perf_counter
from typing import Final

Ask = Callable[[], object]
LONGEST_PAUSE: Final = 0.02  # seconds: a layer's time, or more


def sample(kinds: Mapping[str, Ask], times: dict[str, list[float]], still: Callable[[], bool], pause: float) -> None:
    """Send requests at random moments while the other work runs; a reply after its end is not counted. A session's
    verb is answered between two layers, so `pause` has to be as long as a layer, or all are sent at the start of one.
    """
    moments = random.Random(0)
    while True:
        for name, ask in kinds.items():
            time.sleep(moments.uniform(0, pause))
            seconds = timed(ask)
            if not still():
                return
            times[name].append(seconds)


@contextmanager
def under_way(work: Ask, ended: list[object]) -> Iterator[Callable[[], bool]]:
    """Do the work in a thread of its own, and add what it returns to `ended`. The yielded function is true while it is
    not done."""
    thread = threading.Thread(target=lambda: ended.append(work()))
    thread.start()
    time.sleep(LONGEST_PAUSE)
    try:
        yield thread.is_alive
    finally:
        thread.join()


def timed(ask: Ask) -> float:
    """Return the seconds until its reply."""
    begun = perf_counter()
    ask()
    return perf_counter() - begun
