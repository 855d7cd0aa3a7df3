"""Every copy of a streamed layer while tokens are generated: GB/s, and the share of copies above 20 GB/s.

On a GPU with random weights of 13 billion parameters in 12 GiB; without one this is not run.
"""

from __future__ import annotations

import json
import shutil
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from time import monotonic

import djinn_jupyter as dj
from benchmarks.measuring import Spread
from benchmarks.results import Figure
from benchmarks.serving_engine import prompt_of

FAST = 20e9  # bytes a second


@dataclass(frozen=True, slots=True, kw_only=True)
class Llama:
    """The fields of a Llama's configuration that give it its size."""

    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    vocab_size: int
    dtype: str


THIRTEEN = Llama(
    hidden_size=5120,
    intermediate_size=13824,
    num_hidden_layers=40,
    num_attention_heads=40,
    vocab_size=32000,
    dtype="float16",
)


def gpu_is_there() -> bool:
    return shutil.which("nvidia-smi") is not None


def on_gpu(home: Path) -> list[Figure]:
    """Of the large model, where there is a GPU; else two figures that say why they are not there."""
    what = "13B in 12 GiB on a GPU"
    if gpu_is_there():
        return measured(home / "thirteen", THIRTEEN, what, device="cuda", budget="12GiB", seconds=10)
    speed, share = _figures(what, None)
    return [replace(figure, not_run="no NVIDIA GPU here") for figure in (speed, share)]


def measured(folder: Path, shape: Llama, what: str, *, device: str, budget: str, seconds: float) -> list[Figure]:
    """Generates for at least so many seconds; the model's own loading and self-test are not counted."""
    folder.mkdir(parents=True, exist_ok=True)
    configuration = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], **asdict(shape)}
    (folder / "config.json").write_text(json.dumps(configuration))
    with ExitStack() as stack:
        engine = dj.load(folder, device=device, device_memory=budget, random_weights=True)
        stack.callback(engine.stop, force=True, forget=True)
        session = engine.session("layer copies", fresh=True)
        prompt = prompt_of(4, shape.vocab_size)
        session.run(prompt, max_new_tokens=1, ignore_eos=True)
        since = max((copy.number for copy in engine.copies()), default=0)
        begun, speeds = monotonic(), []
        while monotonic() - begun < seconds:
            session.run(prompt, max_new_tokens=8, ignore_eos=True)
            copies = engine.copies(since)
            speeds += [copy.bytes_moved / copy.seconds for copy in copies]
            since = copies[-1].number if copies else since
    return _figures(what, speeds)


def _figures(what: str, speeds: list[float] | None) -> list[Figure]:
    """Of copies in bytes a second."""
    fast = [sum(speed > FAST for speed in speeds) / len(speeds)] if speeds else []
    return [
        Figure(name=f"a layer copy, {what}", unit="GB/s", value=Spread.of(speed / 1e9 for speed in speeds or ())),
        Figure(name=f"layer copies above {FAST / 1e9:.0f} GB/s, of all, {what}", unit="x", value=Spread.of(fast)),
    ]
