"""Cells as a user types them, run in a real kernel."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.kernel.conftest import Kernel

pytestmark = pytest.mark.processes
Start = Callable[[str], Kernel]


def loaded(kernel: Kernel, model: Path, options: str = "") -> str:
    kernel.do("%load_ext djinn_jupyter\nids = [3, 4, 5, 6, 7]")
    return "".join(kernel.do(f"%djinn_load {model} {options}"))


def test_break_20_on_24_layers(kernels: Start, model: Path) -> None:
    kernel = kernels("one.ipynb")
    assert "24 layers" in loaded(kernel, model)
    assert "breakpoint 1 at resid_post.20" in "".join(kernel.do("%djinn_break 20"))
    stop = "".join(kernel.do("%djinn_run --ids ids"))
    assert "resid_post.20" in stop
    assert "21 of 24" in stop
    assert "['no torch']" in kernel.do("import sys; ['torch' if 'torch' in sys.modules else 'no torch']")
    refused = "".join(kernel.do("%djinn_break 24"))
    assert "layers 0..23" in refused
    assert "Traceback" not in refused


def test_a_kernel_restart_finds_the_stop_again_and_run_all_twice_gives_the_same(kernels: Start, model: Path) -> None:
    cells = [
        "%load_ext djinn_jupyter\nids = [3, 4, 5, 6, 7, 8]",
        f"%djinn_load {model} --fresh",
        "%djinn_break 5 --when step == 1",
        "%djinn_run --ids ids",
        "%djinn_edit scale 0.5 --effect",
        "%djinn_resume --free",
        "%djinn_back",
        "%djinn_resume",
    ]
    kernel = kernels("one.ipynb")
    first = [kernel.do(cell) for cell in cells]
    assert not any("Error" in text for texts in first for text in texts)
    kernel.do("%djinn_back")
    kernel.restart()
    kernel.do(cells[0])
    armed = "".join(kernel.do(f"%djinn_load {model}"))
    assert "1 breakpoint" in armed
    assert "resid_post.5" in armed
    runs = []
    for _ in range(2):
        kernel.restart()
        runs.append([kernel.do(cell) for cell in cells])
    assert runs[0] == runs[1]
    assert runs[0][2:] == first[2:]


def test_two_notebooks_at_once_on_one_engine(kernels: Start, model: Path) -> None:
    one, two = kernels("one.ipynb"), kernels("two.ipynb")
    loaded(one, model, "--fresh")
    loaded(two, model, "--fresh")
    alone = one.do("%djinn_run --ids ids --max-tokens 30")
    begun = [kernel.begin("%djinn_run --ids ids --max-tokens 30") for kernel in (one, two)]
    together = [kernel.outputs(parent) for kernel, parent in zip((one, two), begun, strict=True)]
    assert together[0] == [said.replace("session two", "session one") for said in together[1]] == alone
    sessions = "".join(one.do("%djinn_sessions"))
    assert "one" in sessions
    assert "two" in sessions


def test_the_interrupt_button_leaves_the_session_at_a_layer_boundary(kernels: Start, model: Path) -> None:
    kernel = kernels("one.ipynb")
    loaded(kernel, model, "--fresh")
    kernel.do("import djinn_jupyter as dj\n%djinn_use -o session")
    parent = kernel.begin(
        "def tell(token):\n    print('token', flush=True)\n"
        "session.run([3, 4, 5], max_new_tokens=400, ignore_eos=True, on_token=tell)"
    )
    kernel.take(lambda message: message["msg_type"] == "stream" and "token" in message["content"]["text"])
    kernel.manager.interrupt_kernel()
    kernel.outputs(parent)
    standing = "".join(kernel.do("session.stop"))
    assert "interrupt" in standing
    assert "finished: 400 new tokens" in "".join(kernel.do("session.resume()"))


def test_an_engine_killed_with_9_is_said_in_one_line_and_the_next_load_starts_anew(kernels: Start, model: Path) -> None:
    kernel = kernels("one.ipynb")
    loaded(kernel, model, "--fresh -o engine")
    kernel.do("import os, signal\nos.kill(engine.statistics().pid, signal.SIGKILL)")
    said = "".join(kernel.do("%djinn_run --ids ids"))
    assert "Traceback" not in said
    assert "the next load starts a new one" in said
    assert "24 layers" in "".join(kernel.do(f"%djinn_load {model}"))
    assert "Error" not in "".join(kernel.do("%djinn_run --ids ids"))
