"""The memory of the engine's process, as it is measured at every publication of its state."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest
import torch

from djinn_jupyter.engine.system import device
from djinn_jupyter.engine.system.device import Usage, own_and_mapped


def test_the_memory_of_the_process_is_read_off_one_file(monkeypatch: pytest.MonkeyPatch) -> None:
    if own_and_mapped() == (None, None):
        pytest.skip("this system does not tell a process's own memory from that of files")
    monkeypatch.setattr(psutil, "Process", lambda: pytest.fail("the process was looked for once more"))
    usage = Usage.read(torch.device("cpu"))
    assert usage.anonymous_bytes is not None
    assert usage.mapped_bytes is not None
    assert usage.process_bytes == usage.anonymous_bytes + usage.mapped_bytes > 0


def test_shared_memory_is_the_processs_own_and_files_are_mapped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    status = tmp_path / "status"
    status.write_text("Name:\tdjinn\nRssAnon:\t 5 kB\nRssFile:\t 3 kB\nRssShmem:\t 2 kB\nThreads:\t4\n")
    monkeypatch.setattr(device, "STATUS", status)
    usage = Usage.read(torch.device("cpu"))
    assert (usage.anonymous_bytes, usage.mapped_bytes, usage.process_bytes) == (7 << 10, 3 << 10, 10 << 10)
