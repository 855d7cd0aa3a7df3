"""The behaviours that today's tests prove and the names that a user has, one claim a line, and what has become of each
in a later tree.

    python -m tests.census.behaviours           what has become of each claim: kept, moved, accounted for or lost
    python -m tests.census.behaviours --write   write behaviours.txt anew, from the tests of this tree

A claim is a test's name, read: `test_a_page_is_freed` is "a page is freed", below the test's file. A test of another
file that has the same name proves it as well. Names of magics, options, verbs and messages are those of the reference
pages, which the code writes; those of errors are classes. For any other, `accounted.txt` has a line with one of

    tests/file.py: the claim -> dropped: the reason
    tests/file.py: the claim -> now proven by: tests/file.py::test_name
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

HERE: Final = Path(__file__).parent
ROOT: Final = HERE.parents[1]
LIST: Final = HERE / "behaviours.txt"
ACCOUNTED: Final = HERE / "accounted.txt"
DROPPED: Final = "dropped: "
PROVEN_BY: Final = "now proven by: "

# The first that fits decides: by words of the claim, then by the start of the file's name.
BY_WORDS: Final = {
    "Error sentences and refusals": r"refus|cannot|in a sentence|one sentence|error|wrong|unknown|a typo|says why",
    "Bits": r"\bbits?\b|bitwise|bit for bit|\bexact\b|exactly|the same values|the same tokens|the same numbers",
}
NAMES: Final = (
    "docs/reference/magics.md",
    "docs/reference/python.md",
    "docs/reference/dap.md",
    "djinn_jupyter/errors.py",
)
BY_FILE: Final = {
    "Names: magics, options, verbs, commands, errors": "docs djinn_jupyter",
    "Magics and their options": "tests/magics tests/kernel",
    "Results: kept, made again, tables": "tests/client/test_re tests/client/test_kee tests/client/test_kep "
    "tests/client/test_tab tests/client/test_written tests/client/test_every",
    "Verbs of Python": "tests/client",
    "Messages of the debugger": "tests/wire tests/engine/requests",
    "Editors": "tests/dap",
    "Cards, sidebar and browser": "tests/widgets tests/browser tests/server tests/sidebar labextension",
    "Checkpoints, journal, recovery": "tests/engine/persistence",
    "Weights: resident, streamed, asleep": "tests/engine/memory/weights",
    "Memory: pages, tiers, who is on the device": "tests/engine/memory tests/engine/residency",
    "Models: points, loading, families": "tests/engine/model tests/engine/startup tests/engine/parallel",
    "Methods": "tests/engine/sweeps tests/engine/gradients tests/engine/collecting tests/engine/methods",
    "Modules and adapters": "tests/engine/added tests/engine/adapters tests/module_files tests/training",
    "Runs, stops, edits, ways back": "tests/engine",
    "Processes, lines and persons": "tests/process",
    "Other tools": "tests/integrations",
    "Evaluation": "tests/evaluation tests/faults",
    "House, demo, notebooks": "tests notebooks",
}
_NAMED: Final = re.compile(
    r"^(?P<level>#{2,4}) (?P<of>.+)$|^\| `(?P<row>[^`]+)` \||^    (?P<given>\w+)(?::|=|,$)|^(?P<listed>`\w+`,.*)$",
    re.MULTILINE,
)
_JEST: Final = re.compile(r"^\s*(?:test|it)(?:\.each\(.*?\))?\(\s*(['\"`])(?P<name>.+?)\1,", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True, slots=True, order=True)
class Claim:
    """`more` is the first sentence of the test's docstring."""

    file: str
    words: str
    more: str = ""

    @property
    def key(self) -> str:
        return f"{self.file}: {self.words}"

    @property
    def subject(self) -> str:
        for subject, pattern in BY_WORDS.items():
            if self.file not in NAMES and re.search(pattern, self.words):
                return subject
        return next(subject for subject, starts in BY_FILE.items() if self.file.startswith(tuple(starts.split())))


def claims(root: Path = ROOT) -> Iterator[Claim]:
    """Yield the names that a user has, and what each test of the tree claims, the cases of one test together: Python's,
    the sidebar's, notebooks."""
    for name in NAMES:
        text = (root / name).read_text()
        yield from _errors(name, text) if name.endswith(".py") else _named(name, text)
    for path in sorted((root / "tests").rglob("test_*.py")):
        yield from _claims_of(path.relative_to(root).as_posix(), ast.parse(path.read_text()).body)
    for path in sorted((root / "labextension" / "test").rglob("*.test.ts*")):
        names = dict.fromkeys(found["name"] for found in _JEST.finditer(path.read_text()))
        yield from (Claim(path.relative_to(root).as_posix(), " ".join(name.split())) for name in names)
    for path in sorted((root / "notebooks").glob("*.ipynb")):
        yield Claim(path.relative_to(root).as_posix(), "every cell has the output that is saved")


def _named(page: str, text: str) -> Iterator[Claim]:
    """Yield the headings of a page, each behind those that it is below, then its rows, lists and parameters."""
    names: dict[str, None] = {}
    of: list[str] = []
    for found in _NAMED.finditer(text):
        if found["of"]:
            of[len(found["level"]) - 2 :] = [found["of"]]
        listed = re.findall(r"\w+", found["listed"] or "") or [found["row"] or found["given"] or ""]
        names |= {" ".join(filter(None, (*of, name))).replace("|", "/"): None for name in listed}
    yield from (Claim(page, name) for name in names)


def _errors(file: str, text: str) -> Iterator[Claim]:
    kinds = (node for node in ast.parse(text).body if isinstance(node, ast.ClassDef))
    yield from (Claim(file, f"{node.name} is a {', '.join(map(ast.unparse, node.bases))}") for node in kinds)


def _claims_of(file: str, body: Iterable[ast.stmt], owner: str = "") -> Iterator[Claim]:
    for node in body:
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) if name.startswith("test_"):
                yield Claim(file, owner + _read(name), _first_sentence(ast.get_docstring(node)))
            case ast.ClassDef(name=name) if name.startswith("Test"):
                yield from _claims_of(file, node.body, f"{name}: ")
            case ast.If():
                yield from _claims_of(file, node.body, owner)
            case ast.Assign(targets=[ast.Name(id=name)]) if name.startswith("Test"):
                yield Claim(file, f"{name}: the rules of {ast.unparse(node.value).partition('.')[0]} hold")


def _read(name: str) -> str:
    return name.removeprefix("test_").replace("_", " ")


def _first_sentence(text: str | None) -> str:
    return "" if text is None else re.split(r"(?<=[.;])\s", " ".join(text.split()))[0]


def written(found: Iterable[Claim]) -> str:
    """Return the list as text: subjects in order, in each its files, below each its claims."""
    by_subject: dict[str, dict[str, list[Claim]]] = {}
    for claim in found:
        by_subject.setdefault(claim.subject, {}).setdefault(claim.file, []).append(claim)
    lines = []
    for subject in (*BY_FILE, *BY_WORDS):
        lines.append(f"\n# {subject}\n")
        for file, its in sorted(by_subject.get(subject, {}).items()):
            lines.append(f"\n{file}\n")
            lines += [f"- {one.words}{f' | {one.more}' if one.more else ''}\n" for one in its]
    return "".join(lines).lstrip()


def read(text: str) -> Iterator[Claim]:
    """Yield the claims of a list."""
    file = ""
    for line in filter(None, text.splitlines()):
        if line.startswith("- "):
            words, _, more = line.removeprefix("- ").partition(" | ")
            yield Claim(file, words, more)
        elif not line.startswith("# "):
            file = line


@dataclass(frozen=True, slots=True)
class Found:
    """What has become of the claims, each a list of keys. `stale` are lines of `accounted.txt` that do not help."""

    kept: list[str]
    moved: list[str]
    accounted: list[str]
    lost: list[str]
    stale: list[str]


def compare(listed: Iterable[Claim], present: Iterable[Claim], accounted: Mapping[str, str]) -> Found:
    """Return what has become of the claims of a list in a tree whose tests claim `present`."""
    now = list(present)
    keys, words = {one.key for one in now}, {one.words for one in now}
    names = {f"{one.file}::test_{one.words.replace(' ', '_')}" for one in now} | {one.key for one in now}
    helps = {key: how for key, how in accounted.items() if _helps(how, names)}
    found = Found([], [], [], [], sorted(accounted.keys() - helps.keys()))
    for claim in listed:
        if claim.key in keys:
            found.kept.append(claim.key)
        elif claim.words in words:
            found.moved.append(claim.key)
        else:
            (found.accounted if claim.key in helps else found.lost).append(claim.key)
    return found


def _helps(how: str, names: set[str]) -> bool:
    if how.startswith(PROVEN_BY):
        return all(one in names for one in how.removeprefix(PROVEN_BY).split(", "))
    return len(how.removeprefix(DROPPED)) > 10 if how.startswith(DROPPED) else False


def accounts(text: str) -> dict[str, str]:
    """Return the lines of `accounted.txt`: the claim, and what has become of it."""
    lines = (line.rpartition(" -> ") for line in text.splitlines() if line and not line.startswith("#"))
    return {key: how for key, _, how in lines}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write the list anew, from the tests of this tree")
    if parser.parse_args().write:
        LIST.write_text(written(claims()))
        return 0
    found = compare(read(LIST.read_text()), claims(), accounts(ACCOUNTED.read_text()))
    counts = f"{len(found.kept)} kept, {len(found.moved)} moved, {len(found.accounted)} accounted for"
    print(f"{counts}, {len(found.lost)} lost, {len(found.stale)} lines of {ACCOUNTED.name} that say nothing.")
    for word, keys in (("lost", found.lost), ("says nothing", found.stale)):
        print("".join(f"{word}: {key}\n" for key in keys), end="")
    return 1 if found.lost or found.stale else 0


if __name__ == "__main__":
    sys.exit(main())
