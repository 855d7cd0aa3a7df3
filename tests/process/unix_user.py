"""A process of another Unix user of this machine, with a home of its own, that runs what a test tells it. Root alone
can start one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]

# What the process runs. It imports first and becomes the other user then: Python may lie in a folder of root's.
_PROCESS = """
import asyncio, contextlib, encodings.idna, encodings.punycode, getpass, io, json, os, pwd, socket, stat, sys
import djinn_jupyter as dj
import djinn_jupyter.cli.main as cli
import djinn_jupyter.api.loading, djinn_jupyter.api.edits
uid = int(sys.argv[1])
os.setgroups([])
os.setgid(uid)
os.setuid(uid)

def may_open(path):
    try:
        if stat.S_ISSOCK(os.stat(path).st_mode):
            with socket.socket(socket.AF_UNIX) as tried:
                tried.connect(path)
        else:
            open(path, "rb").close()
    except OSError:
        return False
    return True

names = dict(globals())
for line in sys.stdin:
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        try:
            exec(json.loads(line), names)
        except Exception as error:
            print(f"{type(error).__name__}: {error}", end="")
    print(json.dumps(said.getvalue()), flush=True)
"""


class UnixUser:
    """A user by number, and one process of theirs. Names stay from one code to the next."""

    def __init__(self, uid: int, home: Path) -> None:
        home.mkdir()
        os.chown(home, uid, uid)
        self.uid, self.home = uid, home
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("JUPYTER_", "DJINN_"))}
        self._process = subprocess.Popen(
            [sys.executable, "-c", _PROCESS, str(uid)],
            env={**kept, "HOME": str(home), "TMPDIR": str(home), "PYTHONPATH": str(ROOT)},
            cwd=home,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def says(self, code: str) -> str:
        """Run code in this user's process; return what it printed, or its error in one line."""
        self.begin(code)
        return self.ends()

    def begin(self, code: str) -> None:
        self._process.stdin.write(json.dumps(code) + "\n")
        self._process.stdin.flush()

    def ends(self) -> str:
        """Return what the code that was begun printed."""
        said: Any = json.loads(self._process.stdout.readline())
        return str(said)

    def djinn(self, *words: str) -> str:
        return self.says(f"cli.main({list(words)!r})")

    def may_open(self, path: str) -> bool:
        """True where this user could read a file, or connect to a socket."""
        return self.says(f"print(may_open({path!r}), end='')") == "True"

    def end(self) -> None:
        self._process.stdin.close()
        self._process.wait(timeout=60)
