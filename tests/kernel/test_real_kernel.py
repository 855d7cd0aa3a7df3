"""A real kernel: magics, copied notebooks, and work without a notebook."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from nbformat import v4

from tests.kernel.conftest import Kernel

pytestmark = pytest.mark.processes
Start = Callable[[str], Kernel]


def loaded(kernel: Kernel, model: Path, options: str = "") -> str:
    kernel.do("%load_ext djinn_jupyter\nids = [3, 4, 5, 6, 7]")
    return "".join(kernel.do(f"%djinn_load {model} {options}"))


def test_a_kernel_breaks_at_a_layer_is_interrupted_there_and_outlives_its_engine(kernels: Start, model: Path) -> None:
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
    loaded(kernel, model, "--fresh -o engine")
    kernel.do("import os, signal\nos.kill(engine.statistics().pid, signal.SIGKILL)")
    said = "".join(kernel.do("%djinn_run --ids ids"))
    assert "Traceback" not in said
    assert "the next load starts a new one" in said
    assert "24 layers" in "".join(kernel.do(f"%djinn_load {model}"))
    assert "Error" not in "".join(kernel.do("%djinn_run --ids ids"))


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


def test_a_session_leaves_is_kept_restored_and_ends_as_if_it_had_never_left(kernels: Start) -> None:
    kernel = kernels("one.ipynb")
    kernel.do("%load_ext djinn_jupyter")
    kernel.do("%djinn_load demo --fresh")

    def said(cell: str) -> str:
        text = "".join(kernel.do(cell))
        assert "Error" not in text, text
        return text

    plain = said("%djinn_run The capital of France is")
    said("%djinn_break 4 --when step == 0")
    said("%djinn_run The capital of France is")
    assert "Paris" in said('%djinn_lens --layers --token " Paris"')
    assert "norm of each head" in said("%djinn_inspect z.2")
    assert "moved" in said("%djinn_swap out")
    assert "host" in said("%djinn_sessions")
    assert "swapped out to host" in said("%djinn_status")
    assert "checkpoint noon saved: 5 tokens, stopped at resid_post.4" in said("%djinn_checkpoint noon --replace")
    assert "left the device" in said("%djinn_sleep")
    resumed = said("%djinn_resume")
    assert resumed.splitlines()[1] == plain.splitlines()[1]
    assert "restored from noon" in said("%djinn_restore noon --as other --use")
    assert "relative distance by layer" in said("%djinn_restore noon --session one\n%djinn_diff one --layers")
    assert said("%djinn_resume").splitlines()[1] == plain.splitlines()[1]
    assert "noon" in said("%djinn_checkpoint")
    assert said("%djinn_checkpoint noon --drop") == "checkpoint noon deleted\n"
    assert "memory of demo" in said("%djinn_vram")
    assert "other closed" in said("%djinn_close other")


def test_a_live_chart_draws_while_no_cell_runs_until_it_is_frozen(kernels: Start, model: Path) -> None:
    kernel = kernels("one.ipynb")
    loaded(kernel, model, "--fresh")
    kernel.do("import os\ndel os.environ['DJINN_STATIC']")
    shown = kernel.do("%djinn_vram")
    assert shown[0] == f"Memory of {model}, live"
    assert f"memory of {model}: " in shown[1]
    drawn = kernel.take(lambda message: len(_course(message).get("times", ())) > 3)
    assert "weights" in [band["name"] for band in _course(drawn)["bands"]]
    assert "at the end" in "".join(kernel.do("%djinn_vram stop"))


def _course(message: dict[str, Any]) -> dict[str, Any]:
    """Return what a message to the chart draws; {} for any other message."""
    told: dict[str, Any] = message["content"].get("data", {}).get("state", {}).get("course", {})
    return told if message["msg_type"] == "comm_msg" else {}


CELLS = ("%load_ext djinn_jupyter", "%djinn_load demo", "%djinn_run What is the capital of France?")


def test_a_notebook_that_a_program_executes_has_a_session_and_stops_at_the_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("JPY_SESSION_NAME", raising=False)
    notebook = v4.new_notebook(cells=[v4.new_code_cell(cell) for cell in (*CELLS, "%djinn_break 99")])
    with pytest.raises(CellExecutionError, match=r"UsageError: .*layers 0\.\.7"):
        NotebookClient(notebook, timeout=240, kernel_name="python3").execute()
    loaded, ran, failed = (cell.outputs for cell in notebook.cells[1:])
    assert re.search(r"session (kernel-|tmp)\w+: ", loaded[-1]["data"]["text/plain"])  # its connection file
    assert "finished: " in ran[-1]["data"]["text/plain"]
    assert (failed[-1]["output_type"], failed[-1]["ename"]) == ("error", "UsageError")
    assert failed[-1]["traceback"] == [f"UsageError: {failed[-1]['evalue']}"]


def test_ipython_without_a_kernel_runs_the_same_lines(tmp_path: Path) -> None:
    script = tmp_path / "cells.ipy"
    script.write_text("\n".join([*CELLS[:2], "%djinn_run The capital of France is"]))
    env = {name: value for name, value in os.environ.items() if name != "JPY_SESSION_NAME"}
    command = [sys.executable, "-m", "IPython", "--no-banner", "--colors=NoColor", str(script)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=240)
    assert "session ipython-" in done.stdout, done.stdout + done.stderr
    assert "finished: " in done.stdout


NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
OF_THE_CHECKOUT = ("JUPYTER_", "IPYTHONDIR", "JPY_", "DJINN_", "HF_", "PYTEST_")


@pytest.mark.slow
@pytest.mark.processes
def test_a_notebook_of_a_copy_has_its_own_name_and_jupyter(tmp_path: Path) -> None:
    """Its session is called by it, and no other notebook's engine is found."""
    shutil.copytree(NOTEBOOKS, tmp_path / "copy")
    outside = {name: value for name, value in os.environ.items() if not name.startswith(OF_THE_CHECKOUT)}
    outside["PYTHONPATH"] = str(NOTEBOOKS.parent)
    compared = [sys.executable, "-m", "pytest", "--nbval", "-q", "02_steering.ipynb", "03_many_notebooks.ipynb"]
    done = subprocess.run(
        compared, cwd=tmp_path / "copy", env=outside, capture_output=True, text=True, timeout=290, check=False
    )
    assert done.returncode == 0, done.stdout[-4000:]
