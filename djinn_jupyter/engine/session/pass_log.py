"""The pass log: the passes that made a session's committed positions, so that they can be run again alike; and why they
would not make the same values.

The last bits of keys and values depend on how the tokens were cut into passes, and on what rules and edits did in them.
The log keeps rules as they held, and the values put into a pass that stopped on its way as overrides."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from torch import Tensor

from djinn_jupyter.engine.passes.breakpoints import FedLine, FedPasses, Rule
from djinn_jupyter.engine.passes.frame import Frame
from djinn_jupyter.wire.nouns import Exactness
from djinn_jupyter.wire.sites import Site


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
    """Rows of a site's cache layer that were put in place of the computed ones when `at` positions were committed:
    keys or values [n, H, D] on the host, of all heads, at `positions`. `what` says how they were made, `size` how
    much they changed, NaN or infinite where they were zero."""

    at: int
    site: Site
    positions: tuple[int, ...]
    rows_nHD: Tensor
    what: str
    size: float

    def before(self, length: int) -> CachedEdit | None:
        """Return it as it stands when the positions from `length` on have gone; None where all of it has."""
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
        """Return the ends of passes that their tokens alone cannot reproduce: prompts, and passes that stopped on their
        way."""
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
    """True where both hold the very same rule objects in the same order."""
    return len(one) == len(other) and all(a is b for a, b in zip(one, other, strict=True))


def _reduced(frame: Frame) -> Frame:
    """Return the frame with its place and its overrides alone, these on the host: there may be many of them."""
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
    """Return the line as far as it was fed. `frame` is the stop of a pass, which is its last then, and `rules` are
    those in force there."""
    end = log.end if frame is None else frame.committed
    line = committed_line(tokens, log, exactness, end)
    if frame is None:
        return line
    last = FedPasses(start=end, end=frame.end, each=len(frame.tokens))
    unmade = line.unmade or why_not_plain(frame, rules)
    return FedLine(tokens=tuple(tokens[: frame.end]), passes=(*line.passes, last), unmade=unmade)


def committed_line(tokens: Sequence[int], log: PassLog, exactness: Exactness, end: int) -> FedLine:
    """Return the first `end` positions of a line, where a pass ended."""
    fed = [one for one in log.passes if one.start < end]
    passes = tuple(FedPasses(start=one.start, end=min(one.end, end), each=one.each, rules=one.rules) for one in fed)
    edited = log.last_edited(end) >= 0
    return FedLine(tokens=tuple(tokens[:end]), passes=passes, unmade=_why_not_alike(fed, edited, exactness))


def why_not_plain(frame: Frame, rules: Sequence[Rule]) -> str:
    """Return why the tokens of a stopped pass do not come to this stop; empty where they do."""
    return EDITED if frame.overrides else RULED if rules else ""


def _why_not_alike(fed: Sequence[Passes], edited: bool, exactness: Exactness) -> str:
    limited = any(
        one.decode and any(rule.on is not None or rule.guard is not None for rule in one.rules) for one in fed
    )
    many = sum(len(one.rules) for one in fed) > MOST_RULES
    stopped = any(one.entry is not None and one.entry.overrides for one in fed)
    reasons = ((exactness == "fast", SHARED), (edited, CACHED), (stopped, STOPPED), (limited, LIMITED), (many, MANY))
    return next((said for holds, said in reasons if holds and fed), "")
