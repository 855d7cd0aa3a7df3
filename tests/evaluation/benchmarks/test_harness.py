"""The measuring harness: turns, verdicts, figures that were not measured, and two sides that disagree."""

from __future__ import annotations

import json
import sys
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy
import pytest

from djinn_evaluation import machine
from djinn_evaluation.baselines.asking import BaselineFailed
from djinn_evaluation.benchmarks import __main__ as command
from djinn_evaluation.benchmarks import environments, generating, harness, patching, stops
from djinn_evaluation.benchmarks.harness import (
    Checks,
    Disagreement,
    Figure,
    Result,
    Setting,
    Spread,
    at_least,
    at_most,
    differences,
    take_turns,
    worker,
)
from djinn_evaluation.intervals import ratios
from djinn_jupyter.api.stops import Finished


def test_sides_take_turns_in_changing_order_and_the_warm_up_is_not_kept() -> None:
    order: list[str] = []

    def side(name: str) -> float:
        order.append(name)
        return float(len(order))

    readings = take_turns({"a": lambda: side("a"), "b": lambda: side("b")}, rounds=2, warm_up=1)
    assert "".join(order) == "abbaab"
    assert readings == {"a": [4.0, 5.0], "b": [3.0, 6.0]}


def test_a_ratio_is_taken_round_by_round() -> None:
    assert ratios([2.0, 9.0], [1.0, 3.0]) == [2.0, 3.0]
    assert differences([2.0, 9.0], [1.0, 3.0], 1000) == [1000.0, 6000.0]
    with pytest.raises(ValueError):
        ratios([1.0], [1.0, 2.0])


def test_a_spread_is_median_and_quartiles() -> None:
    assert Spread.of([5.0, 1.0, 3.0, 2.0, 4.0]) == Spread(median=3.0, low=2.0, high=4.0, count=5)
    assert Spread.of([7.0]) == Spread(median=7.0, low=7.0, high=7.0, count=1)


def test_what_was_not_measured_is_none_and_has_no_verdict() -> None:
    figure = Figure(name="copy", unit="GiB/s", value=Spread.of([]), bar=at_least(1.0), not_run="no device")
    assert figure.value is None
    assert figure.met is None
    assert figure.to_json()["value"] is None
    assert str(figure) == "copy: not run (no device)"


@pytest.mark.parametrize(
    ("readings", "met"),
    [
        ([0.8, 0.9, 0.9, 0.9, 0.9, 0.99], True),
        ([1.1, 1.2, 1.2, 1.2, 1.2, 1.3], False),
        ([0.8, 0.9, 0.9, 0.9, 0.9, 1.01], None),  # six readings leave none outside the interval
        ([0.8, 0.9, 0.9, 0.9, 0.99], None),  # too few
    ],
)
def test_a_bar_is_decided_where_the_whole_interval_of_the_median_is_on_one_side(
    readings: list[float], met: bool | None
) -> None:
    bar = harness.Bar(sense="at most", value=1.0, by_interval=True)
    figure = Figure(name="f", unit="ms", value=Spread.of_median(readings), bar=bar)
    assert figure.met is met
    assert str(figure).endswith({True: "met", False: "MISSED", None: "not decided"}[met])
    assert Spread.of_median([*range(1, 10)]) == Spread(median=5, low=2, high=8, count=9)


def test_the_verdict_is_computed_from_figure_and_bar() -> None:
    for value, met in ((0.99, False), (1.0, True)):
        assert Figure(name="f", unit="x", value=Spread.of([value]), bar=at_least(1)).met is met
        assert Figure(name="f", unit="x", value=Spread.of([value]), bar=at_most(0.995)).met is not met


def test_checks_count_agreements_and_refuse_a_disagreement() -> None:
    checks = Checks()
    checks.same("bits", "a", "a")
    with pytest.raises(Disagreement, match="bits"):
        checks.same("bits", "a", "b")
    assert checks.counts == {"bits": 1}


class Answering:
    """A worker that gives the same answer to everything."""

    pid = 0  # none that has a thread

    def __init__(self, **answer: Any) -> None:
        self.answer = {"seconds": 1.0, "decoding": 1.0, **answer}

    def ask(self, verb: str, **arguments: Any) -> dict[str, Any]:
        return self.answer


class Session:
    """A session whose every run makes the same tokens and logits."""

    def run(self, prompt: list[int], *, on_token: Any, **options: Any) -> Any:
        for token in (1, 2):
            on_token(token)
        return SimpleNamespace(tokens=(1, 2))

    def resume(self, **options: Any) -> Any:
        done = object.__new__(Finished)
        done._logits = numpy.zeros(3, dtype=numpy.float32)
        return done

    def back(self) -> None: ...


@contextmanager
def instead(made: Any) -> Iterator[Any]:
    yield made


def generated(monkeypatch: pytest.MonkeyPatch, tokens: list[int]) -> Result:
    """The generation benchmark over a session that makes tokens 1 and 2, and a worker that makes `tokens`."""
    engine = SimpleNamespace(session=lambda name, fresh: Session(), entry=SimpleNamespace(pid=0))
    monkeypatch.setattr(generating, "both_sides", lambda *given: instead((Answering(tokens=tokens), engine)))
    return generating.run_generation(Setting(quick=True, threads=1, home=Path("none")))


def test_generation_fails_when_the_tokens_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    found = generated(monkeypatch, [1, 2])
    assert found.checks == {"new tokens at 64 positions": 4, "new tokens at 1024 positions": 4}
    assert [f.value is None for f in found.figures] == [False, False, True] * 2  # no side said what was computed
    assert all((f.value is None) == (f.not_run is not None) for f in found.figures)
    with pytest.raises(Disagreement, match="new tokens at 64"):
        generated(monkeypatch, [1, 3])


def test_resume_fails_when_the_last_logits_differ() -> None:
    with pytest.raises(Disagreement, match="last logits"):
        stops._against(Session(), Answering(digest="theirs"), "from_layer", 1, 2, Checks())


def test_a_sweep_fails_when_a_patch_differs_in_bits_or_a_tool_computes_something_else() -> None:
    plain = {"digests": ["a", "b"], "rows": [[0.0], [1.0]]}
    patching._compare({"djinn": {"digests": ["a", "b"]}, "plain": plain}, Checks(), {})
    with pytest.raises(Disagreement, match="bit for bit"):
        patching._compare({"djinn": {"digests": ["a", "c"]}, "plain": plain}, Checks(), {})
    far: dict[str, float] = {}
    patching._compare(
        {"djinn": {"digests": ["a", "b"]}, "plain": plain, "t": {"rows": [[0.0], [1.001]]}}, Checks(), far
    )
    assert far["t"] == pytest.approx(0.001)
    with pytest.raises(Disagreement, match="other logits"):
        patching._compare(
            {"djinn": {"digests": ["a", "b"]}, "plain": plain, "t": {"rows": [[0.0], [2.0]]}}, Checks(), {}
        )


@pytest.mark.parametrize(
    ("mode", "ran", "off", "said"),
    [
        ("exact", "exact", 1e-9, "an exact sweep's values"),
        ("fast", "fast", 0.25, "differs from the plain loop by 0.25"),
        ("fast", "exact", 0.0, "ran as exact"),
    ],
)
def test_a_sweep_by_one_request_fails_when_it_is_not_what_it_is_timed_as(
    monkeypatch: pytest.MonkeyPatch, mode: Any, ran: str, off: float, said: str
) -> None:
    prompts = {"clean": [1], "corrupted": [2]}
    grid = SimpleNamespace(mode=mode, values=numpy.array([[0.5]]))
    monkeypatch.setattr(patching.dj, "sweep", lambda *_, **__: grid)
    engine: Any = None
    assert patching._requested(engine, prompts, mode, [[0.5]], Checks(), {}) >= 0
    grid.mode, grid.values = ran, numpy.array([[0.5 + off]])
    with pytest.raises(Disagreement, match=said):
        patching._requested(engine, prompts, mode, [[0.5]], Checks(), {})


def test_an_environment_with_another_version_of_its_tool_is_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environments, "FOLDER", tmp_path)
    with pytest.raises(environments.NotRun, match="`make peers` makes one"):
        environments.peer_python("a_tool")
    monkeypatch.setattr(environments, "TOOLS", {"a_tool": "a-tool==1.0"})
    installs: list[str] = []
    monkeypatch.setattr(environments, "_install", lambda python, tool: installs.append(tool))
    venv.create(tmp_path / "a-tool")
    (packages,) = (tmp_path / "a-tool").glob("lib/python*/site-packages")
    place = packages / "a_tool.dist-info"
    place.mkdir()
    for version, missing in (("0.9", ["a_tool"]), ("1.0", [])):
        (place / "METADATA").write_text(f"Metadata-Version: 2.1\nName: a-tool\nVersion: {version}\n")
        installs.clear()
        assert environments.python_of("a_tool") == tmp_path / "a-tool" / "bin" / "python"
        assert environments.peer_python("a_tool").exists()
        assert installs == missing


def test_a_side_that_did_not_start_is_not_run_with_the_reason() -> None:
    seconds = {"djinn": [1.0], "exact": [1.0], "fast": [0.5], "plain": [2.0]}
    figures = {f.name: f for f in patching._figures(seconds, {"nnsight": "no network"})}
    assert figures["residual patch sweep, of plain"].met is True
    absent = figures["residual patch sweep, of nnsight"]
    assert (absent.value, absent.met, absent.not_run) == (None, None, "no network")


def test_a_worker_that_fails_says_why() -> None:
    with worker("absent") as gone, pytest.raises(BaselineFailed, match=r"benchmarks\.workers\.absent"):
        gone.ask("load")


def benchmark_that(run: Any, monkeypatch: pytest.MonkeyPatch, folder: Path, *options: str) -> int:
    module = ModuleType("djinn_evaluation.benchmarks.invented")
    module.run_invented = run
    monkeypatch.setitem(sys.modules, "djinn_evaluation.benchmarks.invented", module)
    monkeypatch.setitem(harness.MODULE_OF, "invented", "invented")
    monkeypatch.setattr(harness, "HERE", folder)
    monkeypatch.setattr(sys, "argv", ["benchmarks", "invented", *options])
    for name in ("JUPYTER_RUNTIME_DIR", "JUPYTER_DATA_DIR", "JUPYTER_CONFIG_DIR", "IPYTHONDIR", "HF_HOME"):
        monkeypatch.setenv(name, "")  # so that what the command sets is taken back
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    return command.main()


def test_a_result_has_machine_versions_settings_and_figures(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    figure = Figure(name="f", unit="x", value=Spread.of([1.0]), bar=at_least(0.5))
    found = Result(benchmark="invented", settings={"rounds": 1}, figures=(figure,), checks={"bits": 3})

    def fails(setting: object) -> Result:
        raise Disagreement("bits")

    assert benchmark_that(fails, monkeypatch, tmp_path) == 1
    assert list(tmp_path.iterdir()) == [], "one that fails writes nothing"
    assert benchmark_that(lambda setting: found, monkeypatch, tmp_path) == 0
    check_schema(json.loads((tmp_path / "invented.json").read_text()))


@pytest.mark.parametrize("given", [True, False], ids=["given", "installed"])
def test_results_go_where_they_are_asked_for_and_from_an_installed_package_below_the_current_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str], given: bool
) -> None:
    package, here = tmp_path / "site-packages", tmp_path / "here"
    package.mkdir()
    here.mkdir()
    monkeypatch.chdir(here)
    monkeypatch.setattr(harness, "EVALUATION", package)
    found = Result(benchmark="invented", settings={}, figures=(), checks={})
    folder = here / "mine" if given else here / "djinn-results" / "benchmarks"
    options = ["--results", str(folder)] if given else []
    assert benchmark_that(lambda setting: found, monkeypatch, package, *options) == 0
    assert [path.name for path in folder.iterdir()] == ["invented.json"]
    assert list(package.iterdir()) == []
    assert f"Results go to {folder}\n" in capsys.readouterr().out


@pytest.mark.parametrize("path", sorted(harness.HERE.glob("*.json")), ids=lambda path: path.stem)
def test_a_committed_result_is_whole_and_its_verdicts_follow_from_its_figures(path: Path) -> None:
    check_schema(json.loads(path.read_text()))


def check_schema(found: dict[str, Any]) -> None:
    assert set(found) == {"benchmark", "machine", "settings", "checks", "figures"}
    assert set(found["machine"]) == set(machine.Machine.__dataclass_fields__)
    assert found["machine"]["ended"] is not None
    assert {"torch", "transformers", "djinn-jupyter"} <= set(found["machine"]["versions"])
    assert found["figures"]
    for one in found["figures"]:
        assert set(one) == {*Figure.__dataclass_fields__, "met"}
        value, bar = one["value"], one["bar"]
        if value is None:
            assert one["met"] is None
            assert one["not_run"]
            continue
        assert value["low"] <= value["median"] <= value["high"]
        assert value["count"] >= 1
        assert one["met"] is (None if bar is None else harness.Bar(**bar).verdict(Spread(**value)))
