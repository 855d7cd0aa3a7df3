"""`make release` refuses what cannot be released, and writes the version wherever it stands."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from djinn_evaluation.benchmarks.installing import outside
from djinn_jupyter._version import __version__
from tests.house.repository import ROOT

sys.path.insert(0, str(ROOT / "distribution"))
import release

WRITTEN = (*release.VERSIONED, release.CHANGELOG, "labextension/package.json", "labextension/package-lock.json")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A repository with the files that a release writes."""
    for name in WRITTEN:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    changelog = tmp_path / release.CHANGELOG
    if not release.UNRELEASED.search(changelog.read_text()):  # the commit of a release
        changelog.write_text(f"## [Unreleased]\n\n{changelog.read_text()}")
    for words in (["init", "--quiet"], ["config", "user.name", "A"], ["config", "user.email", "a@example.org"]):
        release.run(tmp_path, "git", *words)
    commit(tmp_path)
    return tmp_path


def outer() -> dict[str, str]:
    """Return the environment of a `make` that is not a part of the present one."""
    return {name: value for name, value in outside().items() if name not in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL")}


def commit(tree: Path) -> None:
    release.run(tree, "git", "add", "--all")
    release.run(tree, "git", "commit", "--quiet", "--message", "as it was")


def dirty(tree: Path) -> None:
    (tree / "new.txt").write_text("new")


def tagged(version: str) -> Callable[[Path], object]:
    return lambda tree: release.run(tree, "git", "tag", f"v{version}")


def without_changes(tree: Path) -> None:
    changelog = tree / release.CHANGELOG
    changelog.write_text(release.UNRELEASED.sub("## [0.0.1] - 2026-01-01", changelog.read_text()))
    commit(tree)


def test_the_version_of_the_tree_and_a_newer_one_can_be_released(tree: Path) -> None:
    for version in (__version__, "999.0.0"):
        release.require_releasable(tree, version)


@pytest.mark.parametrize(
    ("version", "spoil", "reason"),
    [
        ("", lambda tree: None, "'' is no version: write VERSION="),
        ("1.0", lambda tree: None, "is no version"),
        ("v1.0.0", lambda tree: None, "is no version"),
        ("01.0.0", lambda tree: None, "is no version"),
        ("\u0661.0.0", lambda tree: None, "is no version"),  # a digit of Arabic
        ("1.0.0; touch it", lambda tree: None, "is no version"),
        ("999.0.0", lambda tree: release.run(tree, "git", "checkout", "--quiet", "--detach"), "of no branch"),
        ("999.0.0", dirty, r"not committed:\n\?\? new\.txt"),
        ("999.0.0", tagged("999.0.0"), "The tag v999.0.0 exists"),
        ("999.0.0", tagged("999.0.1"), "999.0.0 is not newer: .* the newest tag is 999.0.1"),
        ("999.9.0", tagged("999.10.0"), "is not newer"),
        ("0.0.9", lambda tree: None, f"not newer: the tree has {__version__}, and the newest tag is none"),
        ("999.0.0", without_changes, "needs one section"),
    ],
)
def test_a_release_is_refused(tree: Path, version: str, spoil: Callable[[Path], object], reason: str) -> None:
    spoil(tree)
    with pytest.raises(release.Refused, match=reason):
        release.require_releasable(tree, version)


def test_the_version_is_written_wherever_it_stands(tree: Path) -> None:
    release.write(tree, "999.0.0", "2026-12-01")
    assert release.written(tree) == "999.0.0"
    for name, line in release.VERSIONED.items():
        assert line.format("999.0.0") in (tree / name).read_text().splitlines()
    assert "## [999.0.0] - 2026-12-01" in (tree / release.CHANGELOG).read_text().splitlines()
    assert "date-released: 2026-12-01" in (tree / "CITATION.cff").read_text().splitlines()
    for name in ("package.json", "package-lock.json"):
        assert json.loads((tree / "labextension" / name).read_text())["version"] == "999.0.0"
    changed = release.run(tree, "git", "diff", "--numstat").splitlines()
    assert {line.split("\t")[2] for line in changed} == {*WRITTEN}
    assert sum(int(line.split("\t")[0]) for line in changed) <= len(WRITTEN) + 2


@pytest.mark.parametrize("in_the_way", [None, "v999.0.0/old"])  # beside the latter git makes no tag v999.0.0
def test_a_release_that_fails_leaves_the_tree_as_it_was(
    tree: Path, monkeypatch: pytest.MonkeyPatch, in_the_way: str | None
) -> None:
    before = release.run(tree, "git", "rev-parse", "HEAD")

    def fail(tree: Path, version: str) -> None:
        assert release.written(tree) == version
        raise RuntimeError("no room on the disk")

    monkeypatch.setattr(release, "TREE", tree)
    if in_the_way is not None:
        release.run(tree, "git", "tag", in_the_way)
    tags = release.run(tree, "git", "tag")
    monkeypatch.setattr(release, "build", fail if in_the_way is None else lambda tree, version: None)
    with pytest.raises((RuntimeError, subprocess.CalledProcessError)):
        release.main("999.0.0")
    assert release.written(tree) == __version__
    assert release.run(tree, "git", "status", "--porcelain") == ""
    assert release.run(tree, "git", "tag") == tags
    assert release.run(tree, "git", "rev-parse", "HEAD") == before


def test_the_version_is_the_same_wherever_it_stands() -> None:
    lines = {name: line.format(__version__) for name, line in release.VERSIONED.items()}
    assert [name for name, line in lines.items() if line not in (ROOT / name).read_text().splitlines()] == []


def test_make_gives_the_version_as_it_was_written(tmp_path: Path) -> None:
    """Not to a shell, which would take a part of it for a command."""
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.write_text('#!/bin/sh\nprintf "%s|" "$@"\n')
    python.chmod(0o755)
    command = ["make", "--silent", "--old-file", "setup", "release", f"BIN={python.parent}"]
    for words, given in ((["VERSION=1.0.0; echo it"], "1.0.0; echo it"), ([], "")):
        made = subprocess.run([*command, *words], cwd=ROOT, env=outer(), capture_output=True, text=True, check=True)
        assert made.stdout == f"distribution/release.py|{given}|"


@pytest.mark.slow
@pytest.mark.timeout(2400)
def test_a_release_is_one_command(tmp_path: Path) -> None:
    """In a clone, with an environment of its own: it takes minutes."""
    clone = tmp_path / "clone"
    release.run(ROOT, "git", "clone", "--quiet", str(ROOT), str(clone))
    for words in (["user.name", "A"], ["user.email", "a@example.org"]):
        release.run(clone, "git", "config", *words)
    command = ["make", "release", "VERSION=999.0.0"]
    done = subprocess.run(command, cwd=clone, env=outer(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert release.run(clone, "git", "describe") == "v999.0.0"
    assert release.run(clone, "git", "status", "--porcelain") == ""
    made = {path.name for path in (clone / "dist").iterdir()}
    names = [f"{name}-999.0.0" for name in ("djinn_jupyter", "djinn_jupyter_client")]
    archives = {f"{name}{ending}" for name in names for ending in ("-py3-none-any.whl", ".tar.gz")}
    assert made == {*archives, "djinn-jupyter-999.0.0-site.zip", "SHA256SUMS"}
    release.run(clone / "dist", "sha256sum", "--check", "--strict", "SHA256SUMS")
    again = subprocess.run(command, cwd=clone, env=outer(), capture_output=True, text=True, check=False)
    assert again.returncode != 0
    assert "No release: The tag v999.0.0 exists." in again.stderr
