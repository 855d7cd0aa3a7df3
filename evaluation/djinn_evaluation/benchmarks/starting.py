"""Starts: an engine's against a plain script's, and `%load_ext` in a fresh kernel."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path
from time import perf_counter

from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.manager import KernelManager

import djinn_jupyter as dj
from djinn_evaluation.benchmarks.harness import (
    UNSAID,
    Checks,
    Figure,
    Result,
    Setting,
    Spread,
    at_most,
    compared,
    differences,
    pid_of,
    take_turns,
)
from djinn_evaluation.intervals import ratios
from djinn_evaluation.machine import seconds_computed

ROUNDS_OF_COLD_START = 5
RATIO = 1.2
PROMPTS, STEPS, LENGTH = 19, 3, 11  # 76 passes, as many as the self-test enters on the demo model
FOLDER = Path(dj.__file__).parent / "demo" / "model"
PLAIN = f"""
import sys
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
torch.set_num_threads(int(sys.argv[2]))
model = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype="auto").eval()
tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])
prompt = torch.arange({LENGTH})[None]
passes = 0
with torch.inference_mode():
    for _ in range({PROMPTS}):
        made = model(prompt, use_cache=True, logits_to_keep=1)
        passes += 1
        for _ in range({STEPS}):
            token = made.logits[:, -1:].argmax(-1)
            made = model(token, past_key_values=made.past_key_values, use_cache=True, logits_to_keep=1)
            passes += 1
print(passes, flush=True)
sys.stdin.readline()
"""


def run_cold_start(setting: Setting) -> Result:
    """The time from loading a model that no engine has until it is ready, against a plain script that does the same.

    The script imports torch and transformers, reads the same model and tokenizer, and runs as many passes as the
    engine's self-test enters. Files are in the page cache for both. The engine is ready when its client has been
    welcomed."""
    checks = Checks()
    computed: dict[str, list[float | None]] = {"plain script": [], "engine": []}

    def plain() -> float:
        begun = perf_counter()
        command = [sys.executable, "-c", PLAIN, str(FOLDER), str(setting.threads)]
        script = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        assert script.stdout is not None
        passes = int(script.stdout.readline())
        seconds = perf_counter() - begun
        computed["plain script"].append(seconds_computed(script.pid))
        script.communicate("\n")
        checks.same("plain scripts that ran the passes of a self-test", passes, PROMPTS * (1 + STEPS))
        return seconds

    def engine() -> float:
        begun = perf_counter()
        found = dj.load("demo", threads=setting.threads)
        seconds = perf_counter() - begun
        computed["engine"].append(seconds_computed(pid_of(found)))
        checks.same("self-tests passed", all(check.passed for check in found.description.checks), True)
        found.stop(force=True)
        return seconds

    rounds = setting.rounds(ROUNDS_OF_COLD_START)
    readings = take_turns({"plain script": plain, "engine": engine}, rounds=rounds)
    figures = (_ready(readings), _computing({name: values[-rounds:] for name, values in computed.items()}))
    settings = {"rounds": rounds, "model": "demo", "passes": PROMPTS * (1 + STEPS)}
    return Result(benchmark="cold_start", settings=settings, figures=figures, checks=checks.counts)


def _ready(readings: dict[str, list[float]]) -> Figure:
    name = "from asking for the demo model to ready, of a plain script's time to get as far"
    return compared(name, "engine", "plain script", readings, unit="s", bar=at_most(RATIO))


def _computing(computed: dict[str, list[float | None]]) -> Figure:
    """Return the ratio of CPU seconds, which a busy machine does not stretch."""
    known = {name: [value for value in values if value is not None] for name, values in computed.items()}
    whole = all(len(known[name]) == len(computed[name]) for name in known)
    return Figure(
        name="the same, of the seconds that the two processes computed",
        unit="x",
        value=Spread.of(ratios(known["engine"], known["plain script"])) if whole else None,
        bar=at_most(RATIO),
        sides={name: Spread.of(values) for name, values in known.items()},
        sides_unit="s",
        not_run=None if whole else UNSAID,
    )


SECONDS = 0.05
MORE_SECONDS = 0.15  # of a whole kernel
ROUNDS_OF_LOAD_EXT = 9
LATER = ("torch", "transformers", "plotly", "ipywidgets", "msgspec", "numpy")
TIMED = """
from time import perf_counter, process_time
begun, busy = perf_counter(), process_time()
get_ipython().run_line_magic("load_ext", "djinn_jupyter")
seconds, busy = perf_counter() - begun, process_time() - busy
"""
IMPORTED = f"import sys; [name for name in {LATER!r} if name in sys.modules]"


def run_load_ext(setting: Setting) -> Result:
    """The time that `%load_ext djinn_jupyter` adds to a fresh IPython kernel, and the packages it must not import."""
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

    rounds = setting.rounds(ROUNDS_OF_LOAD_EXT)
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
