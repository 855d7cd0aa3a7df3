"""The stops of a session, oldest first, and where it stands among them.

One line of work has one line of stops: going back and then on drops the stops that came later (fork to keep both).
Frames of a line share its pages without copies: a later pass never writes below an earlier frame, neither in position
nor in layer."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Final

import torch
from torch import Tensor

from djinn_jupyter.engine.model.hooks.taps import Tap
from djinn_jupyter.engine.passes import edits
from djinn_jupyter.engine.passes.edits import Change
from djinn_jupyter.engine.passes.frame import Frame
from djinn_jupyter.engine.session.generation import Generation
from djinn_jupyter.engine.system.arrays import to_array
from djinn_jupyter.errors import InvalidEdit, UsageError
from djinn_jupyter.wire.edits import Edit, PatchFrom, Set
from djinn_jupyter.wire.nouns import BreakpointDescription, PauseReason, StopDescription
from djinn_jupyter.wire.readings import EditAtStop
from djinn_jupyter.wire.sites import Site, parse_site

MOST_STOPS: Final = 10_000  # wherever they lie: a reply tells them all


@dataclass(frozen=True, slots=True, kw_only=True)
class StopRecord:
    """All that is needed to go back to a stop. `frame` is the frame as the pass arrived, `left_as` the frame as resumed
    with edits (None when it was not edited). `tokens` are all tokens then; `generator` is the sampler's state before
    this pass's token. `number` is unique within a session and its forks; None where it was kept without one."""

    frame: Frame
    generation: Generation
    tokens: tuple[int, ...]
    generator: Tensor
    reason: PauseReason
    breakpoint: BreakpointDescription | None = None
    also: tuple[str, ...] = ()
    matched: int | None = None
    left_as: Frame | None = None
    number: int | None = None

    @property
    def site(self) -> Site:
        """The site that the stop is at, as it was named: with the selector of its breakpoint."""
        assert self.frame.tap is not None
        return self.frame.tap.site if self.breakpoint is None else parse_site(self.breakpoint.site)


@dataclass(slots=True, kw_only=True)
class History:
    """`present` indexes the stop the session stands at; None while it runs or has finished. The last `kept` stops are
    in memory, the first `on_disk` on the disk (the present one wherever it is needed). `dropped` counts the stops that
    are gone; `why` is the reason for the last of them."""

    kept: int
    stops: list[StopRecord] = field(default_factory=list)
    present: int | None = None
    on_disk: int = 0
    dropped: int = 0
    why: str = ""

    def arrive(self, stop: StopRecord) -> None:
        """Append a stop and stand at it. The caller sends the stops `beyond` to the disk."""
        self.stops.append(stop)
        self.present = len(self.stops) - 1

    @property
    def beyond(self) -> int:
        """The number of stops in memory above `kept`."""
        return max(0, len(self.stops) - self.on_disk - self.kept)

    @property
    def too_many(self) -> bool:
        """True where there are more than MOST_STOPS and the session does not stand at the oldest."""
        return len(self.stops) > MOST_STOPS and self.present != 0

    def drop_oldest(self, why: str) -> None:
        """Drop the oldest stop. `why` is a sentence for the error of a client that goes back there."""
        self.stops.pop(0)
        self.on_disk, self.dropped, self.why = max(0, self.on_disk - 1), self.dropped + 1, why
        if self.present is not None:
            self.present -= 1

    def drop_through(self, last: StopRecord, why: str) -> None:
        """Drop a stop and all older ones, up to the stop that the session stands at."""
        while any(stop is last for stop in self.stops) and self.present != 0:
            self.drop_oldest(why)

    def clear(self) -> None:
        """Forget all stops: a new line begins."""
        self.stops.clear()
        self.present, self.on_disk, self.dropped, self.why = None, 0, 0, ""

    def note_on_disk(self) -> None:
        """Note that the oldest stop in memory is on the disk now."""
        self.on_disk += 1

    def leave(self, left_as: Frame | None) -> None:
        """Go on from the present stop and drop later ones."""
        if self.present is None:
            return
        stop = self.stops[self.present]
        self._cut(self.stops[: self.present + 1])
        edited = left_as is not None and left_as is not stop.frame
        self.stops[self.present] = replace(stop, left_as=left_as if edited else None)
        self.present = None

    def _cut(self, stops: list[StopRecord]) -> None:
        self.stops, self.on_disk = stops, min(self.on_disk, len(stops))

    def go_back(self, count: int) -> StopRecord:
        """Stand at the stop `count` before the present one (before the end, when the session has finished)."""
        self.present = self._target(count)
        return self.stops[self.present]

    def before(self, count: int) -> StopRecord:
        """Return the stop that `go_back` would lead to. Raises UsageError where there is none, saying how far back the
        stops reach and why."""
        return self.stops[self._target(count)]

    def _target(self, count: int) -> int:
        here = len(self.stops) if self.present is None else self.present
        if here < count:
            raise UsageError(self._too_far(here))
        return here - count

    def _too_far(self, here: int) -> str:
        there = {0: "is no earlier stop", 1: "is one earlier stop"}.get(here, f"are {here} earlier stops")
        gone = (
            f"; {self.dropped} before {'is' if self.dropped == 1 else 'are'} gone: a session keeps its last "
            f"{self.kept} in memory (--stops-kept) and older ones on the disk. {self.why}".rstrip()
        )
        return f"There {there} to go back to{gone if self.dropped else '.'}"

    @property
    def written(self) -> list[StopRecord]:
        """The stops that images hold: the present one, later ones, and those in memory. The others lie in the disk tier
        of this process."""
        return self.stops[self.unwritten :]

    @property
    def unwritten(self) -> int:
        """The number of oldest stops that images leave out."""
        return self.on_disk if self.present is None else min(self.on_disk, self.present)

    @property
    def here(self) -> StopRecord | None:
        return None if self.present is None else self.stops[self.present]

    @property
    def arrived(self) -> Frame | None:
        """The frame of the present stop as the pass came to it; None where it stands at none."""
        return None if self.here is None else self.here.frame

    def oldest_position(self, otherwise: int) -> int:
        """Return the smallest committed length that a kept stop needs, `otherwise` where there is no stop."""
        return min((stop.frame.committed for stop in self.stops), default=otherwise)

    def drop_from(self, committed: int, boundary: int) -> None:
        """Drop the stops at or after a place of the line; going back makes a new stop there."""
        self._cut([s for s in self.stops if (s.frame.committed, s.frame.boundary) < (committed, boundary)])
        self.present = None

    def keep_present(self, why: str) -> None:
        """Forget all stops but the present one."""
        here = self.here
        self.dropped, self.why = self.dropped + len(self.stops) - (here is not None), why
        self.on_disk = int(self.present is not None and self.present < self.on_disk)
        self.stops, self.present = ([], None) if here is None else ([here], 0)

    def copy(self, generation_of: Callable[[Generation], Generation]) -> History:
        """Return the same stops on copies of their generations, so that a fork draws its own random numbers."""
        stops = [replace(stop, generation=generation_of(stop.generation)) for stop in self.stops]
        return replace(self, stops=stops)

    def draw_with(self, generator: Tensor) -> None:
        """Draw from this state of the generator whenever the run goes on from the present stop."""
        if self.present is not None:
            self.stops[self.present] = replace(self.stops[self.present], generator=generator)

    def describe(self) -> tuple[StopDescription, ...]:
        return tuple(_describe(index, stop) for index, stop in enumerate(self.stops))


def _describe(index: int, stop: StopRecord) -> StopDescription:
    return StopDescription(
        index=index,
        site=str(stop.site),
        step=stop.frame.step,
        position=stop.frame.positions[-1],
        reason=stop.reason,
        edited=stop.left_as is not None,
        number=stop.number,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class StopEdit:
    """An edit of the stopped value. `edit` refers to no other session: for a patch it holds the values that were put
    there. `size` is NaN or infinite where the value was zero; `positions` are absolute, None for all of the pass."""

    number: int
    what: str
    site: Site
    edit: Edit
    positions: tuple[int, ...] | None
    size: float
    enabled: bool = True

    def describe(self) -> EditAtStop:
        size = self.size if math.isfinite(self.size) else None
        return EditAtStop(
            number=self.number, site=str(self.site), what=self.what, relative_size=size, enabled=self.enabled
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """A frame after an edit, and the touched part of its value [n, m, ...] before and after."""

    frame: Frame
    before: Tensor
    after: Tensor
    positions: tuple[int, ...]
    noted: StopEdit


def make(
    frame: Frame,
    edit: Edit,
    site: Site,
    positions: tuple[int, ...] | None,
    *,
    number: int,
    patched: Tensor | None = None,
    what: str | None = None,
    words: str | None = None,
) -> Made:
    """Apply an edit to the stopped value of `frame`. `patched` is the value that a `patch_from` takes, `what` its text
    with its place, `words` without, where they differ from the edit's. Raises InvalidEdit."""
    assert frame.tap is not None and frame.raw is not None
    value = frame.tap.read(frame.raw)
    edits.check(edit, value.shape[-1])
    available = available_in(frame, value)
    rows = edits.rows_of(positions, available)
    before = edits.take(value, rows, site.selector)
    after = edits.compute(before, edit, None, **({} if patched is None else {"source": patched}))
    if not bool(torch.isfinite(after).all()):
        raise InvalidEdit("The edit makes NaN or infinity of the activation; it is left as it was.")
    touched = tuple(available if rows is None else (available[row] for row in rows))
    noted = StopEdit(
        number=number,
        what=what or edits.spell_at(words or edits.spell(edit), site, touched),
        site=site,
        edit=Set(value=to_array(after)) if isinstance(edit, PatchFrom) else edit,
        positions=positions,
        size=float(edits.sizes(before, after).relative),
    )
    raw = frame.tap.write(frame.raw, edits.put(value, after, rows, site.selector))
    changed = frame.with_value(raw, Change(what=noted.what, size=noted.size))
    return Made(frame=changed, before=before, after=after, positions=touched, noted=noted)


def require_editable(tap: Tap) -> None:
    """Raise InvalidEdit for a value that is only looked at."""
    if not tap.editable:
        raise InvalidEdit(f"{tap.site.whole()} can be looked at, not changed: {tap.reason}.")


def available_in(frame: Frame, value: Tensor) -> range:
    """Return the absolute positions of the value's rows."""
    return frame.positions[len(frame.positions) - value.shape[0] :]


def with_edits(arrived: Frame, made: Iterable[StopEdit]) -> tuple[Frame, list[StopEdit]]:
    """Make the enabled edits again, in order, on the frame as the pass brought it. Return that frame and the edits with
    their present sizes. With none enabled it is the very frame that arrived."""
    frame, noted = arrived, []
    for one in made:
        if one.enabled:
            again = make(frame, one.edit, one.site, one.positions, number=one.number, what=one.what)
            frame, one = again.frame, again.noted
        noted.append(one)
    return frame, noted
