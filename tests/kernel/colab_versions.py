"""Resolve what the kernel's side asks for against the packages of Colab's image, and check types, for each supported
Python; write the outcome to evaluation/results/colab/resolved.json. `make resolve` runs it.

pip takes wheels for the Python named, but reads conditions in requirements with its own."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import tomllib
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from packaging.utils import canonicalize_name

ROOT: Final = Path(__file__).parents[2]
LIST: Final = ROOT / "tests" / "kernel" / "colab.txt"
RESULTS: Final = ROOT / "evaluation" / "results" / "colab" / "resolved.json"
PYTHONS: Final = ("3.11", "3.12", "3.13", "3.14")


def said(*command: str) -> tuple[bool, str]:
    """Run a program of this environment; return whether it succeeded, and what it printed."""
    done = subprocess.run([sys.executable, "-m", *command], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.returncode == 0, done.stdout.strip() or done.stderr.strip()


def resolved(python: str, asked: list[str], *constraints: str) -> dict[str, Any]:
    """Return what pip would install for that Python: how many packages of the image, and which others; or why it would
    install none."""
    there = {canonicalize_name(line.split("==")[0]) for line in LIST.read_text().splitlines() if "==" in line}
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        worked, text = said(
            *("pip", "install", "--dry-run", "--quiet", "--ignore-installed", "--only-binary=:all:"),
            *("--python-version", python, "--target", folder, "--report", str(report)),
            *(*constraints, *asked),
        )
        if not worked:
            return {"resolved": False, "why": [line for line in text.splitlines() if line.startswith("ERROR")]}
        found = [one["metadata"] for one in json.loads(report.read_text())["install"]]
    new = [f"{one['name']}=={one['version']}" for one in found if canonicalize_name(one["name"]) not in there]
    return {"resolved": True, "of_the_image": len(found) - len(new), "added": sorted(new)}


def main() -> None:
    asked = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    outcome: dict[str, Any] = {
        "list": LIST.read_text().splitlines()[0].removeprefix("# "),
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "ran_on": sys.version.split()[0],
        "with_the_list": {python: resolved(python, asked, "--constraint", str(LIST)) for python in PYTHONS},
        "newest": {python: resolved(python, asked) for python in PYTHONS},
        "types": {python: said("mypy", "--python-version", python)[1].splitlines()[-1] for python in PYTHONS},
    }
    RESULTS.write_text(json.dumps(outcome, indent=1) + "\n")
    sys.stdout.write(json.dumps(outcome, indent=1) + "\n")


if __name__ == "__main__":
    main()
