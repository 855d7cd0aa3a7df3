"""Steps on a GPU: their turns, their files, and their report."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from time import monotonic
from typing import Any

import psutil
import pynvml
import pytest

from djinn_evaluation import machine
from djinn_evaluation.benchmarks import harness
from djinn_evaluation.benchmarks.gpu import __main__ as command
from djinn_evaluation.benchmarks.gpu import course, exactness, mended, pressure, ring
from djinn_evaluation.benchmarks.gpu import steps as kept
from djinn_evaluation.benchmarks.gpu.course import report
from djinn_evaluation.benchmarks.gpu.steps import (
    GRACE_SECONDS,
    QUARTER,
    QUARTER_MINUTES,
    SECONDS,
    STEPS,
    Step,
    Unfinished,
    findings_of,
    planned,
    step_of,
)
from djinn_evaluation.benchmarks.harness import Figure, Result, Setting
from djinn_evaluation.commands.experiment import steps_of
from djinn_evaluation.nvml import Card
from tests.evaluation.benchmarks.test_benchmarks import near_worker
from tests.waiting import until

ONE = (("llama",), ("bfloat16",), ("eager",))


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Setting:
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setattr(exactness, "SMALL", ONE)
    return Setting(quick=True, threads=1, home=tmp_path, results=tmp_path)


def test_the_exactness_step_decides_each_case_once(small: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    found = exactness.run_exactness(small)
    assert [(figure.met, figure.value.median if figure.value else None) for figure in found.figures] == [(True, 1.0)]
    decided = exactness.decide
    monkeypatch.setattr(exactness, "decide", lambda case: pytest.fail("decided already"))
    assert exactness.run_exactness(small).figures == found.figures
    monkeypatch.setattr(kept, "depends_on", lambda sources: "an engine that was mended")
    again: list[exactness.Case] = []
    monkeypatch.setattr(exactness, "decide", lambda case: again.append(case) or decided(case))
    exactness.run_exactness(small)
    assert len(again) == 1


def test_a_case_whose_bits_differ_is_named_and_misses_the_bar(small: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(exactness.DEEDS, "a fork", lambda desk: "other bits")
    found = exactness.run_exactness(small)
    assert found.figures[0].met is False
    assert [one["why"] for one in found.settings["differ"]] == ["a fork"]


def test_a_step_whose_time_is_over_says_how_far_it_came(small: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Unfinished, match="0 of 1 cases"):
        exactness.run_exactness(replace(small, seconds=0))


def test_a_step_keeps_what_it_has_so_far(small: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a turn that is cut leaves it: the cases decided until then, and no word of the others."""
    monkeypatch.setattr(exactness, "SMALL", (("llama", "gpt2", "mamba2"), *ONE[1:]))
    monkeypatch.setattr(exactness, "EACH", 1)
    monkeypatch.setattr(exactness, "decide", lambda case: exactness.Verdict(case=case, outcome="exact"))
    written: list[tuple[str, int]] = []

    def so_far(figures: Iterable[Figure], how_far: str) -> None:
        written.append((how_far, len(list(figures))))

    exactness.run_exactness(replace(small, so_far=so_far))
    assert written == [("1 of 3 cases", 1), ("2 of 3 cases", 1)]


def test_the_link_step_copies_each_way_and_compares(small: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ring, "findings", lambda: [])
    monkeypatch.setattr(ring, "worker", near_worker)
    found = ring.run_link(small)
    assert [figure.name for figure in found.figures] == [f"copies {way}" for way in ring.WAYS]
    assert all(figure.value is not None and figure.value.low > 0 for figure in found.figures)


COMES_NO_FURTHER = "a turn came no further: 3 of 5 parts"
A_STEP = Step(name="link", learns="", module="", minutes=1)


def ends(
    program: str, folder: Path, monkeypatch: pytest.MonkeyPatch, *steps: Step, minutes: float | None = None
) -> dict[str, str]:
    """Return the reasons why steps have no whole result when their process runs this program."""
    (folder / "python").write_text(f"#!{sys.executable}\n{program}\n")
    (folder / "python").chmod(0o700)
    monkeypatch.setattr(course.sys, "executable", str(folder / "python"))
    made = course.Course(folder=folder, size=1.0, until=minutes and monotonic() + 60 * minutes)
    made.run(steps or [A_STEP])
    return made.reasons


@pytest.mark.parametrize(
    ("program", "reasons"),
    [
        ("raise SystemExit('no such card')", {"link": "no such card"}),
        ("import sys; print('3 of 5 parts', file=sys.stderr); sys.exit(3)", {"link": COMES_NO_FURTHER}),
        ("from pathlib import Path; p = Path({!r}); n = p.exists(); p.touch(); raise SystemExit(0 if n else 3)", {}),
    ],
    ids=["it fails", "it comes no further", "it has two turns"],
)
def test_a_step_goes_on_until_it_is_finished(
    program: str, reasons: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that fails is told with its last line, and one that comes no further is ended."""
    assert ends(program.format(str(tmp_path / "turn")), tmp_path, monkeypatch) == reasons
    for reason in reasons.values():
        assert f"| link | all of it | not measured: {reason} |" in report(tmp_path, reasons)


TURN = """import json, sys; from pathlib import Path
name, folder = sys.argv[3], Path(sys.argv[4]); log = folder / "log"
log.write_text((log.read_text() if log.exists() else "") + name + " ")
turns = log.read_text().split().count(name)
if name == "exactness" and turns < 3: print(f"{turns} of 3 parts", file=sys.stderr); sys.exit(3)
machine = '{"device": "d", "cpu": "c", "versions": {}}'
(folder / f"{name}.json").write_text('{"figures": [], "settings": {}, "machine": ' + machine + "}")
"""


def test_a_step_of_several_turns_has_the_next_when_the_others_had_theirs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = [step_of(name) for name in ("exactness", "races", "fork")]
    assert ends(TURN, tmp_path, monkeypatch, *steps) == {}
    assert (tmp_path / "log").read_text().split() == ["exactness", "races", "fork", "exactness", "exactness"]


def test_a_run_ends_in_its_minutes_and_the_next_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step whose minutes are not left is put off, and a shorter one behind it is run."""
    steps = [step_of(name) for name in ("pressure", "fork", "exactness")]
    reasons = ends(TURN, tmp_path, monkeypatch, *steps, minutes=2.0)
    assert (tmp_path / "log").read_text().split() == ["fork"]
    assert reasons["pressure"].startswith("it needs about 240 s, and the run had ")
    assert reasons["exactness"].startswith("it needs about 240 s")
    assert "run the same again" in (tmp_path / "report.md").read_text()
    again = course.Course(folder=tmp_path, size=1.0)
    assert (again.turns["pressure"], again.turns["exactness"]) == (0, 0)
    left = course.missing(tmp_path, {**again.turns, "link": 1})
    assert left[-1].name == "link"
    assert "fork" not in {step.name for step in left}


def test_a_quarter_is_its_steps_in_their_order_and_another_run_takes_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whatever was left of the first run: the second needs its results and the saved model, and nothing else of it."""
    (tmp_path / "python").write_text(f"#!{sys.executable}\n{TURN}\n")
    (tmp_path / "python").chmod(0o700)
    monkeypatch.setattr(course.sys, "executable", str(tmp_path / "python"))
    monkeypatch.setattr(command.shapes, "FOLDER", tmp_path / "models")
    (tmp_path / "models").mkdir()
    monkeypatch.setattr(command, "QUARTER_MINUTES", 2.0)  # of which the longer turns do not go into the rest
    asked = ["--quarter", "--results", str(tmp_path / "results"), "--size", "1e-4"]
    assert command.main(asked) == 1
    (log,) = (tmp_path / "results").glob("*/log")
    first = ["link", "pressure", "pressure-again", "mended", "moves"]
    assert log.read_text().split() == first
    assert "pressure: 50 sessions of 2,048 tokens" in (said := capsys.readouterr().out)
    assert "about 240 s" in said
    monkeypatch.undo()
    monkeypatch.setattr(course.sys, "executable", str(tmp_path / "python"))
    monkeypatch.setattr(command.shapes, "FOLDER", tmp_path / "models")
    assert command.main(asked) == 0
    assert log.read_text().split() == [*first, "graphs"]
    assert {step.name for step in QUARTER} == {*log.read_text().split()}
    assert (tmp_path / "models").is_dir(), "other steps are for it"
    command.main(asked)
    assert len(log.read_text().split()) == len(QUARTER), "nothing is left to be run"


@pytest.mark.parametrize(("minutes", "turns"), [(1.0, 0), (0.001, 1)])
def test_a_step_that_the_end_of_a_run_cut_keeps_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, minutes: float, turns: int
) -> None:
    """Else one of less worth would go before it in the next run. One that had the time it wants goes behind."""
    (tmp_path / "python").write_text(f"#!{sys.executable}\nimport time; time.sleep(60)\n")
    (tmp_path / "python").chmod(0o700)
    monkeypatch.setattr(course.sys, "executable", str(tmp_path / "python"))
    monkeypatch.setattr(course, "GRACE_SECONDS", 0.1)
    cut = course.Course(folder=tmp_path, size=1e-4, until=monotonic() + 0.6)
    cut.run([replace(A_STEP, minutes=minutes)])
    assert "which were left of the run: run the same again" in cut.reasons["link"]
    assert cut.turns == {"link": turns}


def test_the_plan_of_a_quarter_fits_its_runs_and_says_what_is_left(capsys: pytest.CaptureFixture[str]) -> None:
    runs, left = planned()
    assert all(sum(step.seconds for step in steps) <= 60 * QUARTER_MINUTES - GRACE_SECONDS for steps in runs)
    assert sorted([*map(QUARTER.index, left), *(QUARTER.index(step) for steps in runs for step in steps)]) == [
        *range(len(QUARTER))
    ], "each step stands once"
    assert runs[0][0] == QUARTER[0]
    assert QUARTER.index(runs[1][0]) == len(runs[0]), "the second run goes on with what is worth most"
    assert command.main(["--list", "--quarter"]) == 0
    *said, last = capsys.readouterr().out.splitlines()
    assert len(said) == len(runs)
    assert all(f"{step.name} {step.seconds} s" in last for step in left)


def test_a_step_with_a_whole_result_finds_all_of_it_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else readings of an earlier day would stand beside the present clocks."""
    step, findings = step_of("races"), findings_of("races", tmp_path)
    findings.touch()
    assert ends(TURN, tmp_path, monkeypatch, step) == {}
    assert findings.exists()
    course.Course(folder=tmp_path, size=1.0).run([step])
    assert not findings.exists()


@pytest.mark.parametrize(
    ("step", "source"),
    [
        (pressure.run_evaluation, "evaluation/djinn_evaluation/a.py"),
        (pressure.run_evaluation, "djinn_jupyter/a.py"),
        (mended.run_mended, "tests/a.py"),
    ],
    ids=["an experiment's own", "the client's", "a test's"],
)
def test_what_other_code_decided_is_decided_again(
    small: Setting, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: Any, source: str
) -> None:
    """Else a verdict would be of the code before a fix, between two runs of a quarter."""
    monkeypatch.setattr(kept, "CHECKOUT", tmp_path)
    decided: list[str] = []

    def ran(chosen: list[str], known: dict[str, str], seconds: float, told: Callable[[str, str], None]) -> int:
        if "test_it" not in known:
            decided.append("test_it")
            told("test_it", "PASSED")
        return 0

    monkeypatch.setattr(mended, "_ran", ran)
    monkeypatch.setattr(pressure, "verdict", lambda name, *_: decided.append(name) or "PASS")
    monkeypatch.setattr(pressure, "steps_of", lambda offers: steps_of(offers)[:1])
    (tmp_path / source).parent.mkdir(parents=True)
    for text, count in (("1", 1), ("1", 1), ("2", 2)):
        (tmp_path / source).write_text(text)
        step(small)
        assert len(decided) == count


def test_a_finding_that_a_kill_tore_is_found_again_and_the_others_stay(small: Setting) -> None:
    """Findings at another size are none."""
    before = kept.Kept.of("graphs", small)
    before.add("7B", 1.0)
    before.add("13B", 2.0)
    path = findings_of("graphs", small.results or small.home)
    path.write_bytes(path.read_bytes()[:-5])
    torn = kept.Kept.of("graphs", small)
    assert torn.found == {"7B": 1.0}
    torn.add("13B", 3.0)
    assert kept.Kept.of("graphs", small).found == {"7B": 1.0, "13B": 3.0}
    assert kept.Kept.of("graphs", replace(small, factor=0.5)).found == {}


def test_cases_after_one_that_ended_cudas_context_are_for_another_process(
    small: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    why = "RuntimeError: CUDA error: device-side assert triggered"
    monkeypatch.setattr(exactness, "decide", lambda case: exactness.Verdict(case=case, outcome="not computed", why=why))
    with pytest.raises(Unfinished, match="1 of 1 cases, the last of which ended CUDA's context"):
        exactness.run_exactness(small)
    assert exactness.run_exactness(small).checks == {"cases not computed": 1}


@pytest.mark.parametrize(
    ("handler", "grace"), [("exit(1)", 60), ("None", 0.1)], ids=["that stops its engines", "that hangs"]
)
def test_a_step_that_takes_too_long_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, handler: str, grace: float
) -> None:
    """A signal ends it, at which it stops its engines; force ends it where it goes on. Its time begins when it is at
    work, however long it took to start."""
    at_work = tmp_path / "at work"

    class Turn(subprocess.Popen[str]):
        def communicate(self, *given: Any, **more: Any) -> Any:
            until(lambda: at_work.exists() or self.poll() is not None, "the turn's beginning")
            assert at_work.exists(), "the turn has ended before it was at work"
            return super().communicate(*given, **more)

    monkeypatch.setattr(course.subprocess, "Popen", Turn)
    monkeypatch.setattr(course, "SECONDS", 1)
    monkeypatch.setattr(course, "GRACE_SECONDS", grace)
    handles = f"import signal, time; signal.signal(signal.SIGTERM, lambda *_: {handler})"
    waits = f"try: open({str(at_work)!r}, 'w').close(); time.sleep(600)"
    stops = f"finally: open({str(tmp_path / 'stopped')!r}, 'w').close()"
    assert ends(f"{handles}\n{waits}\n{stops}", tmp_path, monkeypatch) == {"link": "it took longer than 1 s"}
    assert (tmp_path / "stopped").exists() == (handler == "exit(1)")


DRIVER = """import sys; from pathlib import Path; from djinn_evaluation.benchmarks.gpu import course
sys.executable = sys.argv[1]; course.Course(folder=Path(sys.argv[2]), size=1.0).run(course.STEPS[:1])"""
HANGS = """import os, subprocess, sys; from pathlib import Path; folder = Path(sys.argv[4])
engine = subprocess.Popen(["sleep", "600"], start_new_session=True, stderr=subprocess.DEVNULL)
(folder / "begun").write_text(f"{os.getpid()} {engine.pid}"); (folder / "begun").rename(folder / "at work")
"""


def gone(pid: int) -> bool:
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def test_what_a_killed_run_left_is_ended_by_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its turn and that one's engine: they would keep the card's memory, and write to the same files."""
    (tmp_path / "python").write_text(f"#!{sys.executable}\n{HANGS}engine.wait()\n")
    (tmp_path / "python").chmod(0o700)
    with subprocess.Popen([sys.executable, "-c", DRIVER, str(tmp_path / "python"), str(tmp_path)]) as driver:
        until((tmp_path / "at work").exists, "the turn's beginning")
        driver.kill()
    left = [int(pid) for pid in (tmp_path / "at work").read_text().split()]
    assert not any(map(gone, left))
    try:
        assert ends(TURN, tmp_path, monkeypatch) == {}
        assert all(map(gone, left))
    finally:
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def test_the_engine_of_a_killed_turn_ends_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert ends(f"{HANGS}os.kill(os.getpid(), 9)", tmp_path, monkeypatch) == {"link": "it ended with status -9"}
    _, engine = (int(pid) for pid in (tmp_path / "at work").read_text().split())
    assert gone(engine)


def test_two_runs_do_not_write_to_one_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = command.folder_of("cpu", small=True, below=tmp_path)
    folder.mkdir()
    monkeypatch.setattr(command, "card_of", lambda device: "cpu")
    with course.alone(folder), pytest.raises(SystemExit, match="wait for its end, or end it"):
        command.main(["link", "--results", str(tmp_path), "--size", "1e-4"])
    with course.alone(folder):
        pass


def test_the_list_says_how_long_each_step_takes(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--list"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert len(said) == len(STEPS) + 1
    assert all(" min" in line for line in said)
    assert all(step.turn is not None or 60 * step.minutes < SECONDS for step in STEPS)
    with pytest.raises(SystemExit):
        command.main(["exactnes"])
    assert "there is no step exactnes; --list says which there are" in capsys.readouterr().err


def test_a_fact_that_nvml_does_not_tell_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> Any:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)

    for name in ("ClockInfo", "CurrPcieLinkGeneration", "CurrPcieLinkWidth", "EnforcedPowerLimit"):
        monkeypatch.setattr(pynvml, f"nvmlDeviceGet{name}", refuse)
    monkeypatch.setattr(pynvml, "nvmlSystemGetDriverVersion", lambda: "580.1")
    assert Card(0).facts() == {
        "driver": "580.1",
        **dict.fromkeys(("sm_clock_mhz", "memory_clock_mhz", "pcie_generation", "pcie_width", "power_limit_watts")),
    }


def figure(**changes: Any) -> dict[str, Any]:
    spread = {"median": 0.9, "low": 0.9, "high": 0.9, "count": 1}
    bar = {"sense": "at least", "value": 0.97}
    return {"name": "f", "unit": "x", "value": spread, "bar": bar, "met": False, "not_run": None, **changes}


def test_the_report_says_of_each_bar_met_missed_or_why_not_measured(tmp_path: Path) -> None:
    figures = [figure(), figure(met=True), figure(value=None, met=None, not_run="no tool"), figure(bar=None, met=None)]
    machine = {"device": "cuda:0", "cpu": "a cpu", "versions": {"torch": "2.13"}}
    written: dict[str, Any] = {"machine": machine, "settings": {"card": {"driver": "580"}}, "figures": figures}
    (tmp_path / "generation.json").write_text(json.dumps(written))
    told = report(tmp_path, {})
    assert "| generation | f: at least 0.97 x | missed by 0.07 x: 0.9 |" in told
    assert "| generation | f: at least 0.97 x | met: 0.9 |" in told
    assert "| generation | f: at least 0.97 x | not measured: no tool |" in told
    assert f"1 met, 1 missed, {1 + len(STEPS) - 1} not measured, 0 so far." in told
    assert "usual size" not in told
    written["settings"]["size"] = 1e-4
    (tmp_path / "generation.json").write_text(json.dumps(written))
    assert "At 0.0001 of the usual size and in few rounds" in report(tmp_path, {})
    written["partial"] = "3 of 5 rounds"
    (tmp_path / "generation.json").write_text(json.dumps(written))
    told = report(tmp_path, {"generation": "it took longer than 480 s"})
    assert "| generation | f: at least 0.97 x | so far met: 0.9 |" in told
    assert "| generation | the rest, after 3 of 5 rounds | not measured: it took longer than 480 s |" in told
    assert step_of("generation") in course.missing(tmp_path, {})


def test_the_file_of_a_cut_turn_says_that_it_is_partial_and_a_whole_one_takes_its_place(tmp_path: Path) -> None:
    found = Result(benchmark="fork", settings={}, figures=())
    here = machine.describe(threads=1, device="cpu")
    path = harness.write(found, here, tmp_path, partial="half")
    assert (json.loads(path.read_text())["partial"], harness.whole(path)) == ("half", False)
    harness.write(found, here, tmp_path)
    assert harness.whole(path)
    assert sorted(tmp_path.iterdir()) == [path]
