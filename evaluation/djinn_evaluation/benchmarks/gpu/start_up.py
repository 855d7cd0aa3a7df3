"""The steps of the start of a saved 13B-shaped model, to the first token, and of a session's moves on it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Final

from djinn_evaluation.benchmarks import moving
from djinn_evaluation.benchmarks.gpu.shapes import THIRTEEN, TINY_PAGE, saved, scale_of, serving, shape, weight_bytes
from djinn_evaluation.benchmarks.harness import Checks, Figure, Readings, Result, Setting, Spread, compared, take_turns
from djinn_evaluation.machine import computed_on
from djinn_evaluation.serving import finished, random_tokens

ROUNDS_OF_START_UP: Final = 2
PROMPT: Final = 16
CHUNK: Final = 16 << 20
PLAIN: Final = """
import json, sys
import torch
from transformers import AutoModelForCausalLM
torch.set_num_threads(int(sys.argv[3]))
torch.backends.cuda.enable_cudnn_sdp(False)
model = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype="auto").eval().to(sys.argv[2])
with torch.inference_mode():
    logits = model(torch.tensor([json.loads(sys.argv[4])], device=sys.argv[2]), use_cache=True, logits_to_keep=1).logits
print(int(logits[0, -1].float().argmax()))
"""
ENGINE, READING, SCRIPT = "djinn", "reading the files", "a plain script"


def run_start_up(setting: Setting) -> Result:
    """The step of the start: from the load of a saved 13B-shaped model, 26 GB, to the first token.

    Beside it: reading the same files, and a plain script that loads them with transformers and runs one pass.
    Before each the system is advised to forget the files, so that all three read them from the disk."""
    config, checks = shape(THIRTEEN, scale_of(setting)), Checks()
    prompt = random_tokens(PROMPT, config["vocab_size"])
    expected: list[int] = []
    loads: list[float] = []
    folder = saved(config)
    sides: dict[str, Callable[[], float]] = {
        SCRIPT: lambda: _script(folder, prompt, setting, expected),
        ENGINE: lambda: _engine(folder, prompt, setting, expected, checks, loads),
        READING: lambda: _read(folder),
    }
    rounds = setting.rounds(ROUNDS_OF_START_UP)
    after = setting.after_rounds(_figures, rounds)
    times = take_turns(sides, rounds=rounds, warm_up=0, after=after)
    settings = {"shape": config, "bytes": weight_bytes(config), "rounds": rounds, "files": "forgotten before each"}
    figures = (*_figures(times), Figure(name="of it, from the load to ready", unit="s", value=Spread.of(loads)))
    return Result(benchmark="start-up", settings=settings, figures=figures, checks=checks.counts)


def _engine(
    folder: Path, prompt: list[int], setting: Setting, expected: list[int], checks: Checks, loads: list[float]
) -> float:
    forget(folder)
    begun = perf_counter()
    with serving(folder, setting) as engine:
        loads.append(perf_counter() - begun)
        done = finished(engine.session("first", fresh=True).run(prompt, max_new_tokens=1, ignore_eos=True))
        seconds = perf_counter() - begun
    checks.same("the first token of djinn and of a plain script", done.tokens[0], expected[-1])
    return seconds


def _script(folder: Path, prompt: list[int], setting: Setting, expected: list[int]) -> float:
    forget(folder)
    begun = perf_counter()
    command = [sys.executable, "-c", PLAIN, str(folder), computed_on(), str(setting.threads), str(prompt)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    expected.append(int(done.stdout))
    return perf_counter() - begun


def _read(folder: Path) -> float:
    """Read all files, as fast as one thread of Python does."""
    forget(folder)
    buffer = bytearray(CHUNK)
    begun = perf_counter()
    for path in sorted(folder.iterdir()):
        with path.open("rb", buffering=0) as file:
            while file.readinto(buffer):
                pass
    return perf_counter() - begun


def forget(folder: Path) -> None:
    """Advise the system to drop the files from memory. One that knows no such advice keeps them, for all sides."""
    advise = getattr(os, "posix_fadvise", None)
    for path in folder.iterdir() if advise is not None else ():
        with path.open("rb") as file:
            assert advise is not None
            advise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _figures(times: Readings) -> list[Figure]:
    return [_against(times, other) for other in (READING, SCRIPT)]


def _against(times: dict[str, list[float]], other: str) -> Figure:
    both = {name: times[name] for name in (ENGINE, other)}
    return compared(f"from the load to the first token, of {other}", ENGINE, other, both, unit="s")


ROUNDS_OF_MOVES: Final = 5
TIERS: Final = ("host",)


def run_moves(setting: Setting) -> Result:
    """The step of moves: a session of 2,048 tokens on 13B-shaped weights leaves the device and comes back.

    Its speed against plain copies of the same bytes, and the wait for a session that had left."""
    config, checks = shape(THIRTEEN, scale_of(setting)), Checks()
    positions = scale_of(setting).of(2048, 6 * TINY_PAGE)
    prompt = random_tokens(positions, config["vocab_size"])
    with serving(saved(config), setting) as engine:
        session = engine.session("one", fresh=True)
        speeds, nbytes = moving.moves(session, prompt, TIERS, setting, checks)
        setting.so_far(speeds, "the moves, not yet their stalls")
        stalls = moving.waits(engine, session, prompt, TIERS, setting, setting.rounds(ROUNDS_OF_MOVES), checks, speeds)
    settings = {"shape": config, "positions": positions, "bytes_of_a_session": nbytes}
    return Result(benchmark="moves", settings=settings, figures=(*speeds, *stalls), checks=checks.counts)
