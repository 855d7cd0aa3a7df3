"""The cost of a journal image to the engine's thread before a reply is sent: after a breakpoint, a stop, a resume, and
where 64 stops are kept. In the thread's CPU seconds, which a busy machine does not stretch; the other side is the same
with BLAKE2b in the place of XXH3."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from hashlib import blake2b
from pathlib import Path
from time import thread_time
from typing import Any
from unittest.mock import patch

import torch

from djinn_evaluation.benchmarks.harness import Checks, Figure, Result, Setting, Spread
from djinn_evaluation.serving import random_tokens
from djinn_jupyter.engine.process.build import open_engine
from djinn_jupyter.engine.process.engine import Engine
from djinn_jupyter.engine.store import records
from djinn_jupyter.engine.system.config import EngineConfig
from djinn_jupyter.wire.replies import Failed
from djinn_jupyter.wire.requests import Back, ClearBreakpoints, Open, Resume, Run, SetBreakpoint

ROUNDS, POSITIONS, STOPS = 20, 256, 64
CHECKSUMS: dict[str, Callable[[bytes], Any]] = {"XXH3": records.digest_of, "BLAKE2b": partial(blake2b, digest_size=16)}
SESSION, SITE = "kept", "resid_post.4"
AFTER = ("a breakpoint", f"a stop in {POSITIONS} positions", "a resume with its logits", f"a stop after {STOPS} others")


def run_journal(setting: Setting) -> Result:
    torch.set_num_threads(setting.threads)
    checks, shape, rounds = Checks(), setting.shape(), setting.rounds(ROUNDS)
    folder = setting.model(shape)
    prompt = random_tokens(POSITIONS, shape.vocabulary)
    found = {
        name: _readings(folder, setting.home / name, digest_of, prompt, rounds, checks)
        for name, digest_of in CHECKSUMS.items()
    }
    figures = tuple(
        Figure(
            name=f"an image before the reply, after {what}",
            unit="ms",
            value=found["XXH3"][what],
            sides={f"with {name}": readings[what] for name, readings in found.items()},
            sides_unit="ms",
        )
        for what in AFTER
    )
    settings = {"rounds": rounds, "shape": shape, "positions": POSITIONS, "stops": STOPS}
    return Result(benchmark="journal", settings=settings, figures=figures, checks=checks.counts)


def _readings(
    folder: str, data: Path, digest_of: Callable[[bytes], Any], prompt: list[int], rounds: int, checks: Checks
) -> Mapping[str, Spread | None]:
    seconds: dict[str, list[float]] = {what: [] for what in AFTER}
    breakpoint_, stop, resume, another = AFTER
    with patch.object(records, "digest_of", digest_of), _engine(folder, data) as (engine, spent):

        def ask(request: Any, what: str | None = None) -> None:
            spent.clear()
            reply = engine.ask(request)
            checks.same("requests that failed", isinstance(reply, Failed), False)
            if what is not None:
                checks.same("replies that waited for an image", bool(spent), True)
                seconds[what].append(1000 * sum(spent))

        ask(Open(session=SESSION))
        for _ in range(rounds):
            ask(SetBreakpoint(session=SESSION, site=SITE), breakpoint_)
            ask(Run(session=SESSION, tokens=tuple(prompt), max_new_tokens=1), stop)
            ask(Resume(session=SESSION), resume)
            ask(ClearBreakpoints(session=SESSION))
        ask(SetBreakpoint(session=SESSION, site=SITE))
        ask(Run(session=SESSION, tokens=tuple(prompt), max_new_tokens=STOPS + rounds + 1, ignore_eos=True))
        for at in range(STOPS + rounds):
            ask(Resume(session=SESSION), another if at >= STOPS else None)
        ask(Back(session=SESSION))
    return {what: Spread.of(values) for what, values in seconds.items()}


@contextmanager
def _engine(folder: str, data: Path) -> Iterator[tuple[Engine, list[float]]]:
    """Yield an engine in this process, and the CPU seconds of its thread for each image written before a reply."""
    engine = open_engine(EngineConfig(model=folder, device="cpu", data_folder=data, no_journal=False))
    journal, spent = engine.persistence.journal, []
    assert journal is not None
    write = journal.write

    def timed(*asked: Any) -> None:
        begun = thread_time()
        write(*asked)
        spent.append(thread_time() - begun)

    with patch.object(journal, "write", timed):
        try:
            yield engine, spent
        finally:
            engine.close()
