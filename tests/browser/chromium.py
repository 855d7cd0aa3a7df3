"""A Chromium for the tests and for the benchmark of painting: found, and started without its calls outside."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager

from playwright.sync_api import Browser, sync_playwright

FLAGS = [
    "--no-sandbox",  # root in a container has none
    "--disable-dev-shm-usage",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    # The browser's own calls to the outside, which a closed network refuses by the dozen.
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-domain-reliability",
]


@contextmanager
def chromium() -> Iterator[Browser]:
    executable = os.environ.get("DJINN_CHROMIUM") or shutil.which("chromium")
    assert executable, "No Chromium: run `make chromium`, or set DJINN_CHROMIUM to its executable."
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=executable, args=FLAGS)
        yield started
        started.close()
