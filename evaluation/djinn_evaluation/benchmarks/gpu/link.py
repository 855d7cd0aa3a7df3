"""The first step: the findings of `djinn doctor`, and the speed of copies to the device and back by plain PyTorch.

Without a GPU both ends of a copy are main memory: the same program, and no figure of a link.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from djinn_evaluation.benchmarks.measuring import Readings, Spread, take_turns
from djinn_evaluation.benchmarks.results import Figure, Result
from djinn_evaluation.benchmarks.setting import Setting
from djinn_evaluation.benchmarks.worker import Worker, worker
from djinn_jupyter.link.doctor import findings

NBYTES, NBYTES_IF_QUICK = 1 << 30, 8 << 20
ROUNDS = 7
# Each way of copying by its name: directions at once, streams for each, and pinned host memory or not.
WAYS: dict[str, dict[str, Any]] = {
    "to the device": {"directions": ["in"], "streams": 1, "pinned": True},
    "to the device, two streams": {"directions": ["in"], "streams": 2, "pinned": True},
    "to the device, from memory that is not pinned": {"directions": ["in"], "streams": 1, "pinned": False},
    "to the host": {"directions": ["out"], "streams": 1, "pinned": True},
    "to the host, two streams": {"directions": ["out"], "streams": 2, "pinned": True},
    "to the host, to memory that is not pinned": {"directions": ["out"], "streams": 1, "pinned": False},
    "both ways at once": {"directions": ["in", "out"], "streams": 1, "pinned": True},
}


def run(setting: Setting) -> Result:
    nbytes, rounds = NBYTES_IF_QUICK if setting.quick else NBYTES, setting.rounds(ROUNDS)
    said = [str(finding).replace(str(setting.home), "HOME") for finding in findings() if finding.level != "ok"]
    with worker("link") as link:
        made = link.ask("prepare", nbytes=nbytes, threads=setting.threads)
        sides = {name: _seconds(link, way) for name, way in WAYS.items()}
        times = take_turns(sides, rounds=rounds, after=setting.after_rounds(partial(_figures, nbytes), rounds))
        right = link.ask("compare")["equal"]
    if not right:
        raise AssertionError("A copy to the device and back is not what was copied.")
    settings = {"bytes": nbytes, "rounds": rounds, "device": made["device"], "doctor": said}
    return Result(
        benchmark="link",
        settings=settings,
        figures=tuple(_figures(nbytes, times)),
        checks={"bytes that came back": nbytes},
    )


def _seconds(link: Worker, way: dict[str, Any]) -> Any:
    return lambda: link.seconds("copy", **way)


def _figures(nbytes: int, times: Readings) -> list[Figure]:
    return [_figure(name, nbytes, seconds) for name, seconds in times.items()]


def _figure(name: str, nbytes: int, seconds: list[float]) -> Figure:
    moved = nbytes * len(WAYS[name]["directions"])
    return Figure(name=f"copies {name}", unit="GB/s", value=Spread.of(moved / 1e9 / each for each in seconds))
