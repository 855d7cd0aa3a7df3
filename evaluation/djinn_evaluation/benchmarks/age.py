"""The committed figures that are older than the code that makes them, told by git."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from djinn_evaluation import EVALUATION
from djinn_evaluation.commit import FOLDERS, git

RESULTS: Final = EVALUATION / "results"
PRODUCT: Final = FOLDERS[0]


def aged(results: Path = RESULTS) -> Iterator[str]:
    """Yield a sentence for each result that a later commit of its modules may have made wrong, the oldest first; none
    outside of a checkout. A result that names no commit of this history is as old as its moment."""
    found = []
    for path in sorted((*results.rglob("benchmarks/**/*.json"), *results.glob("*/claims.json"))):
        fields: dict[str, Any] = json.loads(path.read_text())
        commit = (fields.get("code") or fields.get("machine", {}).get("versions") or {}).get("commit")
        moment = fields.get("timestamp") or fields.get("machine", {}).get("begun")
        if commit or moment:
            known = commit is not None and git("merge-base", commit, "HEAD") == commit
            count = _later(path.stem, commit if known else None, moment)
            made = f"at {commit[:8]}" if known else f"on {moment[:10]}, by a commit {_unknown(commit)}"
            found.append((count, f"{path.relative_to(results)}: made {made}; its modules have {count} later commits."))
    return (sentence for count, sentence in sorted(found, reverse=True) if count)


def _unknown(commit: str | None) -> str:
    return "that it does not name" if commit is None else f"({commit[:8]}) that this history does not have"


def _later(name: str, commit: str | None, moment: str | None) -> int:
    """Return how many commits after a result touched the modules that it comes from: the product, and the benchmark's
    own, or all experiments."""
    own = f"evaluation/djinn_evaluation/benchmarks/{name}.py"
    modules = (PRODUCT, FOLDERS[1] if name == "claims" else own)
    after = [f"{commit}..HEAD"] if commit else [f"--since={moment}", "HEAD"]
    return int(git("rev-list", "--count", *after, "--", *modules) or 0)
