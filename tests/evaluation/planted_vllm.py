"""A package named vllm that stands for vLLM in the processes of the baselines: its options and its asynchronous engine,
whose next token is a function of all tokens before it. `plant` writes it into a folder."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

INIT = """
from dataclasses import dataclass

@dataclass
class SamplingParams:
    temperature: float
    max_tokens: int
    ignore_eos: bool
    detokenize: bool
"""
OPTIONS = """
from dataclasses import dataclass

@dataclass
class AsyncEngineArgs:
    model: str
    dtype: str
    max_model_len: int
    skip_tokenizer_init: bool
    enable_prefix_caching: bool
    enforce_eager: bool = False
    kv_cache_memory_bytes: int | None = None
    kv_offloading_size: float | None = None
"""
ENGINE = """
import asyncio
from types import SimpleNamespace

preempted = []


def shared(one, other):
    return next((at for at, (a, b) in enumerate(zip(one, other)) if a != b), min(len(one), len(other)))


class AsyncLLM:
    @classmethod
    def from_engine_args(cls, args):
        made = cls()
        made.args, made.running, made.seen = args, 0, []
        made.going_on = asyncio.Event()
        made.going_on.set()
        return made

    async def generate(self, prompt, sampling_params, request_id):
        tokens = prompt["prompt_token_ids"]
        assert len(tokens) + sampling_params.max_tokens <= self.args.max_model_len
        salt = prompt.get("cache_salt")
        cached = max((shared(tokens, one) for one, salted in self.seen if salted == salt), default=0)
        self.running += 1
        if self.running > 1 and not self.args.kv_offloading_size:
            preempted.append(request_id)
        made = []
        try:
            for _ in range(sampling_params.max_tokens):
                await self.going_on.wait()
                made.append(self.following([*tokens, *made]))
                yield SimpleNamespace(outputs=[SimpleNamespace(token_ids=list(made))], num_cached_tokens=cached)
                await asyncio.sleep(0)
        finally:
            self.running -= 1
            self.seen.append(([*tokens, *made], salt))

    def following(self, tokens):
        return sum((at + 1) * token for at, token in enumerate(tokens)) % 97

    async def pause_generation(self, mode="abort", clear_cache=True):
        self.going_on.clear()

    async def resume_generation(self):
        self.going_on.set()

    def shutdown(self):
        pass
"""
METRICS = """
from types import SimpleNamespace
from vllm.v1.engine.async_llm import preempted


def get_metrics_snapshot():
    return [SimpleNamespace(name="vllm:num_preemptions", value=len(preempted))]
"""
FILES = {
    "__init__.py": INIT,
    "engine/__init__.py": "",
    "engine/arg_utils.py": OPTIONS,
    "v1/__init__.py": "",
    "v1/engine/__init__.py": "",
    "v1/engine/async_llm.py": ENGINE,
    "v1/metrics/__init__.py": "",
    "v1/metrics/reader.py": METRICS,
}


def plant(folder: Path, monkeypatch: pytest.MonkeyPatch, **changes: str) -> None:
    """Write the package; in each of its files, the text of one argument's name becomes that of its value."""
    for name, source in FILES.items():
        file = folder / "vllm" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        for old, new in changes.items():
            source = source.replace(old, new)
        file.write_text(source)
    monkeypatch.setenv("PYTHONPATH", f"{folder}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
