"""The stops of a session, oldest first, and where it stands among them.

One line of work has one line of stops: going back and then on drops the stops that came later (fork to keep both).
Frames of a line share its pages without copies: a later pass never writes below an earlier frame, neither in position
nor in layer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from torch import Tensor

from djinn_jupyter.engine.frame import Frame
from djinn_jupyter.engine.line import Line
from djinn_jupyter.errors import UsageError
from djinn_jupyter.wire.nouns import BreakpointDescription, PauseReason, StopDescription


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """All that is needed to go back to a stop. `frame` is as the pass arrived, `left_as` as it was resumed with edits
    (None when it was not edited). `tokens` are all tokens then; `generator` the sampler's state before this pass's
    token."""

    frame: Frame
    line: Line
    tokens: tuple[int, ...]
    generator: Tensor
    reason: PauseReason
    breakpoint: BreakpointDescription | None = None
    also: tuple[str, ...] = ()
    matched: int | None = None
    left_as: Frame | None = None

    @property
    def onward(self) -> Frame:
        """The frame from which the line went on."""
        return self.left_as or self.frame


@dataclass(slots=True, kw_only=True)
class History:
    """`present` indexes the stop the session stands at; None while it runs or has finished."""

    kept: int
    stops: list[Checkpoint] = field(default_factory=list)
    present: int | None = None
    dropped: int = 0

    def arrive(self, checkpoint: Checkpoint) -> None:
        """A new stop after the present one."""
        self.stops.append(checkpoint)
        if len(self.stops) > self.kept:
            self.stops.pop(0)
            self.dropped += 1
        self.present = len(self.stops) - 1

    def leave(self, left_as: Frame | None) -> None:
        """The session goes on from the present stop; later ones are dropped."""
        if self.present is None:
            return
        checkpoint = self.stops[self.present]
        del self.stops[self.present + 1 :]
        edited = left_as is not None and left_as is not checkpoint.frame
        self.stops[self.present] = replace(checkpoint, left_as=left_as if edited else None)
        self.present = None

    def go_back(self, count: int) -> Checkpoint:
        """Stand at the stop `count` before the present one (before the end, when the session has finished)."""
        here = len(self.stops) if self.present is None else self.present
        target = here - count
        if target < 0:
            raise UsageError(self._too_far(here))
        self.present = target
        return self.stops[target]

    def _too_far(self, here: int) -> str:
        there = {0: "is no earlier stop", 1: "is one earlier stop"}.get(here, f"are {here} earlier stops")
        gone = f"; {self.dropped} before are gone, for a session keeps its last {self.kept} (--stops-kept)"
        return f"There {there} to go back to{gone if self.dropped else ''}."

    @property
    def here(self) -> Checkpoint | None:
        return None if self.present is None else self.stops[self.present]

    def oldest_position(self, otherwise: int) -> int:
        """The smallest committed length that a kept stop needs."""
        return min((stop.frame.committed for stop in self.stops), default=otherwise)

    def drop_from(self, committed: int, boundary: int) -> None:
        """Drop the stops at or after a place of the line: a stop made there by going back takes their place."""
        self.stops = [s for s in self.stops if (s.frame.committed, s.frame.boundary) < (committed, boundary)]
        self.present = None

    def copy(self, line_of: Callable[[Line], Line]) -> History:
        """The same stops on copies of their lines, so that a fork draws its own random numbers."""
        stops = [replace(stop, line=line_of(stop.line)) for stop in self.stops]
        return History(kept=self.kept, stops=stops, present=self.present, dropped=self.dropped)

    def describe(self) -> tuple[StopDescription, ...]:
        return tuple(_describe(index, stop) for index, stop in enumerate(self.stops))


def _describe(index: int, stop: Checkpoint) -> StopDescription:
    assert stop.frame.tap is not None
    return StopDescription(
        index=index,
        site=str(stop.frame.tap.site),
        step=stop.frame.step,
        position=stop.frame.positions[-1],
        reason=stop.reason,
        edited=stop.left_as is not None,
    )
