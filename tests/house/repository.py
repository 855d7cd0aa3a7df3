"""The files of the repository, for tests that read them all."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]
TEXT = {"", *".py .ts .tsx .md .toml .json .ipynb .yml .yaml .css .js .txt .cfg .svg .log".split()}


def in_the_repository() -> list[Path]:
    """Return the tracked files and new ones that git would take."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout.decode().split("\0")
    return sorted(path for name in listed if name and (path := ROOT / name).is_file())


def text_files() -> list[tuple[str, str]]:
    """Return the path, from the root, and the text of each file that is text."""
    readable = [path for path in in_the_repository() if path.suffix in TEXT]
    return [(path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")) for path in readable]


def anchor_of(heading: str) -> str:
    """Return the anchor of a heading, on GitHub and on the site."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
