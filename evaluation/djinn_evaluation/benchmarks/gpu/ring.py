"""The steps of the link and of the ring: 13B-shaped weights in 12 GiB, 70B-shaped ones in 48 GiB, and accelerate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import monotonic, perf_counter
from typing import Any, Final

from djinn_evaluation.baselines.asking import BaselineFailed, baseline
from djinn_evaluation.benchmarks.environments import NotRun
from djinn_evaluation.benchmarks.gpu.shapes import (
    SEVENTY,
    SPARE,
    THIRTEEN,
    disk,
    saved,
    scale_of,
    serving,
    shape,
    weight_bytes,
)
from djinn_evaluation.benchmarks.harness import (
    Figure,
    Readings,
    Result,
    Setting,
    Spread,
    Worker,
    at_least,
    take_turns,
    worker,
)
from djinn_evaluation.machine import computed_on
from djinn_evaluation.nvml import counted
from djinn_evaluation.serving import random_tokens
from djinn_evaluation.validation.flatline import MovedBytes, TimeSpan, window_rates
from djinn_jupyter.api.engine import RemoteEngine
from djinn_jupyter.link.doctor import findings
from djinn_jupyter.machine import main_memory
from djinn_jupyter.units import GIB
from djinn_jupyter.wire.nouns import LayerCopy

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


def run_link(setting: Setting) -> Result:
    """The first step: the findings of `djinn doctor`, and the speed of copies to the device and back by plain PyTorch.

    Without a GPU both ends of a copy are main memory: the same program, and no figure of a link."""
    nbytes, rounds = NBYTES_IF_QUICK if setting.quick else NBYTES, setting.rounds(ROUNDS)
    said = [str(finding).replace(str(setting.home), "HOME") for finding in findings() if finding.level != "ok"]
    with worker("plain.Link") as link:
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


FAST: Final = 20e9  # bytes a second
OF_THE_LINK: Final = 0.9
SECONDS, SECONDS_IF_QUICK = 30.0, 1.0
WINDOW_SECONDS: Final = 0.25
PROMPT, NEW = 4, 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Flow:
    """The passes through the ring as seen so far. `received` is NVML's mean in bytes a second, or why there is none."""

    copies: list[LayerCopy]
    tokens: list[int]
    rates: list[float]
    received: float | str


def run_ring(setting: Setting) -> Result:
    """The step of the ring: 13B-shaped weights in 12 GiB. Copies, windows of the link, accelerate with the same
    budget.

    `large_ring` is the same for 70B-shaped weights in 48 GiB."""
    return measured("ring", THIRTEEN, 12 << 30, setting)


def measured(name: str, architecture: str, budget: int, setting: Setting) -> Result:
    """Measure as many of the shape's layers as this machine has room for, in their share of the budget, in bytes."""
    config = _that_fits(architecture, setting)
    whole = weight_bytes(shape(architecture, scale_of(setting)))
    full = weight_bytes(shape(architecture, scale_of(Setting(quick=False, threads=1, home=Path()))))
    allowed = int(budget / full * weight_bytes(config))
    prompt = random_tokens(PROMPT, config["vocab_size"])
    folder = saved(config)
    what = f"{config['num_hidden_layers']} layers of {architecture} in {allowed / GIB:.4g} GiB"
    with serving(folder, setting, device_memory=allowed) as engine:
        weights = engine.wake().weights
        flow = _flow(engine, prompt, SECONDS_IF_QUICK if setting.quick else SECONDS)
    link = _link(setting)
    setting.so_far(_copies(what, flow, link), "the engine alone, not yet accelerate")
    theirs = _accelerated(folder, config["dtype"], prompt, weights.bytes_on_device, setting)
    settings = {
        "shape": config,
        "share_of_the_layers": weight_bytes(config) / whole,
        "budget_bytes": allowed,
        "bytes_streamed_per_pass": weights.bytes_streamed_per_pass,
        "nvml_received": flow.received,
        "link_gigabytes_per_second": link / 1e9,
    }
    return Result(
        benchmark=name,
        settings=settings,
        figures=(*_copies(what, flow, link), *_against(what, flow, theirs)),
        checks={"layer copies": len(flow.copies)},
    )


def _that_fits(architecture: str, setting: Setting) -> dict[str, Any]:
    """Return the shape, with as many layers as disk and main memory hold. Raises NotRun where those need no ring."""
    config = shape(architecture, scale_of(setting))
    room = SPARE * min(disk(), main_memory().available)
    while weight_bytes(config) > room:
        config["num_hidden_layers"] -= 1
        if config["num_hidden_layers"] < 8:
            raise NotRun(f"eight layers of {architecture} do not fit into {room / GIB:.0f} GiB")
    return config


def _flow(engine: RemoteEngine, prompt: list[int], seconds: float) -> Flow:
    session = engine.session("ring", fresh=True)
    session.run(prompt, max_new_tokens=NEW, ignore_eos=True)  # the ring learns the order of the layers
    copies: list[LayerCopy] = []
    rates: list[float] = []
    tokens: list[int] = []
    since = max((copy.number for copy in engine.copies()), default=0)
    with counted(computed_on()) as counter:
        begun = monotonic()
        while monotonic() - begun < seconds:
            asked = perf_counter()
            done: Any = session.run(prompt, max_new_tokens=NEW, ignore_eos=True)
            rates.append(NEW / (perf_counter() - asked))
            tokens = list(done.tokens)
            copies += engine.copies(since)
            since = copies[-1].number if copies else since
    return Flow(copies=copies, tokens=tokens, rates=rates, received=counter.mean or counter.reason)


def _link(setting: Setting) -> float:
    """Return the bytes a second of plain pinned copies to the device, the best of three."""
    nbytes = NBYTES_IF_QUICK if setting.quick else NBYTES
    with worker("plain.Link") as link:
        link.ask("prepare", nbytes=nbytes, threads=setting.threads)
        return nbytes / min(link.seconds("copy", directions=["in"], streams=1, pinned=True) for _ in range(3))


def _accelerated(folder: Path, dtype: str, prompt: list[int], budget: int, setting: Setting) -> dict[str, Any]:
    """Return accelerate's generation with the same bytes on the device; a `reason` where it does not run."""
    try:
        with baseline("offloads") as other:
            asked = {"dtype": dtype, "threads": setting.threads, "budget": budget, "to": "cpu"}
            loaded = other.ask("load", model=str(folder), **asked)
            if loaded["status"] != "success":
                return loaded
            other.ask("generate", tokens=prompt, new=2)
            return other.ask("generate", tokens=prompt, new=NEW)
    except BaselineFailed as error:
        return {"reason": str(error)}


def windows(copies: Sequence[LayerCopy], seconds: float = WINDOW_SECONDS) -> list[float]:
    """Return the bytes a second that the copies moved in each whole window from the first copy to the last."""
    if not copies:
        return []
    span = TimeSpan(begun=copies[0].begun, ended=max(copy.begun + copy.seconds for copy in copies))
    moved = [MovedBytes(begun=copy.begun, seconds=copy.seconds, nbytes=copy.bytes_moved) for copy in copies]
    return window_rates(moved, [span], seconds)


def _copies(what: str, flow: Flow, link: float) -> list[Figure]:
    speeds = [copy.bytes_moved / copy.seconds for copy in flow.copies]
    fast = [sum(speed > FAST for speed in speeds) / len(speeds)] if speeds else []
    busy = [rate / link for rate in windows(flow.copies)]
    gpu = computed_on().startswith("cuda")
    return [
        Figure(name=f"{what}: a layer copy", unit="GB/s", value=Spread.of(speed / 1e9 for speed in speeds)),
        Figure(name=f"{what}: layer copies above {FAST / 1e9:.0f} GB/s, of all", unit="x", value=Spread.of(fast)),
        Figure(
            name=f"{what}: the link in windows of {WINDOW_SECONDS} s, of plain pinned copies",
            unit="x",
            value=Spread.of(busy),
            bar=at_least(OF_THE_LINK) if gpu else None,
            not_run=None if busy else "no window was filled with passes",
        ),
    ]


def _against(what: str, flow: Flow, theirs: dict[str, Any]) -> list[Figure]:
    ours, reason = Spread.of(flow.rates), theirs.get("reason")
    their_rate = None if reason else (NEW - 1) / theirs["decoding"]
    return [
        Figure(name=f"{what}: new tokens", unit="tokens/s", value=ours),
        Figure(
            name=f"{what}: tokens/s, of accelerate's with the same bytes on the device",
            unit="x",
            value=None if their_rate is None else Spread.of(rate / their_rate for rate in flow.rates),
            sides={} if their_rate is None else {"djinn": ours, "accelerate": Spread.of([their_rate])},
            sides_unit="tokens/s",
            not_run=reason,
        ),
        Figure(
            name=f"{what}: runs whose tokens are accelerate's",
            unit="x",
            value=None if reason else Spread.of([float(theirs["tokens"] == flow.tokens)]),
            bar=at_least(1.0),
            not_run=reason,
        ),
    ]


def run_large_ring(setting: Setting) -> Result:
    """70B-shaped weights in 48 GiB, or as many layers as there is room for in their share."""
    return measured("large_ring", SEVENTY, 48 << 30, setting)
