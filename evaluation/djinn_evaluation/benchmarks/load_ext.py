"""The time that `%load_ext djinn_jupyter` adds to a fresh IPython kernel, and the packages it must not import."""

from __future__ import annotations

import ast
import subprocess
from time import perf_counter

from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.manager import KernelManager

from djinn_evaluation.benchmarks.measuring import Spread, differences, take_turns
from djinn_evaluation.benchmarks.results import Checks, Figure, Result, at_most
from djinn_evaluation.benchmarks.setting import Setting

SECONDS = 0.05
MORE_SECONDS = 0.15  # of a whole kernel
ROUNDS = 9
LATER = ("torch", "transformers", "plotly", "ipywidgets", "msgspec", "numpy")
TIMED = """
from time import perf_counter, process_time
begun, busy = perf_counter(), process_time()
get_ipython().run_line_magic("load_ext", "djinn_jupyter")
seconds, busy = perf_counter() - begun, process_time() - busy
"""
IMPORTED = f"import sys; [name for name in {LATER!r} if name in sys.modules]"


def run(setting: Setting) -> Result:
    checks, computing = Checks(), []

    def bare() -> float:
        return _kernel(["pass"])[0]

    def loaded() -> float:
        seconds, (_, imported) = _kernel(["%load_ext djinn_jupyter", IMPORTED])
        checks.same(
            "kernels that left torch, plotly, ipywidgets, msgspec and numpy out", ast.literal_eval(imported), []
        )
        return seconds

    def inside() -> float:
        seconds, busy = ast.literal_eval(_kernel([TIMED, "seconds, busy"])[1][1])
        computing.append(busy)
        return float(seconds)

    rounds = setting.rounds(ROUNDS)
    readings = take_turns({"bare": bare, "loaded": loaded, "inside": inside}, rounds=rounds)
    figures = (
        Figure(
            name="%load_ext djinn_jupyter in a fresh kernel",
            unit="s",
            value=Spread.of(readings["inside"]),
            bar=at_most(SECONDS),
            sides={"of that computing": Spread.of(computing[-rounds:])},
            sides_unit="s",
        ),
        Figure(
            name="from starting a kernel to the reply of its first cell, with %load_ext more than without",
            unit="s",
            value=Spread.of(differences(readings["loaded"], readings["bare"])),
            bar=at_most(MORE_SECONDS),
            sides={name: Spread.of(readings[name]) for name in ("bare", "loaded")},
            sides_unit="s",
        ),
    )
    return Result(benchmark="load_ext", settings={"rounds": rounds}, figures=figures, checks=checks.counts)


def _kernel(cells: list[str]) -> tuple[float, list[str]]:
    """Return the seconds from the start of a kernel to the reply of its first cell, and the values of all cells."""
    begun = perf_counter()
    manager = KernelManager()
    manager.start_kernel(stderr=subprocess.DEVNULL)
    client = manager.client()
    client.start_channels()
    try:
        client.wait_for_ready(timeout=120)
        seconds, values = None, []
        for cell in cells:
            values.append(_executed(client, cell))
            seconds = seconds if seconds is not None else perf_counter() - begun
        assert seconds is not None
        return seconds, values
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def _executed(client: BlockingKernelClient, cell: str) -> str:
    """Return the text of the cell's value."""
    found: list[str] = []
    client.execute_interactive(cell, timeout=120, output_hook=lambda message: _keep(message, found))
    return "".join(found)


def _keep(message: dict[str, object], found: list[str]) -> None:
    content = message["content"]
    assert isinstance(content, dict)
    if message["msg_type"] == "execute_result":
        found.append(content["data"]["text/plain"])
    elif message["msg_type"] == "error":
        raise RuntimeError(content["evalue"])
