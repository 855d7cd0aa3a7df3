"""The link that plain PyTorch measures in the same run, and the check that no transfer was faster: one that was has
left something out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from djinn_evaluation import afar
from djinn_evaluation.baselines.asking import baseline
from djinn_evaluation.course import Course, Unmeasured
from djinn_evaluation.intervals import Verdict
from djinn_jupyter.units import GIB, spell_bytes
from djinn_jupyter.wire.nouns import LayerCopy, Transfer

Way = Literal["in", "out"]
WAYS: Mapping[Way, str] = {"in": "to the device", "out": "from it"}
TOLERANCE = 1.05  # of the clocks; a copy that is left out is a hundred times faster
PLACES = 1.25  # of the same bytes between other places of memory, which differ by 6 % on a quiet Xeon
FASTER = "Layers were copied faster than the fastest copy by hand: something was not copied."
HAND_WAITED = "Layers were copied faster than the fastest copy by hand, which waited for a core: no copy can be judged."
NONE = Unmeasured(reason="nothing was copied")


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedCopy:
    """Bytes that moved, and the seconds of their copies alone."""

    what: str
    way: Way
    nbytes: int
    seconds: float

    @property
    def rate(self) -> float:
        return self.nbytes / self.seconds if self.seconds > 0 else float("inf")


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """Bytes and seconds of plain copies, to the device (`in`) and from it (`out`)."""

    copies: Mapping[str, Sequence[tuple[int, float]]]

    @property
    def left_open(self) -> list[str]:
        """A sentence where nothing is held against this link."""
        return []

    def fastest(self, way: Way) -> float:
        """Return the most bytes a second."""
        return max(nbytes / seconds for nbytes, seconds in self.copies[way])

    def seconds(self, way: Way, nbytes: int) -> float:
        """Return the seconds of a plain copy of so many bytes at that rate."""
        return nbytes / self.fastest(way)

    def failures(self, found: Iterable[TimedCopy]) -> list[str]:
        """Return a sentence for each way in which a transfer was faster than the link; none where all were possible."""
        sentences = []
        for way, all_of_it in _by_way(found).items():
            fastest, limit = max(all_of_it, key=lambda copy: copy.rate), self.fastest(way)
            if fastest.rate > TOLERANCE * limit:
                sentences.append(
                    f"{fastest.what} moved {spell_bytes(fastest.nbytes)} in {1000 * fastest.seconds:.4g} ms, faster "
                    f"than the link ({spell_bytes(limit)}/s, measured in this run): something was not copied."
                )
        return sentences

    def fields(self, found: Iterable[TimedCopy]) -> dict[str, Any] | Unmeasured:
        """Return the link and the transfers held against it, for a result file."""
        ways = _by_way(found)
        return {
            way: {
                "link_gb_per_s": self.fastest(way) / GIB,
                "transfers": len(ways.get(way, ())),
                "fastest_transfer_gb_per_s": _spelled(max((copy.rate for copy in ways.get(way, ())), default=None)),
            }
            for way in WAYS
        }


def at_most_by_hand(rate: float, fastest: float, *, without_core: float | None) -> Verdict:
    """Return whether copies were at most as fast as the fastest by hand, of the same bytes in turn with them;
    `without_core` is the share of their time for which those by hand had no core: what that could have turned is
    undecided."""
    ran = 1 - min(1.0, without_core or 0.0)
    if rate <= PLACES * fastest:
        return "holds"
    return "refuted" if rate * ran > PLACES * fastest else "undecided"


@dataclass(frozen=True, slots=True, kw_only=True)
class UnseenLink(Link):
    """The link of another machine, against which nothing is held."""

    copies: Mapping[str, Sequence[tuple[int, float]]] = field(default_factory=dict)

    @property
    def left_open(self) -> list[str]:
        return [f"{afar.sentence(afar.LINK_UNSEEN)[:-1]}: no transfer was held against it."]

    def seconds(self, way: Way, nbytes: int) -> float:
        return 0.0

    def failures(self, found: Iterable[TimedCopy]) -> list[str]:
        return []

    def fields(self, found: Iterable[TimedCopy]) -> Unmeasured:
        return afar.LINK_UNSEEN


def measured_link(course: Course, device: str) -> Link:
    """Measure the link of a torch device, once in a run, in a process of its own; nothing else of the run may be at
    work. That of an engine that is reached over a line is not seen from here, and leaves the run undecided."""
    if course.afar:
        course.leave_open(*UnseenLink().left_open)
        return UnseenLink()
    key = f"link of {device}"
    if key not in course.measured_once:
        course.check_time()
        with baseline("link") as link:
            found = Link(copies=link.ask("measure", device=device)["copies"])
        ways = (f"{spell_bytes(found.fastest(way))}/s {words}" for way, words in WAYS.items())
        course.tell(f"Link, by plain copies: {', '.join(ways)}")
        course.measured_once[key] = found
    kept: Link = course.measured_once[key]
    return kept


def of_transfer(what: str, moved: Transfer) -> list[TimedCopy]:
    """Return the copy of a session's move; none where nothing was copied."""
    if moved.copy_seconds is None:
        return []
    return [TimedCopy(what=what, way=moved.direction, nbytes=moved.bytes_moved, seconds=moved.copy_seconds)]


def of_layers(copies: Iterable[LayerCopy]) -> list[TimedCopy]:
    """Return the copies of streamed layers."""
    return [
        TimedCopy(what=f"Layer {copy.layer}", way="in", nbytes=copy.bytes_moved, seconds=copy.seconds)
        for copy in copies
    ]


def _by_way(found: Iterable[TimedCopy]) -> dict[Way, list[TimedCopy]]:
    ways: dict[Way, list[TimedCopy]] = {}
    for copy in found:
        if copy.nbytes:
            ways.setdefault(copy.way, []).append(copy)
    return ways


def _spelled(rate: float | None) -> float | Unmeasured:
    if rate is None:
        return NONE
    return rate / GIB if rate != float("inf") else Unmeasured(reason="a transfer took no time at all")
