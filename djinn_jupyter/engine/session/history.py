"""The stops of a session, oldest first, and where it stands among them; and the pass log: the passes that made its
committed positions, so that they can be run again alike, and why they would not make the same values.

One line of work has one line of stops: going back and then on drops the stops that came later (fork to keep both).
Frames of a line share its pages without copies: a later pass never writes below an earlier frame, neither in position
nor in layer.

The last bits of keys and values depend on how the tokens were cut into passes, and on what rules and edits did in them.
The log keeps rules as they held, and the values put into a pass that stopped on its way as overrides."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import torch
from torch import Tensor

from djinn_jupyter.engine.model.hooks.taps import Tap
from djinn_jupyter.engine.passes import edits
from djinn_jupyter.engine.passes.breakpoints import FedLine, FedPasses, Rule
from djinn_jupyter.engine.passes.edits import Change
from djinn_jupyter.engine.passes.frame import Frame
from djinn_jupyter.engine.session.generation import Generation
from djinn_jupyter.engine.system.arrays import to_array
from djinn_jupyter.errors import InvalidEdit, UsageError
from djinn_jupyter.wire.edits import Edit, PatchFrom, Set
from djinn_jupyter.wire.nouns import BreakpointDescription, Exactness, PauseReason, StopDescription
from djinn_jupyter.wire.readings import EditAtStop
from djinn_jupyter.wire.sites import Site, parse_site

MOST_STOPS: Final = 10_000  # wherever they lie: a reply tells them all


@dataclass(frozen=True, slots=True, kw_only=True)
class StopRecord:
    """Everything needed to go back to a stop. `frame` is the frame at the pass's arrival, `left_as` the frame as
    resumed with edits (None without edits). `tokens` are all tokens then; `generator` is the sampler's state before
    this pass's token. `number` is unique within a session and its forks; None in an old file."""

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
        """The site of the stop, in its spelling: with the selector of its breakpoint."""
        assert self.frame.tap is not None
        return self.frame.tap.site if self.breakpoint is None else parse_site(self.breakpoint.site)


@dataclass(slots=True, kw_only=True)
class History:
    """`present` indexes the present stop; None while the session runs or after it finished. The last `kept` stops are
    in memory, the first `on_disk` on the disk (the present one wherever it is needed). `dropped` counts the stops that
    are gone; `why` is the reason for the last of them."""

    kept: int
    stops: list[StopRecord] = field(default_factory=list)
    present: int | None = None
    on_disk: int = 0
    dropped: int = 0
    why: str = ""

    def append(self, stop: StopRecord) -> None:
        """Append a stop and make it the present one. The caller sends the stops `beyond` to the disk."""
        self.stops.append(stop)
        self.present = len(self.stops) - 1

    @property
    def beyond(self) -> int:
        """The number of stops in memory above `kept`."""
        return max(0, len(self.stops) - self.on_disk - self.kept)

    @property
    def too_many(self) -> bool:
        """True where there are more than MOST_STOPS and the oldest is not the present one."""
        return len(self.stops) > MOST_STOPS and self.present != 0

    def drop_oldest(self, why: str) -> None:
        """Drop the oldest stop. `why` is a sentence for the error of a client that goes back there."""
        self.stops.pop(0)
        self.on_disk, self.dropped, self.why = max(0, self.on_disk - 1), self.dropped + 1, why
        if self.present is not None:
            self.present -= 1

    def drop_through(self, last: StopRecord, why: str) -> None:
        """Drop a stop and all older ones, up to the present one."""
        while any(stop is last for stop in self.stops) and self.present != 0:
            self.drop_oldest(why)

    def clear(self) -> None:
        """Forget all stops: new tokens begin."""
        self.stops.clear()
        self.present, self.on_disk, self.dropped, self.why = None, 0, 0, ""

    def note_on_disk(self) -> None:
        """Note that the oldest stop in memory is on the disk now."""
        self.on_disk += 1

    def leave(self, left_as: Frame | None) -> None:
        """Continue from the present stop and drop later ones."""
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
        """Make the stop `count` before the present one (before the end, after a finished run) the present one."""
        self.present = self._target(count)
        return self.stops[self.present]

    def before(self, count: int) -> StopRecord:
        """Return the target of `go_back`. Raises UsageError without one, with how far back the stops reach and why."""
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
        """The stops in images: the present one, later ones, and those in memory. Others are in this process's disk
        tier."""
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
        """The frame of the present stop at the pass's arrival; None without a present stop."""
        return None if self.here is None else self.here.frame

    def oldest_position(self, otherwise: int) -> int:
        """Return the smallest committed length that a kept stop needs, `otherwise` where there is no stop."""
        return min((stop.frame.committed for stop in self.stops), default=otherwise)

    def drop_from(self, committed: int, boundary: int) -> None:
        """Drop the stops at or after a place; going back makes a new stop there."""
        self._cut([s for s in self.stops if (s.frame.committed, s.frame.boundary) < (committed, boundary)])
        self.present = None

    def keep_present(self, why: str) -> None:
        """Forget all stops but the present one."""
        here = self.here
        self.dropped, self.why = self.dropped + len(self.stops) - (here is not None), why
        self.on_disk = int(self.present is not None and self.present < self.on_disk)
        self.stops, self.present = ([], None) if here is None else ([here], 0)

    def copy(self, generation_of: Callable[[Generation], Generation]) -> History:
        """Return the same stops on copies of their generations, so that a fork samples its own random numbers."""
        stops = [replace(stop, generation=generation_of(stop.generation)) for stop in self.stops]
        return replace(self, stops=stops)

    def draw_with(self, generation: Generation) -> None:
        """Draw with these settings whenever the run continues from the present stop."""
        if self.present is not None:
            state = generation.sampler.generator.get_state()
            self.stops[self.present] = replace(self.stops[self.present], generation=generation, generator=state)

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
    """Apply an edit to the stopped value of `frame`. `patched` is the value for a `patch_from`, `what` its text with
    its place, `words` without, where they differ from the edit's. Raises InvalidEdit."""
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
    """Raise InvalidEdit for a read-only value."""
    if not tap.editable:
        raise InvalidEdit(f"{tap.site.whole()} can be looked at, not changed: {tap.reason}.")


def available_in(frame: Frame, value: Tensor) -> range:
    """Return the absolute positions of the value's rows."""
    return frame.positions[len(frame.positions) - value.shape[0] :]


def with_edits(arrived: Frame, made: Iterable[StopEdit]) -> tuple[Frame, list[StopEdit]]:
    """Apply the enabled edits again, in order, to the frame at the pass's arrival. Return that frame and the edits with
    their present sizes. With none enabled it is the same frame that arrived."""
    frame, noted = arrived, []
    for one in made:
        if one.enabled:
            again = make(frame, one.edit, one.site, one.positions, number=one.number, what=one.what)
            frame, one = again.frame, again.noted
        noted.append(one)
    return frame, noted


@dataclass(slots=True, kw_only=True)
class Passes:
    """Positions [start, end) that were fed `each` at a time under `rules`. `entry` is the frame from which a single
    pass was last resumed after a stop, reduced to its place and its overrides. `decode`: of generated tokens."""

    start: int
    end: int
    each: int
    decode: bool
    rules: tuple[Rule, ...]
    entry: Frame | None = None

    def takes(self, start: int, each: int, decode: bool, rules: tuple[Rule, ...]) -> bool:
        """True where a pass that begins at `start` continues these in the same way."""
        alike = (self.end, self.each, self.decode) == (start, each, decode) and self.entry is None
        return alike and same_rules(self.rules, rules)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CachedEdit:
    """Rows of a site's cache layer that replaced the computed ones when `at` positions were committed: keys or values
    [n, H, D] on the host, of all heads, at `positions`. `what` describes the edit, `size` how much they changed, NaN or
    infinite where they were zero."""

    at: int
    site: Site
    positions: tuple[int, ...]
    rows_nHD: Tensor
    what: str
    size: float

    def before(self, length: int) -> CachedEdit | None:
        """Return the edit without the positions from `length` on; None where none remain."""
        if self.at <= length:
            return self
        kept = [index for index, position in enumerate(self.positions) if position < length]
        positions = tuple(self.positions[index] for index in kept)
        return replace(self, at=length, positions=positions, rows_nHD=self.rows_nHD[kept]) if kept else None


@dataclass(slots=True)
class PassLog:
    """Passes in order of position, without a gap from 0 on; `edited` are the edits of committed rows, in order."""

    passes: list[Passes] = field(default_factory=list)
    edited: list[CachedEdit] = field(default_factory=list)

    @property
    def end(self) -> int:
        return self.passes[-1].end if self.passes else 0

    def count(self, start: int, end: int) -> int:
        """Return how many passes fed the positions [start, end), both of them where a pass began or the last ended."""
        return sum(max(0, min(one.end, end) - max(one.start, start)) // one.each for one in self.passes)

    def not_alike(self) -> set[int]:
        """Return the ends of passes that their tokens alone cannot reproduce: of prompts and of stopped passes."""
        return {one.end for one in self.passes if one.entry is not None or not one.decode}

    def record(self, frame: Frame, rules: Iterable[Rule], *, whole: bool) -> None:
        """Record the committed pass that was last entered from `frame` under `rules`. `whole`: all of it ran under
        these rules and nothing else, even in several entries."""
        size, held = len(frame.tokens), tuple(rules)
        self.cut(frame.committed)
        entry = None if whole else _reduced(frame)
        last = self.passes[-1] if self.passes else None
        if entry is None and last is not None and last.takes(frame.committed, size, frame.step > 0, held):
            last.end += size
            return
        made = Passes(
            start=frame.committed,
            end=frame.committed + size,
            each=size,
            decode=frame.step > 0,
            rules=held,
            entry=entry,
        )
        self.passes.append(made)

    def cut(self, length: int) -> None:
        """Forget the passes beyond `length`, where one of them began or the last ended."""
        while self.passes and self.passes[-1].start >= length:
            self.passes.pop()
        if self.passes and self.passes[-1].end > length:
            self.passes[-1].end = length
        self.edited = [kept for one in self.edited if (kept := one.before(length)) is not None]

    def last_edited(self, length: int) -> int:
        """Return the last position below `length` with edited rows; -1 where there is none."""
        return max((at for one in self.edited for at in one.positions if at < length), default=-1)

    def copy(self) -> PassLog:
        return PassLog([replace(passes) for passes in self.passes], list(self.edited))


def same_rules(one: tuple[Rule, ...], other: tuple[Rule, ...]) -> bool:
    """True where both have the same rule objects in the same order."""
    return len(one) == len(other) and all(a is b for a, b in zip(one, other, strict=True))


def _reduced(frame: Frame) -> Frame:
    """Return the frame reduced to its place and its overrides, these on the host: there may be many of them."""
    overrides = tuple(replace(override.read(), raw=override.raw.to("cpu")) for override in frame.overrides)
    return replace(
        frame, hidden=None, raw=None, overrides=overrides, shared={}, states=None, start_states=None, attended=None
    )


SHARED: Final = "passes of its line were shared with other sessions"
CACHED: Final = "keys or values of its line were edited"
STOPPED: Final = "an earlier pass of its line was edited at a stop, or stopped under steering rules"
LIMITED: Final = "a steering rule with a condition, or of some passes alone, held while tokens were generated"
MANY: Final = "its line was fed under more steering rules, counted pass by pass, than a recipe tells"
MOST_RULES: Final = 1000  # each with an array or two: a message has 4,096
EDITED: Final = "the pass was edited at an earlier stop, or stopped under steering rules"
RULED: Final = "steering rules are in force"


def fed_line(
    tokens: Sequence[int], log: PassLog, exactness: Exactness, frame: Frame | None, rules: Sequence[Rule]
) -> FedLine:
    """Return the fed tokens and passes. `frame` is the stop of a pass, which is then the last one, and `rules` are
    those in force there."""
    end = log.end if frame is None else frame.committed
    line = committed_line(tokens, log, exactness, end)
    if frame is None:
        return line
    last = FedPasses(start=end, end=frame.end, each=len(frame.tokens))
    unmade = line.unmade or why_not_plain(frame, rules)
    return FedLine(tokens=tuple(tokens[: frame.end]), passes=(*line.passes, last), unmade=unmade)


def committed_line(tokens: Sequence[int], log: PassLog, exactness: Exactness, end: int) -> FedLine:
    """Return the first `end` positions of a sequence, where a pass ended."""
    fed = [one for one in log.passes if one.start < end]
    passes = tuple(FedPasses(start=one.start, end=min(one.end, end), each=one.each, rules=one.rules) for one in fed)
    edited = log.last_edited(end) >= 0
    return FedLine(tokens=tuple(tokens[:end]), passes=passes, unmade=_why_not_alike(fed, edited, exactness))


def why_not_plain(frame: Frame, rules: Sequence[Rule]) -> str:
    """Return why the tokens of a stopped pass do not lead to this stop; empty where they do."""
    return EDITED if frame.overrides else RULED if rules else ""


def _why_not_alike(fed: Sequence[Passes], edited: bool, exactness: Exactness) -> str:
    limited = any(
        one.decode and any(rule.on is not None or rule.guard is not None for rule in one.rules) for one in fed
    )
    many = sum(len(one.rules) for one in fed) > MOST_RULES
    stopped = any(one.entry is not None and one.entry.overrides for one in fed)
    reasons = ((exactness == "fast", SHARED), (edited, CACHED), (stopped, STOPPED), (limited, LIMITED), (many, MANY))
    return next((said for holds, said in reasons if holds and fed), "")
