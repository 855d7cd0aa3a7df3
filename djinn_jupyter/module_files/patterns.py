"""Match regular expressions of files in a process of its own, which a limit of time ends: one can take years."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from djinn_jupyter.errors import UsageError

MOST_SECONDS: Final = 20.0
PROGRAM: Final = """\
import json, re, sys
patterns, names = json.load(sys.stdin)
json.dump({one: [name for name in names if re.fullmatch(one, name)] for one in patterns}, sys.stdout)
"""


def matched(patterns: Sequence[str], names: Iterable[str], where: str) -> Mapping[str, list[str]]:
    """Return the names that each pattern matches as a whole. Raises UsageError where one is no regular expression, or
    takes longer than MOST_SECONDS. Without a pattern no process is started."""
    if not patterns:
        return {}
    asked = json.dumps([list(patterns), list(names)])
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-c", PROGRAM], input=asked, capture_output=True, text=True, timeout=MOST_SECONDS
        )
    except subprocess.TimeoutExpired:
        raise UsageError(f"{where}: it takes more than {MOST_SECONDS:g} seconds to match the pattern.") from None
    if done.returncode != 0:
        raise UsageError(f"{where}: {done.stderr.strip().splitlines()[-1] if done.stderr else 'it cannot be matched'}.")
    found: Mapping[str, list[str]] = json.loads(done.stdout)
    return found
