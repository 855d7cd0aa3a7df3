"""The GPUs of this machine, and the device that a run computes on. torch is asked in a process of its own: asking takes
memory on each GPU."""

from __future__ import annotations

import json
import subprocess
import sys

from djinn_jupyter.errors import DjinnError, UsageError
from djinn_jupyter.machine import device_of_environment, why_no_gpu

_ASK = """
import json, torch
print(json.dumps([torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]))
"""


def device_of(index: int | None) -> str | None:
    """Return the torch name of the GPU of that index; None where `index` is None. UsageError for a GPU that is not
    there."""
    if index is None:
        return None
    there = gpus()
    if 0 <= index < len(there):
        return f"cuda:{index}"
    if not there:
        raise UsageError(f"There is no GPU {index}: torch finds none here; without an index the CPU computes.")
    listed = ", ".join(f"{number} ({name})" for number, name in enumerate(there))
    raise UsageError(f"There is no GPU {index}: there are {listed}.")


def computed_on() -> str:
    """Return the device of DJINN_DEVICE, else the first GPU, else the CPU, as engines and baselines choose theirs."""
    return device_of_environment() or ("cpu" if why_no_gpu() or not gpus() else "cuda:0")


def card_of(device: str) -> str:
    """Return the name of a GPU as its driver has it; of any other device its kind, such as cpu."""
    kind, _, index = device.partition(":")
    return gpus()[int(index or 0)] if kind == "cuda" else kind


def gpus() -> list[str]:
    """Return the names of the GPUs, in the order of their indices."""
    asked = subprocess.run([sys.executable, "-c", _ASK], capture_output=True, text=True, check=False)
    if asked.returncode:
        raise DjinnError(f"torch does not tell which GPUs there are: {asked.stderr.strip().rpartition(chr(10))[2]}")
    found: list[str] = json.loads(asked.stdout)
    return found
