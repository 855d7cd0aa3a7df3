"""The steps of `make gpu`, in the smallest profile on the device of the run, and the report that is made of them."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pynvml
import pytest

from benchmarks.gpu import __main__ as command
from benchmarks.gpu import exactness, kept, link
from benchmarks.gpu.report import report
from benchmarks.gpu.steps import NOT_BUILT, STEPS, Step, Unfinished
from benchmarks.setting import Setting
from djinn_jupyter.experiments.nvml import Card

ONE = (("llama",), ("bfloat16",), ("eager",))


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Setting:
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setattr(exactness, "SMALL", ONE)
    return Setting(quick=True, threads=1, home=tmp_path, results=tmp_path)


def test_the_exactness_step_decides_each_case_once(small: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    found = exactness.run(small)
    assert [(figure.met, figure.value.median if figure.value else None) for figure in found.figures] == [(True, 1.0)]
    decided = exactness.decide
    monkeypatch.setattr(exactness, "decide", lambda case: pytest.fail("decided already"))
    assert exactness.run(small).figures == found.figures
    monkeypatch.setattr(kept, "depends_on", lambda: "an engine that was mended")
    again: list[exactness.Case] = []
    monkeypatch.setattr(exactness, "decide", lambda case: again.append(case) or decided(case))
    exactness.run(small)
    assert len(again) == 1


def test_a_case_whose_bits_differ_is_named_and_misses_the_bar(small: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(exactness.DEEDS, "a fork", lambda desk: "other bits")
    found = exactness.run(small)
    assert found.figures[0].met is False
    assert [one["why"] for one in found.settings["differ"]] == ["a fork"]


def test_a_step_whose_time_is_over_says_how_far_it_came(small: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exactness, "SECONDS", 0)
    with pytest.raises(Unfinished, match="0 of 1 cases"):
        exactness.run(small)


def test_the_link_step_copies_each_way_and_compares(small: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link, "findings", lambda: [])
    found = link.run(small)
    assert [figure.name for figure in found.figures] == [f"copies {way}" for way in link.WAYS]
    assert all(figure.value is not None and figure.value.low > 0 for figure in found.figures)


def ends(program: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Return the reasons why a step has no result when its process runs this program."""
    (folder / "python").write_text(f"#!{sys.executable}\n{program}\n")
    (folder / "python").chmod(0o700)
    monkeypatch.setattr(command.sys, "executable", str(folder / "python"))
    return command.run([Step(name="link", learns="", module="")], folder, size=0.1)


def test_a_step_that_fails_is_told_with_its_last_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reasons = ends("raise SystemExit('no such card')", tmp_path, monkeypatch)
    assert reasons == {"link": "no such card"}
    assert "| link | all of it | not measured: no such card |" in report(tmp_path, reasons)


def test_a_step_goes_on_until_it_is_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    turns = f"from pathlib import Path; p = Path({str(tmp_path / 'turn')!r}); n = p.exists(); p.touch()"
    assert ends(f"{turns}; raise SystemExit(0 if n else 3)", tmp_path, monkeypatch) == {}


def test_a_step_that_comes_no_further_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reasons = ends("import sys; print('3 of 5 parts', file=sys.stderr); sys.exit(3)", tmp_path, monkeypatch)
    assert reasons == {"link": f"a turn of {command.SECONDS} s came no further: 3 of 5 parts"}


def test_cases_after_one_that_ended_cudas_context_are_for_another_process(
    small: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    why = "RuntimeError: CUDA error: device-side assert triggered"
    monkeypatch.setattr(exactness, "decide", lambda case: exactness.Verdict(case=case, outcome="not computed", why=why))
    with pytest.raises(Unfinished, match="1 of 1 cases, the last of which ended CUDA's context"):
        exactness.run(small)
    assert exactness.run(small).checks == {"cases not computed": 1}


@pytest.mark.parametrize("handler", ["exit(1)", "None"], ids=["that stops its engines", "that hangs"])
def test_a_step_that_takes_too_long_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, handler: str) -> None:
    """A signal ends it, at which it stops its engines; force ends it where it goes on."""
    monkeypatch.setattr(command, "SECONDS", 2)
    monkeypatch.setattr(command, "GRACE_SECONDS", 2)
    waits = f"import signal, time; signal.signal(signal.SIGTERM, lambda *_: {handler})\ntry: time.sleep(60)"
    stops = f"finally: open({str(tmp_path / 'stopped')!r}, 'w').close()"
    assert ends(f"{waits}\n{stops}", tmp_path, monkeypatch) == {"link": "it took longer than 2 s"}
    assert (tmp_path / "stopped").exists() == (handler == "exit(1)")


def test_a_step_that_is_not_there_is_refused_in_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        command.main(["exactnes"])
    assert "there is no step exactnes; --list says which there are" in capsys.readouterr().err


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
    assert f"1 met, 1 missed, {1 + len(STEPS) - 1 + len(NOT_BUILT)} not measured." in told
    assert all(f"| {name} |" in told for name in NOT_BUILT)
    assert "usual size" not in told
    written["settings"]["size"] = 1e-4
    (tmp_path / "generation.json").write_text(json.dumps(written))
    assert "At 0.0001 of the usual size and in few rounds" in report(tmp_path, {})


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
