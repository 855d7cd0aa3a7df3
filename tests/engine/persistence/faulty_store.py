"""A store of objects in memory that several engines reach, each by a line of its own that can be cut at any moment."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any, Literal

from djinn_jupyter.remote.engine.objects import Changed

Fault = Literal["before", "after", "late", "read"]
Tagged = tuple[bytes, str]


class Objects:
    """What the store has, and what it had: lists are older than the last `list_age` writes."""

    def __init__(self) -> None:
        self.now: dict[str, Tagged] = {}
        self.past: list[tuple[str, ...]] = [()]
        self.list_age = 0
        self.late: list[Callable[[], Any]] = []
        self._tags = itertools.count()

    def put(self, name: str, content: bytes, condition: Callable[[Tagged | None], bool] = lambda there: True) -> str:
        if not condition(self.now.get(name)):
            raise Changed
        self.now[name] = content, f'"{next(self._tags)}"'
        self._written()
        return self.now[name][1]

    def delete(self, names: Sequence[str]) -> None:
        for name in names:
            self.now.pop(name, None)
        self._written()

    def _written(self) -> None:
        self.past.append(tuple(sorted(self.now)))

    def let_late_ones_arrive(self) -> None:
        """Carry out what was under way when a line was cut."""
        late, self.late = self.late, []
        for write in late:
            try:
                write()
            except Changed:
                pass


class Line:
    """One engine's way to the store (`JournalStore`). `faults` are those of its next requests, None for one that goes
    through; `cut`: none does."""

    def __init__(self, objects: Objects, address: str = "s3://lab/djinn") -> None:
        self.address, self.objects = address, objects
        self.faults: list[Fault | None] = []
        self.cut = False
        self.before_put: Callable[[str], None] = lambda name: None

    def read(self, name: str) -> Tagged:
        if self._fault() is not None:
            raise self._error("read")
        if name not in self.objects.now:
            raise FileNotFoundError(name)
        return self.objects.now[name]

    def compare_and_put(self, name: str, content: bytes, tag: str | None) -> str:
        def condition(there: Tagged | None) -> bool:
            return (None if there is None else there[1]) == tag

        return self._write(lambda: self.objects.put(name, content, condition))

    def put(self, name: str, content: bytes) -> None:
        self.before_put(name)
        self._write(lambda: self.objects.put(name, content))

    def delete(self, names: Sequence[str]) -> None:
        self._write(lambda: self.objects.delete(names))

    def names(self) -> list[str]:
        if self._fault() is not None:
            raise self._error("read")
        past = self.objects.past
        return list(past[max(0, len(past) - 1 - self.objects.list_age)])

    def _write(self, write: Callable[[], Any]) -> Any:
        fault = self._fault()
        if fault in ("before", "read"):
            raise self._error("written to")
        if fault == "late":
            self.objects.late.append(write)
            raise self._error("written to")
        done = write()
        if fault == "after":
            raise self._error("written to")
        return done

    def _fault(self) -> Fault | None:
        if self.cut:
            return "before"
        return self.faults.pop(0) if self.faults else None

    def _error(self, what: str) -> OSError:
        return OSError(f"{self.address} could not be {what} (Could not connect to the endpoint)")
