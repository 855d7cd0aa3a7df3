"""An engine and its client where nothing of Linux is at hand, as on a Mac: no /proc, /sys or /dev/shm, no call that
Linux alone has. Two commands of macOS are played by scripts. What it does not show: Apple's processors and kernel."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.processes
HIDING = Path(__file__).parent / "without_linux"
ROOT = Path(__file__).parents[2]
DJINN = ("-m", "djinn_jupyter.cli.main")
COMMANDS = {
    "sysctl": 'test "$*" = "-n kern.bootsessionuuid" && echo 8E0A1C52-0000-4000-8000-2B5F3C1D9A77',
    "ps": 'test "$1 $2 $3" = "-o stat=,lstart= -p" && test -d /proc/$4 && echo "S    Mon Nov 30 20:45:43 2026"',
}
WORK = """
import json, os, sys
import djinn_jupyter as dj

engine = dj.load("demo")
session = engine.session("mac", fresh=True)
session.run("The capital of France is", max_new_tokens=8)
plain = session.logits()
session.breakpoint("resid_post.4", when="step == 0")
session.run("The capital of France is", max_new_tokens=8)
session.edit(dj.scale(0.0), positions=-1)
edited = session.resume().text
session.back()
session.swap_out("host")
session.swap_out("disk")
fork = session.fork("fork")
fork.checkpoint("noon")
texts = [one.resume().text for one in (session, fork)]
restored = engine.restore("noon", "again")
texts.append(restored.resume().text)
bits = [(one.logits() == plain).all().item() for one in (session, fork, restored)]
print(json.dumps([edited, texts, bits, engine.statistics().pid, hasattr(os, "fdatasync")]))
"""


@pytest.fixture
def mac(tmp_path: Path) -> Iterator[dict[str, str]]:
    """The environment of a process and of all that it starts, with engines of its own."""
    for name, line in COMMANDS.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{line}\n")
        (tmp_path / name).chmod(0o755)
    home = Path(os.environ["JUPYTER_RUNTIME_DIR"]).parent / "mac"
    environment = os.environ | {
        "JUPYTER_RUNTIME_DIR": str(home / "run"),
        "JUPYTER_DATA_DIR": str(home / "data"),
        "PYTHONPATH": os.pathsep.join(map(str, (HIDING, ROOT))),
        "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}",
        "DJINN_HIDDEN": str(tmp_path / "hidden"),
    }
    yield environment
    said_by(environment, *DJINN, "stop", "--all", "--force", "--forget")


def said_by(environment: dict[str, str], *command: str) -> str:
    done = subprocess.run([sys.executable, *command], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_stops_edits_swaps_forks_and_checkpoints_have_the_same_bits(mac: dict[str, str]) -> None:
    edited, texts, bits, engine, has_fdatasync = json.loads(said_by(mac, "-c", WORK))
    assert edited != texts[0]
    assert [*set(texts)] == [" Paris."]
    assert bits == [True] * 3
    assert not has_fdatasync
    assert "engine runs" in (found := said_by(mac, *DJINN, "doctor"))
    assert [line for line in found.splitlines() if not line.startswith(("ok ", "note "))] == []
    refused = dict.fromkeys(Path(mac["DJINN_HIDDEN"]).read_text().splitlines())
    of_the_engine = {path for pid, path in map(str.split, refused) if pid == str(engine)}
    assert of_the_engine >= {"/proc/sys/kernel/random/boot_id", "/proc/self/status", "/proc/self/cgroup"}
    assert len({line.split()[0] for line in refused}) > 2
