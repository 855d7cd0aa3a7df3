"""A model larger than its allowed memory: tokens/s and bytes, against copying and computing alone.

The same budget and the same model through accelerate's offload, and several sessions in lockstep.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from time import perf_counter
from typing import Any

import msgspec

import djinn_jupyter as dj
from djinn_evaluation.baselines.asking import Baseline, BaselineFailed, baseline
from djinn_evaluation.benchmarks.measuring import Spread, take_turns
from djinn_evaluation.benchmarks.results import Checks, Figure, Result, at_least, at_most
from djinn_evaluation.benchmarks.serving_engine import pid_of
from djinn_evaluation.benchmarks.setting import Setting, Shape
from djinn_evaluation.benchmarks.worker import Worker, worker
from djinn_evaluation.commit import versions
from djinn_evaluation.intervals import ratios
from djinn_evaluation.serving import random_tokens
from djinn_evaluation.validation.ring import weights_of
from djinn_jupyter.api.engine import RemoteEngine
from djinn_jupyter.api.session import RemoteSession

SHAPE = Shape(layers=12, width=512, heads=8, vocabulary=1000)  # 12 layers of 12 MiB
BUDGET = 80 << 20
QUICK = Shape(layers=12, width=128, heads=4, vocabulary=512)
QUICK_BUDGET = 6 << 20
PROMPT, NEW, ROUNDS = 4, 12, 9
SESSIONS = (1, 2, 4, 8)
SIDE_BY_SIDE = "computing and copying side by side"  # by plain PyTorch, no layer waiting for its bytes
OFFLOADS = {"disk": "accelerate, offloaded to disk", "cpu": "accelerate, offloaded to host memory"}


def run(setting: Setting) -> Result:
    shape, budget = (QUICK, QUICK_BUDGET) if setting.quick else (SHAPE, BUDGET)
    rounds, checks = setting.rounds(ROUNDS), Checks()
    prompt = random_tokens(PROMPT, shape.vocabulary)
    with ExitStack() as stack:
        plain = stack.enter_context(worker("plain"))
        folder = setting.saved(plain, shape)
        plain.ask("generate", tokens=prompt, new=2)
        expected = plain.ask("generate", tokens=prompt, new=NEW)["tokens"]
        engine = dj.load(folder, threads=setting.threads, device_memory=budget, page_positions=16)
        stack.callback(engine.stop, force=True)
        placed = weights_of(engine)
        others, absent = _offloaded(stack, folder, setting, placed.bytes_on_device)
        moved: list[float] = []
        sides: dict[str, Callable[[], float]] = {
            "djinn": _ours(engine, prompt, expected, checks, moved),
            "computing alone": lambda: plain.ask("generate", tokens=prompt, new=NEW)["decoding"] / (NEW - 1),
            "copying alone": lambda: plain.seconds("copy", nbytes=placed.bytes_streamed_per_pass, slot=_slot(shape)),
            SIDE_BY_SIDE: _side_by_side(plain, prompt, expected, checks, placed.bytes_streamed_per_pass, _slot(shape)),
            **{name: _theirs(other, prompt, expected, checks) for name, other in others.items()},
        }
        readings = take_turns(sides, rounds=rounds)
        setting.so_far(_figures(readings, moved[-rounds:], absent), "one session, not yet sessions in lockstep")
        together = _lockstep(engine, shape, plain, setting.rounds(3), checks)
        copies = [copy.bytes_moved / copy.seconds / 1e9 for copy in engine.copies()]
        anonymous = {"djinn": _anonymous(pid_of(engine)), **{n: _anonymous(o.pid) for n, o in others.items()}}
    settings = {
        "shape": shape,
        "budget_bytes": budget,
        "weights": msgspec.to_builtins(placed),
        "new_tokens": NEW,
        "rounds": rounds,
        "sessions": SESSIONS,
        "anonymous_bytes_at_the_end": anonymous,
        "versions": versions(["accelerate"]),
    }
    a_copy = Figure(name="a layer copy", unit="GB/s", value=Spread.of(copies))
    figures = (*_figures(readings, moved[-rounds:], absent), a_copy, *_of_sessions(together))
    return Result(benchmark="streaming", settings=settings, figures=figures, checks=checks.counts)


def _slot(shape: Shape) -> int:
    """Return about a layer's bytes in fp32: four square matrices of attention, eight of the MLP."""
    return 12 * shape.width**2 * 4


def _ours(
    engine: RemoteEngine, prompt: list[int], expected: list[int], checks: Checks, moved: list[float]
) -> Callable[[], float]:
    """Measure one session's seconds a token, from the request to its reply, the short prompt counted as one token:
    tokens may reach a busy client all at once. The ratio of moved to streamed bytes in each pass goes to `moved`."""
    session = engine.session("streaming", fresh=True)

    def seconds() -> float:
        before, begun = weights_of(engine), perf_counter()
        done: Any = session.run(prompt, max_new_tokens=NEW, ignore_eos=True)
        took, after = perf_counter() - begun, weights_of(engine)
        checks.same("new tokens of djinn and plain", list(done.tokens), expected)
        moved.append((after.bytes_moved - before.bytes_moved) / after.bytes_streamed_per_pass / NEW)
        return took / NEW

    return seconds


def _side_by_side(
    plain: Worker, prompt: list[int], expected: list[int], checks: Checks, nbytes: int, slot: int
) -> Callable[[], float]:
    """Measure seconds a token where a pass of copying runs beside each pass: on a CPU both share one memory bus."""

    def seconds() -> float:
        answer = plain.ask("generate_and_copy", tokens=prompt, new=NEW, nbytes=nbytes, slot=slot)
        checks.same("new tokens of plain and plain beside copies", answer["tokens"], expected)
        return float(answer["decoding"]) / (NEW - 1)

    return seconds


def _theirs(other: Baseline, prompt: list[int], expected: list[int], checks: Checks) -> Callable[[], float]:
    def seconds() -> float:
        answer = other.ask("generate", tokens=prompt, new=NEW)
        checks.same("new tokens of accelerate and plain", answer["tokens"], expected)
        return float(answer["decoding"]) / (NEW - 1)

    return seconds


def _offloaded(
    stack: ExitStack, folder: str, setting: Setting, budget: int
) -> tuple[dict[str, Baseline], dict[str, str]]:
    """Return a worker for each way of offloading, and the reasons for the ways without one."""
    found, absent = {}, {}
    for to, name in OFFLOADS.items():
        try:
            other = stack.enter_context(baseline("with_accelerate"))
            asked = {"dtype": "float32", "threads": setting.threads, "budget": budget, "to": to}
            loaded = other.ask("load", model=folder, **asked)
            if loaded["status"] == "success":
                found[name] = other
            else:
                absent[name] = loaded["reason"]
        except BaselineFailed as error:
            absent[name] = str(error)
    return found, absent


def _figures(readings: dict[str, list[float]], moved: list[float], absent: dict[str, str]) -> list[Figure]:
    limit = [max(pair) for pair in zip(readings["copying alone"], readings["computing alone"], strict=True)]
    both = [sum(pair) for pair in zip(readings["copying alone"], readings["computing alone"], strict=True)]
    per_token = {name: Spread.of(1000 * s for s in values) for name, values in readings.items()}
    figures = [
        Figure(
            name="streamed tokens/s, of what the slower of copying and computing alone would allow",
            unit="x",
            value=Spread.of(ratios(limit, readings["djinn"])),
            bar=at_least(0.9),
            sides={name: per_token[name] for name in ("djinn", "computing alone", "copying alone")},
            sides_unit="ms/token",
        ),
        Figure(
            name="streamed tokens/s, of what both at once attain",
            unit="x",
            value=Spread.of(ratios(readings[SIDE_BY_SIDE], readings["djinn"])),
            sides={name: per_token[name] for name in ("djinn", SIDE_BY_SIDE)},
            sides_unit="ms/token",
        ),
        Figure(
            name="plain computing and copying at once, of what the slower of them alone would allow",
            unit="x",
            value=Spread.of(ratios(limit, readings[SIDE_BY_SIDE])),
        ),
        Figure(
            name="streamed tokens/s, of copying and computing one after the other",
            unit="x",
            value=Spread.of(ratios(both, readings["djinn"])),
        ),
        Figure(
            name="bytes moved in a pass, of the streamed bytes",
            unit="x",
            value=Spread.of(moved),
            bar=at_most(1.05),
        ),
    ]
    for name in OFFLOADS.values():
        theirs = readings.get(name)
        figures.append(
            Figure(
                name=f"streamed tokens/s, of {name}",
                unit="x",
                value=None if theirs is None else Spread.of(ratios(theirs, readings["djinn"])),
                sides={side: per_token[side] for side in ("djinn", name) if side in per_token},
                sides_unit="ms/token",
                not_run=absent.get(name),
            )
        )
    return figures


# -------------------------------------------------------------------------------------------------------- lockstep


def _lockstep(
    engine: RemoteEngine, shape: Shape, plain: Worker, rounds: int, checks: Checks
) -> dict[int, list[tuple[float, float]]]:
    """Return for each number of sessions the tokens a second of all together, and the passes over the weights for one
    pass of each."""
    prompts = [random_tokens(PROMPT, shape.vocabulary, seed) for seed in range(max(SESSIONS))]
    expected = [plain.ask("generate", tokens=prompt, new=NEW)["tokens"] for prompt in prompts]
    sessions = [engine.session(f"lockstep {number}", fresh=True) for number in range(max(SESSIONS))]

    def one(session: RemoteSession, prompt: list[int]) -> list[int]:
        done: Any = session.run(prompt, max_new_tokens=NEW, ignore_eos=True)
        return list(done.tokens)

    found: dict[int, list[tuple[float, float]]] = {count: [] for count in SESSIONS}
    with ThreadPoolExecutor(max(SESSIONS)) as pool:
        for _ in range(rounds):
            for count in SESSIONS:
                before, begun = weights_of(engine).bytes_moved, perf_counter()
                came = list(pool.map(one, sessions[:count], prompts[:count]))
                seconds, after = perf_counter() - begun, weights_of(engine)
                for mine, plainly in zip(came, expected, strict=False):
                    checks.same("new tokens in lockstep and plain", mine, plainly)
                passes = (after.bytes_moved - before) / after.bytes_streamed_per_pass
                found[count].append((count * NEW / seconds, passes / NEW))
    return found


def _of_sessions(found: dict[int, list[tuple[float, float]]]) -> list[Figure]:
    figures = []
    for count, readings in found.items():
        alone = [speed for speed, _ in found[1]]
        if count > 1:
            figures.append(
                Figure(
                    name=f"tokens/s of {count} sessions in lockstep, of one alone",
                    unit="x",
                    value=Spread.of(ratios([speed for speed, _ in readings], alone)),
                    sides={
                        f"{count} sessions": Spread.of(speed for speed, _ in readings),
                        "one session": Spread.of(alone),
                    },
                    sides_unit="tokens/s",
                )
            )
        figures.append(
            Figure(
                name=f"passes over the weights for one pass of each of {count} sessions",
                unit="x",
                value=Spread.of(passes for _, passes in readings),
            )
        )
    return figures


def _anonymous(pid: int) -> int | None:
    """Return the bytes of a process that no file backs; None where the system does not say."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon:")), None)
