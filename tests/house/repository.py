"""The files of the repository, for tests that read them all; each is read and parsed once in a process."""

from __future__ import annotations

import ast
import functools
import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]
TEXT = {"", *".py .ts .tsx .md .toml .json .ipynb .yml .yaml .css .js .txt .cfg .svg .log".split()}


@functools.cache
def in_the_repository() -> tuple[Path, ...]:
    """Return the tracked files and new ones that git would take."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout.decode().split("\0")
    return tuple(sorted(path for name in listed if name and (path := ROOT / name).is_file()))


@functools.cache
def text_files() -> tuple[tuple[str, str], ...]:
    """Return the path, from the root, and the text of each file that is text."""
    readable = [path for path in in_the_repository() if path.suffix in TEXT]
    return tuple((path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")) for path in readable)


@functools.cache
def parsed(folder: str = "djinn_jupyter") -> dict[str, ast.Module]:
    """Return the modules below a folder of the repository, by their paths in it."""
    root = ROOT / folder
    return {path.relative_to(root).as_posix(): ast.parse(path.read_text()) for path in sorted(root.rglob("*.py"))}


@functools.cache
def nodes(module: ast.Module) -> tuple[ast.AST, ...]:
    """Return all that is in a module."""
    return tuple(ast.walk(module))


def anchor_of(heading: str) -> str:
    """Return the anchor of a heading, on GitHub and on the site."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
