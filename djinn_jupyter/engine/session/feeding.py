"""The passes in which the line of a session was fed, from its pass log; and why they would not make the same values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from djinn_jupyter.engine.passes.breakpoints import FedLine, FedPasses
from djinn_jupyter.engine.passes.frame import Frame
from djinn_jupyter.engine.passes.steering import Rule
from djinn_jupyter.engine.session.pass_log import Passes, PassLog
from djinn_jupyter.wire.nouns import Exactness

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
