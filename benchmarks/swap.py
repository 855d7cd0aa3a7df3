"""A session leaves for the host and the disk and comes back, against plain moves of the same bytes."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter

from benchmarks.measuring import Spread, ratios, take_turns
from benchmarks.results import Bar, Checks, Figure, Result, at_least
from benchmarks.serving_engine import digest, engine_of, prompt_of
from benchmarks.setting import Setting
from benchmarks.worker import Worker, worker
from djinn_jupyter.client.session import RemoteSession
from djinn_jupyter.wire.nouns import Tier

POSITIONS = 1000
ROUNDS = 7


def run(setting: Setting) -> Result:
    shape, checks, rounds = setting.shape(), Checks(), setting.rounds(ROUNDS)
    with worker("plain") as plain:
        folder = setting.saved(plain, shape)
    with engine_of(folder, setting) as engine, worker("copying") as copying:
        mover = _Mover(engine.session("moved", fresh=True), prompt_of(POSITIONS, shape.vocabulary), checks)
        mover.out("host")
        mover.back("host")
        copying.ask("prepare", nbytes=mover.nbytes, folder=str(setting.home), threads=setting.threads)
        times = take_turns(_sides(mover, copying), rounds=rounds)
        mover.same_as_before()
        checks.same("bytes that a second leaving moved", mover.again(), 0)
    return Result(
        benchmark="swap",
        settings={"shape": shape, "positions": POSITIONS, "bytes": mover.nbytes, "rounds": rounds},
        figures=_figures(times, mover.nbytes),
        checks=checks.counts,
    )


class _Mover:
    """One session, and the seconds that a client waits for each of its moves."""

    def __init__(self, session: RemoteSession, prompt: list[int], checks: Checks) -> None:
        self._session, self._prompt, self._checks = session, prompt, checks
        self.nbytes = 0
        self._fill()
        self._logits = digest(session.logits())

    def _fill(self) -> None:
        """A new line of the same tokens: every page is dirty."""
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
        """From a tier that has it already, or is given it first."""
        self._session.swap_in()
        self._session.swap_out(tier)
        begun = perf_counter()
        transfer = self._session.swap_in()
        seconds = perf_counter() - begun
        assert transfer is not None
        self._checks.same("the tier it came from", transfer.tier, tier)
        self._checks.same("bytes in", transfer.bytes_moved, self.nbytes)
        return seconds

    def same_as_before(self) -> None:
        self._checks.same("logits after all moves", digest(self._session.logits()), self._logits)

    def again(self) -> int:
        self._session.swap_out()
        self._session.swap_in()
        transfer = self._session.swap_out()
        return -1 if transfer is None else transfer.bytes_moved


def _sides(mover: _Mover, copying: Worker) -> dict[str, Callable[[], float]]:
    return {
        "out to the host": lambda: mover.out("host"),
        "in from the host": lambda: mover.back("host"),
        "out to the disk": lambda: mover.out("disk"),
        "in from the disk": lambda: mover.back("disk"),
        "copy": lambda: copying.seconds("copy"),
        "copy to new memory": lambda: copying.seconds("copy_to_new"),
        "read": lambda: copying.seconds("read"),
        "write": lambda: copying.seconds("write"),
    }


def _figures(times: dict[str, list[float]], nbytes: int) -> tuple[Figure, ...]:
    compared: list[tuple[str, str, str, Bar | None]] = [
        ("swap out to the host", "out to the host", "copy", at_least(0.85)),
        (
            "swap in from the host, to memory that was given back",
            "in from the host",
            "copy to new memory",
            at_least(0.85),
        ),
        ("swap in from the host, against memory in use", "in from the host", "copy", None),
        ("swap out to the disk, with checksums", "out to the disk", "write", None),
        ("swap in from the disk, with checksums", "in from the disk", "read", None),
    ]
    return tuple(
        Figure(
            name=f"{name}: speed against a plain {plain}",
            unit="x",
            value=Spread.of(ratios(times[plain], times[ours])),
            bar=bar,
            sides={side: Spread.of(nbytes / seconds / 1e9 for seconds in times[side]) for side in (ours, plain)},
            sides_unit="GB/s",
        )
        for name, ours, plain, bar in compared
    )
