"""The time from loading a model that no engine has until it is ready, against a plain script that does the same.

The script imports torch and transformers, reads the same model and tokenizer, and runs as many passes as the engine's
self-test enters. Files are in the page cache for both. The engine is ready when its client has been welcomed.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from time import perf_counter

import djinn_jupyter as dj
from djinn_evaluation.benchmarks.measuring import Spread, take_turns
from djinn_evaluation.benchmarks.processes import UNSAID
from djinn_evaluation.benchmarks.results import Checks, Figure, Result, at_most, compared
from djinn_evaluation.benchmarks.serving_engine import pid_of
from djinn_evaluation.benchmarks.setting import Setting
from djinn_evaluation.cores import seconds_computed
from djinn_evaluation.intervals import ratios

ROUNDS = 5
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


def run(setting: Setting) -> Result:
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

    rounds = setting.rounds(ROUNDS)
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
