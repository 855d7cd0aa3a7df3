"""docs/gpu.md lists every module with code that speaks of CUDA, and no other, and says of each how it was tried.

It also lists the claims, the steps with their seconds, and the tests that only a card decides."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from djinn_evaluation.benchmarks.gpu.steps import STEPS, planned
from djinn_evaluation.claims.table import CLAIMS

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "gpu.md").read_text()
SPEAKS = re.compile(r"cuda|Cuda|CUDA_|pynvml")
SAID = ("card", "double", "read")  # of each module: how its lines have been tried


def speaks_of_cuda(source: str) -> bool:
    """Return whether code names CUDA: a name, an attribute or a string that is no docstring."""
    tree = ast.parse(source)
    described = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    return any(SPEAKS.search(word) for node in ast.walk(tree) if id(node) not in described for word in words_of(node))


def words_of(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.Name(id=word) | ast.Attribute(attr=word) | ast.Constant(value=str(word)) | ast.alias(name=word):
            yield word
        case ast.arg(arg=word) | ast.FunctionDef(name=word) | ast.ClassDef(name=word):
            yield word
        case ast.keyword(arg=str(word)):
            yield word


def modules() -> Iterator[str]:
    for folder in ("djinn_jupyter", "evaluation"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            name = str(path.relative_to(ROOT))
            if "/." not in name and SPEAKS.search(source := path.read_text()) and speaks_of_cuda(source):
                yield name


def rows() -> list[tuple[str, str]]:
    """Return the page's modules, of which one may have several rows, with the last cell of each."""
    return re.findall(r"^\| `([\w/.]+\.py)` \|.*\| ([^|]+) \|$", PAGE, re.MULTILINE)


def test_the_page_lists_every_module_that_speaks_of_cuda_and_no_other() -> None:
    assert {name for name, _ in rows()} == set(modules())


def test_the_page_says_of_each_module_how_it_was_tried() -> None:
    assert [name for name, said in rows() if said.split(":")[0].strip() not in SAID] == []


def test_the_page_lists_the_claims_that_only_a_card_decides_with_their_runs() -> None:
    found = re.findall(
        r"^\| (\d+)\b[^|]*\| ([\w`, ]+) \| (?:evaluation|pressure, pressure-again) \|$", PAGE, re.MULTILINE
    )
    listed = {int(number): {*re.findall(r"`(\w+)`", runs)} for number, runs in found}
    of_a_card = [claim for claim in CLAIMS if claim.needs or claim.told_by]
    assert listed == {
        claim.number: {run for path in claim.reads.values() for run in path.partition("/")[0].split("+")}
        for claim in of_a_card
    }


def test_the_page_lists_each_step_with_its_seconds() -> None:
    found = re.findall(r"^\| ([\w-]+) \| ([\d,]+) \| (run \d|left|no) \|$", PAGE, re.MULTILINE)
    runs, left = planned()
    quarter = {step.name: f"run {number}" for number, steps in enumerate(runs, 1) for step in steps}
    quarter |= {step.name: "left" for step in left}
    expected = [(step.name, f"{round(60 * step.minutes):,}", quarter.get(step.name, "no")) for step in STEPS]
    assert found == expected


def test_the_page_lists_the_tests_that_need_a_card() -> None:
    there = {
        name
        for path in (ROOT / "tests").rglob("test_*.py")
        for name in re.findall(r"^ *(?:async )?def (test_\w+_on_a_gpu)\(", path.read_text(), re.MULTILINE)
    }
    assert {*re.findall(r"^\| `(test_\w+_on_a_gpu)`", PAGE, re.MULTILINE)} == there


def test_a_docstring_or_comment_is_no_code() -> None:
    assert not speaks_of_cuda('"""On CUDA."""\n# torch.cuda\ndef f():\n    "cuda"\n    return 1\n')
    assert speaks_of_cuda("torch.cuda.synchronize()")
    assert speaks_of_cuda("x = device.type == 'cuda'")
    assert speaks_of_cuda("from torch import cuda")
