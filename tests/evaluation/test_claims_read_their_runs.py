"""Claims are judged on the runs that are there, and the committed answers are those of their files."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import djinn_jupyter.cli.main as cli
from djinn_evaluation import machine as commit
from djinn_evaluation import report
from djinn_evaluation.claims.judging import FieldSource, Results, StatedClaim, StatedSize, answers
from djinn_evaluation.claims.table import CLAIMS
from tests.evaluation.test_claims import HOLDING, NEVER_HOLDS

CODE = commit.present_code()
OTHER = {**CODE, "commit": "0" * 40}
BAD: dict[str, dict[str, Any]] = {
    "failed": {"status": "failed"},
    "error": {"status": "error", "error": "It broke."},
    "partial": {"status": "partial"},
    "not run": {"status": "not_run"},
    "cut": {"interrupted": True},
    "with a failure": {"failures": ["A stop ran all layers."]},
    "not passed": {"passed": False},
    "untold": {"status": None},
    "of no code": {"code": None},
    "of another commit": {"code": OTHER},
    "of another version": {"code": {**CODE, "versions": {"djinn-jupyter": "0.0.9"}}},
    "of other changes": {"code": {**CODE, "clean": False, "changes": "0" * 16}},
}
RIGHT_WHERE_REFUSED = ("error",)
each = pytest.mark.parametrize("claim", [c for c in CLAIMS if c.number != 15], ids=lambda c: f"claim-{c.number}")


def places(claim: StatedClaim) -> Iterator[tuple[str, str]]:
    """Yield run and file of all that a claim reads."""
    for spelled in claim.reads.values():
        for part in spelled.split(" & "):
            source = FieldSource.of(part)
            yield from ((run, source.file) for run in source.runs)


def put(folder: Path, run: str, file: str, fields: dict[str, Any]) -> None:
    (folder / run).mkdir(exist_ok=True)
    (folder / run / file).write_text(json.dumps(fields))


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[StatedClaim], Results]:
    """The runs of a claim with which it holds, of any size; the values are planted and the files are real."""

    def made(claim: StatedClaim) -> Results:
        monkeypatch.setattr(Results, "read", lambda self, spelled: held[spelled])
        monkeypatch.setattr(StatedSize, "missed", lambda self, results, value: "")
        held = {spelled: HOLDING[claim.number][name] for name, spelled in claim.reads.items()}
        for run, file in places(claim):
            put(tmp_path, run, file, {"status": "error" if claim.refused else "success", "code": CODE})
        return Results(folder=tmp_path, code=CODE)

    return made


@each
def test_a_run_that_failed_or_is_of_other_code_decides_nothing(
    claim: StatedClaim, results: Callable[[StatedClaim], Results]
) -> None:
    found = results(claim)
    assert claim.judged(found).verdict == ("undecided" if claim.number in NEVER_HOLDS else "holds"), claim.number
    for run, file in dict.fromkeys(places(claim)):
        whole = json.loads((found.folder / run / file).read_text())
        for name, planted in BAD.items():
            if claim.refused and name in RIGHT_WHERE_REFUSED:
                continue
            put(found.folder, run, file, {**whole, **planted})
            judged = claim.judged(found)
            assert (judged.verdict, judged.value) == ("undecided", None), (run, name)
            assert judged.reason.startswith(f"{run} "), (judged.reason, name)
        put(found.folder, run, file, whole)


@each
def test_a_run_that_failed_elsewhere_or_left_an_earlier_file_decides_nothing(
    claim: StatedClaim, results: Callable[[StatedClaim], Results]
) -> None:
    """Its verdict is in runs.json alone."""
    found = results(claim)
    for run, _ in places(claim):
        for verdict in ("FAIL", "ERROR It does not fit.", "NOT RUN serve it with --device-memory 1"):
            (found.folder / "runs.json").write_text(json.dumps({"runs": {run: {"verdict": verdict}}}))
            judged = claim.judged(found)
            assert (judged.verdict, judged.reason) == ("undecided", f"{run} did not pass: {verdict}")
        (found.folder / "runs.json").write_text(json.dumps({"runs": {run: {"verdict": "UNDECIDED"}}}))
        assert claim.judged(found).verdict != "undecided" or claim.number in NEVER_HOLDS


@each
def test_a_claim_that_needs_a_gpu_reads_the_device_of_each_of_its_runs(claim: StatedClaim) -> None:
    if "device" in claim.reads:
        devices = {part.partition(": ")[0] for part in claim.reads["device"].split(" & ")}
        read = {part.partition(": ")[0] for spelled in claim.reads.values() for part in spelled.split(" & ")}
        assert devices == read
        assert claim.verdict_on({**HOLDING[claim.number], "device": ["cuda:0", "cpu"]}).verdict == "undecided"


def test_code_is_the_same_where_neither_folder_differs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A commit of documents or of results is no other code; outside of a checkout the version alone decides."""

    def git(*arguments: str) -> str:
        done = subprocess.run(["git", "-C", str(tmp_path), *arguments], check=True, capture_output=True, text=True)
        return done.stdout.strip()

    def committed(path: str, text: str) -> dict[str, Any]:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
        git("add", "--all")
        git("-c", "user.name=a", "-c", "user.email=a@b", "commit", "--quiet", "--message", path)
        return commit.present_code()

    monkeypatch.setattr(commit, "CHECKOUT", tmp_path)
    outside = commit.present_code()
    assert (outside["commit"], outside["clean"], bool(outside["versions"]["djinn-jupyter"])) == (None, None, True)
    git("init", "--quiet")
    committed("djinn_jupyter/one.py", "1")
    first = committed("evaluation/djinn_evaluation/two.py", "2")
    assert (first["commit"], first["clean"]) == (git("rev-parse", "HEAD"), True)
    documents = committed("docs/page.md", "3")
    assert documents["commit"] != first["commit"]
    assert commit.same_code(first, documents)
    (tmp_path / "djinn_jupyter" / "one.py").write_text("4")
    changed = commit.present_code()
    (tmp_path / "djinn_jupyter" / "one.py").write_text("5")
    assert (
        changed["clean"],
        commit.same_code(documents, changed),
        commit.same_code(changed, commit.present_code()),
    ) == (
        False,
        False,
        False,
    )
    git("checkout", "--quiet", ".")
    (tmp_path / "djinn_jupyter" / "new.py").write_text("6")
    assert not commit.same_code(documents, commit.present_code())
    assert not commit.same_code(documents, committed("djinn_jupyter/one.py", "7"))
    assert not commit.same_code(documents, OTHER)
    assert commit.same_code(documents, outside)
    assert not commit.same_code(outside, {**outside, "versions": {"djinn-jupyter": "0.0.9"}})


def test_claims_are_judged_on_runs_that_are_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As `all` judges them: the runs and their machine stay told, and the exit status is theirs."""
    put(tmp_path, "whitebox", "djinn_breakpoint_results.json", {"status": "failed", "failures": ["So."], "code": CODE})
    machine, runs = {"cores": "2"}, {"whitebox": {"verdict": "FAIL", "seconds": 1.0}}
    (tmp_path / "claims.json").write_text(json.dumps({"profile": "small", "machine": machine, "runs": {}}))
    (tmp_path / "runs.json").write_text(json.dumps({"profile": "small", "complete": True, "runs": runs}))
    assert cli.main(["experiment", "claims", "--results", str(tmp_path)]) == 1
    found = json.loads((tmp_path / "claims.json").read_text())
    assert (found["machine"], found["runs"], found["profile"]) == (machine, runs, "small")
    assert found["claims"][0]["reason"] == "whitebox failed: So."
    assert "1. 100.00 %" in dict(report.scalars(found)).__str__()
    assert "whitebox            FAIL" in capsys.readouterr().out
    assert (tmp_path / "report.md").is_file()
    (tmp_path / "runs.json").unlink()
    (tmp_path / "claims.json").unlink()
    assert cli.main(["experiment", "claims", "--results", str(tmp_path)]) == 0


def test_a_folder_without_runs_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["experiment", "claims", "--results", str(tmp_path / "none")]) == 1
    assert "has no result of a run; name the folder of `djinn experiment all`." in capsys.readouterr().err
    assert not (tmp_path / "none").exists()


FOLDER = Path(__file__).parents[2] / "evaluation" / "results"
SMALL = FOLDER / "small"


@pytest.fixture(scope="module")
def committed() -> Any:
    return json.loads((SMALL / "claims.json").read_text())


def test_the_answers_are_those_of_the_files(committed: Any) -> None:
    judged = json.loads(json.dumps(answers(Results(folder=SMALL, code=committed.get("code")), CLAIMS)))
    for told, found in zip(committed["claims"], judged["claims"], strict=True):
        assert told == found, told["claim"]
    assert committed["summary"] == judged["summary"]


def test_what_is_refuted_says_why_and_what_is_undecided_what_it_takes(committed: Any) -> None:
    for claim in committed["claims"]:
        assert claim["verdict"] == "holds" or claim["reason"], claim["claim"]
        assert claim["verdict"] != "undecided" or claim["needs"] or "there is no run" in claim["reason"], claim["claim"]
        assert claim["verdict"] != "refuted" or claim["repetitions"] != 1, claim["claim"]


def test_the_page_counts_as_the_file_does(committed: Any) -> None:
    page = " ".join((FOLDER / "README.md").read_text().split())
    told = re.search(r"(\d+) hold, (\d+) hold at this size, (\d+) are refuted, (\d+) are undecided", page)
    assert tuple(map(int, told.groups())) == tuple(committed["summary"].values())
