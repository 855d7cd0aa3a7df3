"""A session is swapped to the host and the disk and back, against plain copies of the same bytes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from time import perf_counter
from typing import NamedTuple

from djinn_evaluation.benchmarks.measuring import take_turns
from djinn_evaluation.benchmarks.results import Bar, Checks, Figure, Result, at_least, compared
from djinn_evaluation.benchmarks.serving_engine import engine_of
from djinn_evaluation.benchmarks.setting import Setting, Shape
from djinn_evaluation.benchmarks.worker import Worker, worker
from djinn_evaluation.digest import digest
from djinn_evaluation.serving import random_tokens
from djinn_jupyter.api.session import RemoteSession
from djinn_jupyter.wire.nouns import Tier

LENGTHS = {
    "short": 1000,
    "long": 4000,
}  # the fixed cost of a move, some milliseconds, weighs on the short
TIERS: dict[str, tuple[Tier, ...]] = {"short": ("host", "disk"), "long": ("host",)}
WINDOW = Shape(positions=4096)
ROUNDS = 7


def run(setting: Setting) -> Result:
    shape, checks = setting.shape(WINDOW), Checks()
    with worker("plain") as plain:
        folder = setting.saved(plain, shape)
    figures: list[Figure] = []
    nbytes: dict[str, int] = {}
    lengths = {name: min(length, shape.positions - 24) for name, length in LENGTHS.items()}
    with engine_of(folder, setting) as engine:
        for name, length in lengths.items():
            prompt = random_tokens(length, shape.vocabulary)
            found, nbytes[name] = moves(engine.session(name, fresh=True), prompt, TIERS[name], setting, checks)
            figures += found
            setting.so_far(figures, f"up to {length:,} positions")
    return Result(
        benchmark="swap",
        settings={"shape": shape, "positions": lengths, "bytes": nbytes, "rounds": setting.rounds(ROUNDS)},
        figures=tuple(figures),
        checks=checks.counts,
    )


def moves(
    session: RemoteSession, prompt: list[int], tiers: Sequence[Tier], setting: Setting, checks: Checks
) -> tuple[list[Figure], int]:
    """Move a session of this prompt to each tier and back; return the figures and the bytes of a move."""
    mover = _Mover(session, prompt, checks)
    times = _times(mover, tiers, setting, setting.rounds(ROUNDS))
    return _figures(f"{len(prompt):,} positions", times, mover.nbytes, tiers), mover.nbytes


def _times(mover: _Mover, tiers: Sequence[Tier], setting: Setting, rounds: int) -> dict[str, list[float]]:
    with worker("link") as copying:
        mover.out("host")
        mover.back("host")
        folder = str(setting.home) if "disk" in tiers else None
        copying.ask("prepare", nbytes=mover.nbytes, folder=folder, threads=setting.threads)
        times = take_turns(_sides(mover, copying, tiers), rounds=rounds)
    mover.ends_as_it_began()
    return times


class _Mover:
    """Swaps one session and measures the seconds that a client waits for each move."""

    def __init__(self, session: RemoteSession, prompt: list[int], checks: Checks) -> None:
        self._session, self._prompt, self._checks = session, prompt, checks
        self.nbytes = 0
        self._fill()
        self._logits = digest(session.logits())

    def _fill(self) -> None:
        """Run the same tokens anew, which makes every page dirty."""
        self._session.run(self._prompt, max_new_tokens=0, ignore_eos=True)

    def out(self, tier: Tier) -> float:
        self._fill()
        begun = perf_counter()
        transfer = self._session.swap_out(tier)
        seconds = perf_counter() - begun
        assert transfer is not None
        if self.nbytes:
            self._checks.same("bytes out", transfer.bytes_moved, self.nbytes)
        self.nbytes = transfer.bytes_moved
        return seconds

    def back(self, tier: Tier) -> float:
        """Swap the session out to `tier`, then measure its return from there."""
        self._session.swap_in()
        self._session.swap_out(tier)
        begun = perf_counter()
        transfer = self._session.swap_in()
        seconds = perf_counter() - begun
        assert transfer is not None
        self._checks.same("the tier it came from", transfer.tier, tier)
        self._checks.same("bytes in", transfer.bytes_moved, self.nbytes)
        return seconds

    def ends_as_it_began(self) -> None:
        self._checks.same("logits after all moves", digest(self._session.logits()), self._logits)
        self._session.swap_out()
        self._session.swap_in()
        transfer = self._session.swap_out()
        self._checks.same("bytes that a second leaving moved", transfer and transfer.bytes_moved, 0)


def _sides(mover: _Mover, copying: Worker, tiers: Sequence[Tier]) -> dict[str, Callable[[], float]]:
    sides: dict[str, Callable[[], float]] = {}
    for tier in tiers:
        sides[f"out to the {tier}"] = partial(mover.out, tier)
        sides[f"in from the {tier}"] = partial(mover.back, tier)
    for name, direction in {"copy": "out", "copy back": "in"}.items():
        sides[name] = partial(copying.seconds, "copy", directions=[direction], streams=1, pinned=True)
    sides["copy to new memory"] = partial(copying.seconds, "copy_to_new_memory")
    return sides | {name: partial(copying.seconds, name) for name in (("read", "write") if "disk" in tiers else ())}


class _Against(NamedTuple):
    """A move by Djinn and the plain copy that it is compared with."""

    name: str
    ours: str
    plain: str
    bar: Bar | None = None


OF_THE_HOST = (
    _Against("swap out to the host", "out to the host", "copy", at_least(0.85)),
    _Against(
        "swap in from the host, to memory that was given back", "in from the host", "copy to new memory", at_least(0.85)
    ),
    _Against("swap in from the host, against memory in use", "in from the host", "copy back"),
)
OF_THE_DISK = (
    _Against("swap out to the disk, with checksums", "out to the disk", "write"),
    _Against("swap in from the disk, with checksums", "in from the disk", "read"),
)


def _figures(length: str, times: dict[str, list[float]], nbytes: int, tiers: Sequence[Tier]) -> list[Figure]:
    return [
        compared(
            f"{length}: {name}: speed against a plain {plain}",
            *(plain, ours, {side: times[side] for side in (ours, plain)}),
            unit="GB/s",
            each=lambda seconds: nbytes / seconds / 1e9,
            bar=bar,
        )
        for name, ours, plain, bar in (*OF_THE_HOST, *(OF_THE_DISK if "disk" in tiers else ()))
    ]
