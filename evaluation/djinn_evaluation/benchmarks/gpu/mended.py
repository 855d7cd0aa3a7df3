"""The step of the tests that failed on a card once and were mended (`mended.txt`): each is run until it has an outcome.

One that fails ends its process, for a lost CUDA context would fail all that come after it; the others go on in another.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from threading import Timer
from time import monotonic
from typing import Final

from djinn_evaluation import CHECKOUT
from djinn_evaluation.benchmarks.gpu import undecided
from djinn_evaluation.benchmarks.gpu.steps import TESTS, Kept, Unfinished
from djinn_evaluation.benchmarks.harness import Figure, Result, Setting, Spread, at_least

LIST: Final = Path(__file__).with_name("mended.txt")
OF_A_QUICK_RUN: Final = 2  # entries of the list
RESERVE: Final = 20  # seconds, to start and to end a turn
START: Final = 20  # seconds, in which a process has not decided a test
PLUGINS: Final = ("-p", "no:cacheprovider", "-p", undecided.__name__)
OPTIONS: Final = ("-v", "-x", "--no-header", *PLUGINS, "-m", "not slow and not alone")
OUTCOME: Final = re.compile(r"(\S+::.+?) (PASSED|FAILED|ERROR|SKIPPED|XFAIL|XPASS)\b.*\[ *\d+%\]\s*")
NOTHING_LEFT: Final = 5  # pytest's status where it ran no test


def run_mended(setting: Setting) -> Result:
    begun, kept, chosen = monotonic(), Kept.of("mended", setting, TESTS), selected(LIST.read_text())
    if setting.quick:
        chosen = chosen[:OF_A_QUICK_RUN]

    def decided(test: str, outcome: str) -> None:
        if kept.found.get(test, "PASSED") == "PASSED":  # an error after a test that passed counts
            kept.add(test, outcome)
            setting.so_far(_figures(kept), _how_far(kept))

    status = 1
    while status not in (0, NOTHING_LEFT):
        before, left = len(kept.found), setting.seconds - RESERVE - (monotonic() - begun)
        if left < START:
            raise Unfinished(_how_far(kept))
        status = _ran(chosen, kept.found, left, decided)
        if status and len(kept.found) == before and status != NOTHING_LEFT:
            raise Unfinished(f"{_how_far(kept)}; pytest ended with status {status} and decided none")
    settings = {"selected": chosen, "outcomes": Counter(kept.found.values()), "not_passed": _not_passed(kept)}
    return Result(benchmark="mended", settings=settings, figures=tuple(_figures(kept)))


def selected(lines: str) -> list[str]:
    """Return what the list names: files, and tests of files."""
    return [line for line in lines.splitlines() if line and not line.startswith("#")]


def _ran(chosen: list[str], known: dict[str, str], seconds: float, decided: Callable[[str, str], None]) -> int:
    """Run the tests that have no outcome yet, to the first that fails; return pytest's status."""
    told = {**os.environ, undecided.KNOWN: json.dumps(list(known)), "COLUMNS": "1000", "PYTHONUNBUFFERED": "1"}
    command = [sys.executable, "-m", "pytest", *OPTIONS, *chosen]
    with subprocess.Popen(command, cwd=CHECKOUT, stdout=subprocess.PIPE, text=True, env=told) as process:
        late = Timer(seconds, process.terminate)
        late.start()
        try:
            for test, outcome in outcomes(process.stdout or ()):
                decided(test, outcome)
            return process.wait()
        finally:
            late.cancel()
            process.terminate()  # a turn that is ended waits for it


def outcomes(lines: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield the finished tests with their outcomes, from pytest's output; other lines are shown."""
    for line in lines:
        if (found := OUTCOME.fullmatch(line)) is not None:
            yield found[1], found[2]
        else:
            print(line, end="", flush=True)


def _how_far(kept: Kept) -> str:
    return f"{len(kept.found)} tests"


def _not_passed(kept: Kept) -> list[str]:
    return [test for test, outcome in kept.found.items() if outcome != "PASSED"]


def _figures(kept: Kept) -> list[Figure]:
    counts = Counter(kept.found.values())
    judged = counts["PASSED"] + counts["FAILED"] + counts["ERROR"]
    passed = Spread.of([counts["PASSED"] / judged] if judged else [])
    return [
        Figure(
            name=f"tests that failed on a card once: of {judged}, those that pass",
            unit="of them",
            value=passed,
            bar=at_least(1.0),
            not_run=None if judged else "no test has ended",
        )
    ]
