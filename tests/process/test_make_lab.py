from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tests.house.repository import ROOT

pytestmark = pytest.mark.processes


def answer_of(running: subprocess.Popen[str], address: str) -> Any:
    """Return the JSON at an address, which Jupyter prints before it listens."""
    while running.poll() is None:
        try:
            with urllib.request.urlopen(address) as answer:
                return json.load(answer)
        except urllib.error.URLError:
            time.sleep(0.1)
    raise AssertionError("make lab ended")


def test_the_address_that_make_lab_prints_leads_to_the_quickstart() -> None:
    """Where no browser opens it is all that there is."""
    command = ["make", "--silent", "--assume-old=.venv/.set-up", "lab", f"BIN={Path(sys.executable).parent}"]
    running = subprocess.Popen(
        command,
        cwd=ROOT,
        env={**os.environ, "BROWSER": "true"},  # the program of that name, which shows nothing
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        assert running.stdout is not None
        printed = (re.search(r"(http://127\.0\.0\.1:\d+)/lab/tree/(\S+)\?(token=\w+)", line) for line in running.stdout)
        found = next((match for match in printed if match), None)
        assert found is not None, "make lab ended without an address"
        server, path, token = found.groups()
        shown = answer_of(running, f"{server}/api/contents/{path}?{token}")
        assert shown["content"]["cells"][0]["source"].startswith("# Quickstart\n")
    finally:
        os.killpg(running.pid, signal.SIGTERM)
        running.wait()
