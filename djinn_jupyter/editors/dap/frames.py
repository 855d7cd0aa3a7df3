"""Numbers of stack frames. A number belongs to one frame of one stop and is never reused, so that a client which asks
for a frame of an earlier stop is not answered with values of the present one."""

from __future__ import annotations

from djinn_jupyter.errors import UsageError
from djinn_jupyter.wire.nouns import StopIdentity

_Frame = tuple[int, int, int]  # the thread, the stop's number, the place in the stack


class Frames:
    def __init__(self, first: int = 1) -> None:
        self._next = first
        self._numbers: dict[_Frame, int] = {}
        self._frames: dict[int, _Frame] = {}

    def number(self, thread: int, stop: StopIdentity, index: int) -> int:
        """Return the number of a frame of a stop; it stays through edits of that stop."""
        frame = (thread, stop.number, index)
        if frame not in self._numbers:
            self._numbers[frame], self._frames[self._next] = self._next, frame
            self._next += 1
        return self._numbers[frame]

    def find(self, number: int) -> tuple[int, int, int]:
        """Return a frame's thread, stop number and place in the stack. UsageError for a frame of a past stop."""
        found = self._frames.get(number)
        if found is None:
            raise UsageError(f"The frame {number} is of a stop that is past; ask for the stack of the present one.")
        return found

    def forget(self, thread: int) -> None:
        """Drop the frames of a thread that has left its stop."""
        for frame in [frame for frame in self._numbers if frame[0] == thread]:
            del self._frames[self._numbers.pop(frame)]
