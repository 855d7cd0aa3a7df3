"""The step of the tests that failed on a card once: each has an outcome, and its list names tests that are there."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from djinn_evaluation import CHECKOUT
from djinn_evaluation.benchmarks.gpu import mended
from djinn_evaluation.benchmarks.gpu.__main__ import SIZE_WITHOUT_A_GPU
from djinn_evaluation.benchmarks.gpu.steps import TESTS, Kept, Unfinished
from djinn_evaluation.benchmarks.harness import Setting

FAILING = """
import pytest


@pytest.mark.parametrize("n", ["a", "b c"])
def test_passes(n):
    pass


def test_fails():
    assert False


@pytest.fixture
def broken():
    yield
    raise RuntimeError("in its end")


def test_breaks(broken):
    pass


def test_passes_too():
    pass
"""


@pytest.fixture
def failing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Setting:
    """A checkout whose tests failed on a card, with one that fails still and one that breaks at its end."""
    (tmp_path / "test_it.py").write_text(FAILING)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n  slow\n  alone\n")
    (tmp_path / "mended.txt").write_text("# Why.\n\ntest_it.py\n")
    monkeypatch.setattr(mended, "CHECKOUT", tmp_path)
    monkeypatch.setattr(mended, "LIST", tmp_path / "mended.txt")
    return Setting(quick=True, threads=1, home=tmp_path, results=tmp_path, factor=SIZE_WITHOUT_A_GPU)


@pytest.mark.processes
def test_each_mended_test_has_an_outcome_and_one_that_fails_hides_no_other(failing: Setting) -> None:
    kept: list[str] = []
    found = mended.run_mended(replace(failing, so_far=lambda figures, how_far: kept.append(how_far)))
    assert kept[-1] == "5 tests"
    assert found.settings["not_passed"] == ["test_it.py::test_fails", "test_it.py::test_breaks"]
    assert found.settings["outcomes"] == {"PASSED": 3, "FAILED": 1, "ERROR": 1}
    (figure,) = found.figures
    assert figure.value is not None
    assert (figure.value.median, figure.met) == (0.6, False)


@pytest.mark.processes
def test_mended_tests_that_were_cut_go_on_where_they_were(failing: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(mended, "START", 1e9)
        with pytest.raises(Unfinished, match="0 tests"):
            mended.run_mended(failing)
    kept = Kept.of("mended", failing, TESTS)
    for name in ("test_passes[a]", "test_passes[b c]", "test_fails"):
        kept.add(f"test_it.py::{name}", "PASSED")
    assert mended.run_mended(failing).settings["outcomes"] == {"PASSED": 4, "ERROR": 1}


def test_the_list_of_mended_tests_names_tests_that_are_there() -> None:
    names = mended.selected(mended.LIST.read_text())
    assert len(names) == len({*names}) > 30
    for name in names:
        file, _, test = name.partition("::")
        source = (CHECKOUT / file).read_text()
        assert f"def {test.partition('[')[0]}(" in source if test else "def test_" in source, name
