"""A run of steps, each turn in its own process, and the report of a card: each bar met, missed, or not measured."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any, Final

import psutil

from djinn_evaluation import CHECKOUT
from djinn_evaluation.benchmarks import harness
from djinn_evaluation.benchmarks.gpu.steps import GRACE_SECONDS, SECONDS, STEPS, UNFINISHED, Step, findings_of

HEAD = "| step | bar | |\n|---|---|---|\n"
VERDICTS = ("met", "missed", "not measured", "so far")
NOT_YET = "it has not been run"


def report(folder: Path, reasons: Mapping[str, str]) -> str:
    """Return the report on the results in the folder; `reasons` say why a step has none."""
    rows = [row for step in STEPS for row in _step(step.name, folder / f"{step.name}.json", reasons)]
    counts = {word: sum(said.startswith(word) for _, _, said in rows) for word in VERDICTS}
    summary = ", ".join(f"{count} {word}" for word, count in counts.items())
    table = "".join(f"| {' | '.join(cell.replace('|', '/') for cell in row)} |\n" for row in rows)
    return f"# {folder.name}\n\n{_machine(folder)}{summary}.\n\n{HEAD}{table}"


def _step(name: str, path: Path, reasons: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    if not path.exists():
        yield name, "all of it", f"not measured: {reasons.get(name, NOT_YET)}"
        return
    found = json.loads(path.read_text())
    partial = found.get("partial")
    for figure in found["figures"]:
        if figure["bar"] is not None or figure["value"] is None:
            yield name, _wanted(figure), verdict(figure) if partial is None else f"so far {verdict(figure)}"
    if partial is not None:
        yield name, f"the rest, after {partial}", f"not measured: {reasons.get(name, 'it was cut')}"


def _wanted(figure: Mapping[str, Any]) -> str:
    bar = figure["bar"]
    return figure["name"] if bar is None else f"{figure['name']}: {bar['sense']} {bar['value']:g} {figure['unit']}"


def verdict(figure: Mapping[str, Any]) -> str:
    """Return the verdict on a figure of a result file."""
    value, bar = figure["value"], figure["bar"]
    if value is None:
        return f"not measured: {figure['not_run'] or 'the file does not say why'}"
    if figure["met"]:
        return f"met: {value['median']:.3g}"
    return f"missed by {abs(value['median'] - bar['value']):.3g} {figure['unit']}: {value['median']:.3g}"


def _machine(folder: Path) -> str:
    """Return the machine's line, from the first result there is."""
    files = [path for step in STEPS if (path := folder / f"{step.name}.json").exists()]
    if not files:
        return ""
    found = json.loads(files[0].read_text())
    versions = ", ".join(f"{name} {number}" for name, number in found["machine"]["versions"].items() if number)
    card = ", ".join(f"{name} {value}" for name, value in found["settings"].get("card", {}).items() if value)
    size = found["settings"].get("size", 1)
    small = f"At {size:g} of the usual size and in few rounds: that it runs, not how fast.\n\n" if size < 1 else ""
    return f"{found['machine']['device']}, {found['machine']['cpu']}; {versions}. Card: {card}.\n\n{small}"


KEPT: Final = "not_measured.json"
LEAST_SHARE: Final = 0.8  # of a turn, in which a step that has several comes further


class Reason(Exception):
    """The reason for a step without a complete result. `again`: another turn may continue it; `ran`: it had all its
    seconds."""

    def __init__(self, why: str, *, again: bool = False, ran: bool = True) -> None:
        super().__init__(why)
        self.again, self.ran = again, ran


def missing(folder: Path, turns: Mapping[str, int], steps: Iterable[Step] = STEPS) -> list[Step]:
    """Return those of the steps without a whole result: those first that had fewer turns, then in order."""
    found = [step for step in steps if not harness.whole(folder / f"{step.name}.json")]
    return sorted(found, key=lambda step: turns.get(step.name, 0))


@dataclass(slots=True, kw_only=True)
class Course:
    """Runs steps until `until` (monotonic); `reasons` and `turns` of incomplete steps are kept beside the results."""

    folder: Path
    size: float
    until: float | None = None
    reasons: dict[str, str] = field(default_factory=dict)
    turns: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if (path := self.folder / KEPT).exists():
            kept = json.loads(path.read_text())
            self.reasons, self.turns = kept["reasons"], kept["turns"]

    def run(self, steps: Iterable[Step]) -> None:
        """Run the steps, again those that came further in their last turn; whole results are found anew."""
        waiting = deque(steps)
        for step in waiting:
            if harness.whole(path := self.folder / f"{step.name}.json"):
                path.unlink()
                findings_of(step.name, self.folder).unlink(missing_ok=True)
        while waiting:
            step = waiting.popleft()
            before = self.reasons.get(step.name)
            print(f"{step.name}: {step.learns}; about {step.seconds} s", flush=True)
            try:
                self._turn(step)
            except Reason as why:
                self._note(step, why, waiting, before)
            else:
                self.reasons.pop(step.name, None)
                self.turns.pop(step.name, None)
            self._keep()

    def _note(self, step: Step, why: Reason, waiting: deque[Step], before: str | None) -> None:
        self.turns[step.name] = self.turns.get(step.name, 0) + why.ran
        self.reasons[step.name] = str(why)
        if why.again and str(why) == before:
            self.reasons[step.name] = f"a turn came no further: {why}"
        elif why.again:
            waiting.append(step)
        print(f"  not measured: {self.reasons[step.name]}", flush=True)

    def _keep(self) -> None:
        kept = {"reasons": self.reasons, "turns": self.turns}
        harness.put(self.folder / KEPT, json.dumps(kept, indent=1) + "\n")
        harness.put(self.folder / "report.md", report(self.folder, self.reasons))

    def _turn(self, step: Step) -> None:
        """Run one turn of a step. Raises Reason unless it ends with the step's complete result."""
        seconds = self._seconds(step)
        arguments = [step.name, str(self.folder), f"--size={self.size}", f"--seconds={seconds}"]
        command = [sys.executable, "-m", "djinn_evaluation.benchmarks.gpu.one", *arguments]
        with (
            _scratch(self.folder) as env,
            subprocess.Popen(command, cwd=CHECKOUT, stderr=subprocess.PIPE, text=True, env=env) as turn,
        ):
            try:
                _, errors = turn.communicate(timeout=seconds)
            except subprocess.TimeoutExpired:
                _end(turn)
                why = f"it took longer than {seconds:.0f} s{self._cut(step, seconds)}"
                raise Reason(why, ran=seconds >= step.seconds) from None
        last = errors.strip().rpartition("\n")[2]
        if turn.returncode == UNFINISHED:
            raise Reason(last, again=True)
        if turn.returncode:
            sys.stderr.write(errors)
            raise Reason(last or f"it ended with status {turn.returncode}")

    def _cut(self, step: Step, seconds: float) -> str:
        return ", which were left of the run: run the same again" if seconds < (step.turn or SECONDS) else ""

    def _seconds(self, step: Step) -> float:
        """Return the seconds of the step's next turn. Raises Reason where those left do not suffice."""
        usual = float(step.turn or SECONDS)
        if self.until is None:
            return usual
        left = self.until - monotonic() - GRACE_SECONDS
        needed = LEAST_SHARE * step.seconds if step.turn else step.seconds if self.size == 1 else 0
        if left < needed:
            why = f"it needs about {needed:.0f} s, and the run had {max(left, 0):.0f} left: run the same again"
            raise Reason(why, ran=False)
        return min(usual, left)


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Keep other runs from the results in the folder. Raises BlockingIOError while one is at work."""
    with (folder / "lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield


@contextmanager
def _scratch(folder: Path) -> Iterator[dict[str, str]]:
    """Yield a turn's environment, whose temporary folder marks its processes: left ones are ended before and after."""
    name = hashlib.sha256(os.fsencode(folder)).hexdigest()[:8]
    scratch = Path(tempfile.gettempdir()) / f"djinn-gpu-{name}"
    _clear(scratch)
    scratch.mkdir(exist_ok=True)
    try:
        yield {**os.environ, "TMPDIR": str(scratch)}
    finally:
        _clear(scratch)


def _clear(scratch: Path) -> None:
    processes = psutil.process_iter(["environ"], ad_value={})
    left = [one for one in processes if one.info["environ"].get("TMPDIR") == str(scratch)]
    for process in left:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(left, GRACE_SECONDS)
    shutil.rmtree(scratch, ignore_errors=True)


def _end(turn: subprocess.Popen[str]) -> None:
    """Terminate a turn, so that it stops its engines; kill it if it does not end in time."""
    turn.terminate()
    try:
        turn.wait(GRACE_SECONDS)
    except subprocess.TimeoutExpired:
        turn.kill()
