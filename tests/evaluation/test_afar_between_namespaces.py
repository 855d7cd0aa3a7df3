"""An experiment between two network namespaces, with the programs as persons start them, and a line that is down for
a while in its midst."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from djinn_evaluation.commands.experiment import UNDECIDED
from djinn_evaluation.serving import DOWN

pytestmark = [pytest.mark.processes, pytest.mark.slow]
ROOT = Path(__file__).parents[2]
LAPTOP, BOX = "dj-afar-laptop", "dj-afar-box"
PUBLIC = re.compile(r"djinn-[A-Za-z0-9_-]{43}")
PLACE = "10.214.1.2"


@pytest.fixture
def namespaces() -> Iterator[None]:
    """Laptop and box, each a network of its own, joined by a line."""
    if shutil.which("ip") is None or os.geteuid() != 0:
        pytest.skip("network namespaces are made by root, with iproute2")
    with ExitStack() as end:
        for name in (LAPTOP, BOX):
            _ip("netns", "add", name)
            end.callback(_ip, "netns", "del", name)
        _ip("link", "add", "dj-a", "netns", LAPTOP, "type", "veth", "peer", "name", "dj-b", "netns", BOX)
        for name, device, number in ((LAPTOP, "dj-a", 1), (BOX, "dj-b", 2)):
            _ip("-n", name, "addr", "add", f"10.214.1.{number}/24", "dev", device)
            _ip("-n", name, "link", "set", device, "up")
        yield


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)


def _djinn(namespace: str, home: Path, *words: str) -> subprocess.Popen[str]:
    command = ["ip", "netns", "exec", namespace, sys.executable, "-m", "djinn_jupyter.cli.main", *words]
    own = {"JUPYTER_RUNTIME_DIR": str(home / namespace / "r"), "JUPYTER_DATA_DIR": str(home / namespace / "d")}
    beside = {**os.environ, **own, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, env=beside, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def _said(namespace: str, home: Path, *words: str) -> str:
    return _djinn(namespace, home, *words).communicate()[0]


@pytest.mark.usefixtures("namespaces")
def test_an_experiment_outlasts_a_line_that_is_down_and_says_so(tmp_path: Path) -> None:
    (mine,) = PUBLIC.findall(_said(LAPTOP, tmp_path, "key", "new", "ada"))
    (theirs,) = PUBLIC.findall(_said(BOX, tmp_path, "key", "allow", mine, "--as", "ada"))
    _said(LAPTOP, tmp_path, "key", "trust", PLACE, theirs)
    with ExitStack() as end:
        box = _djinn(BOX, tmp_path, "serve", "demo", "--listen", "tcp://0.0.0.0:5556", "--threads", "1")
        end.callback(box.communicate)
        end.callback(box.terminate)
        assert any("listens on" in line for line in box.stdout)
        asked = ("checkpoint-cost", "--profile", "small", "--server", PLACE, "--output-dir", str(tmp_path / "out"))
        laptop = _djinn(LAPTOP, tmp_path, "experiment", *asked)
        end.callback(laptop.wait)
        end.callback(laptop.kill)
        assert any("alone: " in line for line in laptop.stdout)
        _ip("-n", LAPTOP, "link", "set", "dj-a", "down")
        assert any("has been down for" in line for line in laptop.stdout)
        _ip("-n", LAPTOP, "link", "set", "dj-a", "up")
        assert laptop.communicate()[0]
        assert laptop.returncode == UNDECIDED
    found = json.loads((tmp_path / "out" / "checkpoint_cost_results.json").read_text())
    assert (found["status"], len(found["neighbour_rates"]["alone"])) == ("undecided", 6)
    assert DOWN in " ".join((tmp_path / "out" / "report.md").read_text().split())
