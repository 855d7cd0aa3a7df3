"""The link that plain PyTorch measures in the same run, the moves of sessions over it, and copies that are too fast."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

from djinn_evaluation import serving
from djinn_evaluation.baselines.asking import baseline
from djinn_evaluation.course import Course, Unmeasured, timed
from djinn_evaluation.intervals import Verdict
from djinn_jupyter.api.engine import RemoteEngine
from djinn_jupyter.api.session import RemoteSession
from djinn_jupyter.errors import DjinnError
from djinn_jupyter.link.channel import expect
from djinn_jupyter.units import GIB, spell_bytes
from djinn_jupyter.wire.nouns import LayerCopy, Transfer
from djinn_jupyter.wire.replies import Event, SessionSwapped, Swapped
from djinn_jupyter.wire.requests import SwapOut

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
    """Return whether copies were at most as fast as by hand; what a wait of those by hand could turn is undecided."""
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
        return [f"{serving.sentence(serving.LINK_UNSEEN)[:-1]}: no transfer was held against it."]

    def seconds(self, way: Way, nbytes: int) -> float:
        return 0.0

    def failures(self, found: Iterable[TimedCopy]) -> list[str]:
        return []

    def fields(self, found: Iterable[TimedCopy]) -> Unmeasured:
        return serving.LINK_UNSEEN


def measured_link(course: Course, device: str) -> Link:
    """Measure a device's link once in a run, in a process of its own; over a line it leaves the run undecided."""
    if course.afar:
        course.leave_open(*UnseenLink().left_open)
        return UnseenLink()
    key = f"link of {device}"
    if key not in course.measured_once:
        course.check_time()
        with baseline("copies") as link:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Absence:
    """Milliseconds and bytes of a session's way to the host and back; a copy of None: all bytes had one already."""

    out_ms: float  # from the request until the bytes are on the host
    dispatch_ms: float  # the wait of another session's request meanwhile
    still_ms: float  # the wait of the same request right before, while nothing leaves
    copy_ms: float | None
    back_ms: float  # from the request until the stopped pass can go on
    back_copy_ms: float | None
    bytes_moved: int
    bytes_back: int
    bytes_left: int  # on the device after the order to leave it

    def copies(self) -> list[TimedCopy]:
        """Return the copies in both directions, timed by the mover."""
        ways: list[tuple[Way, int, float | None]] = [
            ("out", self.bytes_moved, self.copy_ms),
            ("in", self.bytes_back, self.back_copy_ms),
        ]
        return [
            TimedCopy(what=f"A session's way {way}", way=way, nbytes=nbytes, seconds=milliseconds / 1000)
            for way, nbytes, milliseconds in ways
            if milliseconds is not None
        ]


def absence(engine: RemoteEngine, session: RemoteSession) -> Absence:
    """Swap the session to the host and back. DjinnError where nothing moves."""
    bystander = engine.session("bystander")
    _, still_ms = timed(bystander.describe)
    begun = time.perf_counter()
    leaving = engine.channel.ask(SwapOut(session=session.name, tier="host"))
    bystander.describe()  # asked right after, so that it waits for what blocks the engine
    dispatch_ms = 1000 * (time.perf_counter() - begun)
    out = expect(leaving.result(), Swapped).transfer
    out_ms = 1000 * (time.perf_counter() - begun)
    left = session.describe().device_bytes
    back, back_ms = timed(session.swap_in)
    if out is None or back is None:
        raise DjinnError("A stopped session was told to leave the device, and nothing moved.")
    return Absence(
        out_ms=out_ms,
        dispatch_ms=dispatch_ms,
        still_ms=still_ms,
        copy_ms=copy_milliseconds(out),
        back_ms=back_ms,
        back_copy_ms=copy_milliseconds(back),
        bytes_moved=out.bytes_moved,
        bytes_back=back.bytes_moved,
        bytes_left=left,
    )


def copy_milliseconds(moved: Transfer) -> float | None:
    """Return the milliseconds of the mover's copies alone; None where nothing was copied."""
    return None if moved.copy_seconds is None else 1000 * moved.copy_seconds


NOT_COPIED = Unmeasured(reason="nothing had to be copied")


@dataclass(slots=True)
class Swaps:
    """`events` are the fields of `swap_events`; `first_out` the moment (seconds) of the first eviction."""

    events: list[dict[str, Any]]
    first_out: float | None = None
    copies: list[TimedCopy] = field(default_factory=list)

    def latencies(self) -> list[float]:
        return [event["ms"] for event in self.events]


@contextmanager
def heard(engine: RemoteEngine, course: Course, begun: float) -> Iterator[Swaps]:
    """Collect the engine's swaps in the block, without write-through. `begun` is monotonic."""
    found, lock = Swaps([]), threading.Lock()

    def hear(event: Event) -> None:
        if not isinstance(event, SessionSwapped) or event.transfer.cause == "write_through":
            return
        moved = event.transfer
        with lock:
            at = time.monotonic() - begun
            if moved.direction == "out" and moved.cause != "asked" and found.first_out is None:
                found.first_out = at
            found.copies += of_transfer(event.session, moved)
            found.events.append(
                {
                    "session": event.session,
                    "direction": moved.direction,
                    "tier": moved.tier,
                    "cause": moved.cause,
                    "bytes": moved.bytes_moved,
                    "ms": 1000 * moved.seconds,
                    "copy_ms": NOT_COPIED if moved.copy_seconds is None else 1000 * moved.copy_seconds,
                    "gb_per_s": _rate(moved),
                    "timestamp": at,
                }
            )
        course.tell(
            f"[{event.session}] SWAP DETECTED: {1000 * moved.seconds:.2f} ms ({moved.direction}, {moved.cause})"
        )

    stop = engine.channel.listen("", hear)
    try:
        yield found
    finally:
        stop()


def _rate(moved: Transfer) -> float | Unmeasured:
    """Return GiB a second of the mover's copies; a move waits besides."""
    return moved.bytes_moved / moved.copy_seconds / GIB if moved.copy_seconds else NOT_COPIED
