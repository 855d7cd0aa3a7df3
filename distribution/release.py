"""`make release VERSION=0.1.0`: writes version and date, builds what is published, commits and tags.

It pushes and uploads nothing. A release that fails leaves the tracked files as they were.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

TREE: Final = Path(__file__).resolve().parents[1]
CHANGELOG: Final = "CHANGELOG.md"
VERSION: Final = re.compile(r"(?:0|[1-9][0-9]*)(?:\.(?:0|[1-9][0-9]*)){2}")
UNRELEASED: Final = re.compile(r"^## \[(?:Unreleased\]|[^]]+\] - not released yet)$", re.MULTILINE)
# The line with the version in each file that has it; npm writes those of the sidebar.
VERSIONED: Final = {
    "djinn_jupyter/_version.py": '__version__ = "{}"',
    "evaluation/pyproject.toml": 'version = "{}"',
    "distribution/recipe.yaml": '  version: "{}"',
    "CITATION.cff": "version: {}",
    "docs/colab.md": '%pip install --quiet "./djinn_jupyter_client-{}-py3-none-any.whl[engine]"',
    "vscode/package.json": '  "version": "{}",',
}


class Refused(Exception):
    """Raised before anything is written, with the reason."""


def main(version: str) -> None:
    require_releasable(TREE, version)
    today, before = datetime.now(UTC).date().isoformat(), run(TREE, "git", "rev-parse", "HEAD")
    try:
        write(TREE, version, today)
        build(TREE, version)
        run(TREE, "git", "commit", "--quiet", "--all", "--message", f"release: {version}")
        run(TREE, "git", "tag", "--annotate", f"v{version}", "--message", f"Djinn for Jupyter {version}")
    except BaseException:
        run(TREE, "git", "reset", "--quiet", "--hard", before)
        raise
    print(f"Tagged v{version}; dist/ has what is published. To publish it:")
    print("  git push --follow-tags && twine upload dist/*.whl dist/*.tar.gz")


def require_releasable(tree: Path, version: str) -> None:
    """Refuse a version or a tree that cannot be released."""
    if not VERSION.fullmatch(version):
        raise Refused(f"{version!r} is no version: write VERSION=0.1.0, three numbers.")
    if changed := run(tree, "git", "status", "--porcelain"):
        raise Refused(f"The tree has changes that are not committed:\n{changed}")
    if not run(tree, "git", "branch", "--show-current"):
        raise Refused("The checkout is of no branch, and a push would leave its commit out: git switch to one.")
    tags = [tag for tag in run(tree, "git", "tag", "--list", "v*").split() if VERSION.fullmatch(tag[1:])]
    if f"v{version}" in tags:
        raise Refused(f"The tag v{version} exists.")
    newest = max([tag.removeprefix("v") for tag in tags], key=numbers, default=None)
    present = written(tree)
    if numbers(version) < numbers(present) or (newest and numbers(version) <= numbers(newest)):
        raise Refused(f"{version} is not newer: the tree has {present}, and the newest tag is {newest or 'none'}.")
    if len(UNRELEASED.findall((tree / CHANGELOG).read_text())) != 1:
        raise Refused(f"{CHANGELOG} needs one section `## [Unreleased]` with what this version brings.")


def numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


def written(tree: Path) -> str:
    """Return the version that the tree has."""
    (found,) = re.findall(r'__version__ = "(.+)"', (tree / "djinn_jupyter" / "_version.py").read_text())
    return str(found)


def write(tree: Path, version: str, today: str) -> None:
    """Write the version everywhere, and the date into the changelog and the citation."""
    present = written(tree)
    for name, line in VERSIONED.items():
        put(tree / name, f"^{re.escape(line.format(present))}$", line.format(version))
    put(tree / CHANGELOG, UNRELEASED.pattern, f"## [{version}] - {today}")
    citation = tree / "CITATION.cff"
    released = [line for line in citation.read_text().splitlines() if not line.startswith("date-released:")]
    citation.write_text("\n".join([*released, f"date-released: {today}", ""]))
    run(tree / "labextension", "npm", "version", version, "--no-git-tag-version", "--allow-same-version")


def put(file: Path, pattern: str, line: str) -> None:
    """Replace the one line of a file that is `pattern`."""
    text, count = re.subn(pattern, line, file.read_text(), flags=re.MULTILINE)
    if count != 1:
        raise ValueError(f"{file.name} has {count} lines {pattern}, and one was expected")
    file.write_text(text)


def build(tree: Path, version: str) -> None:
    """Build wheels, sdists and the site, with their hashes, into `dist`."""
    made = tree / "dist"
    shutil.rmtree(made, ignore_errors=True)
    for project in (tree, tree / "distribution"):
        run(project, sys.executable, "-m", "hatchling", "build", "--directory", str(made))
    run(tree, "make", "docs")
    shutil.make_archive(str(made / f"djinn-jupyter-{version}-site"), "zip", tree / "build" / "site")
    sums = [f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n" for file in sorted(made.iterdir())]
    (made / "SHA256SUMS").write_text("".join(sums))


def run(folder: Path, *command: str) -> str:
    """Run a command in a folder, and return what it prints."""
    return subprocess.run(command, cwd=folder, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()


if __name__ == "__main__":
    try:
        main(" ".join(sys.argv[1:]))
    except Refused as reason:
        sys.exit(f"No release: {reason}")
