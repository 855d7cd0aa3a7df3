"""vLLM where it is installed, by its documented interface: sleep, pause, and its own offload for streamed weights.

An error that keeps vLLM from starting is recorded as its reason for not running. Written against vLLM 0.10 to 0.32;
features that an installed version lacks are reported as missing.
"""

from __future__ import annotations

import asyncio
import importlib.util
import inspect
import os
import subprocess
import time
from collections.abc import Callable
from typing import Any

from djinn_evaluation.baselines.answering import serve
from djinn_evaluation.baselines.sources import source_of
from djinn_evaluation.baselines.vllm_interface import answers_of, found_in
from djinn_evaluation.baselines.vllm_layers import stop_at_layer

SLEEP_LEVEL = 1  # weights to host memory, keys and values discarded; level 2 would lose the weights too
SEED = 0
IN_PROCESS = "VLLM_ENABLE_V1_MULTIPROCESSING"  # 0: the model is in this process, where a hook can be watched


class Vllm:
    """One engine of vLLM, in this process and its workers."""

    llm: Any

    def examine(self, **asked: Any) -> dict[str, Any]:
        """Report the interface's features and a sleep. `status` is not_run where vLLM is missing, does not start
        or calls no hook."""
        if importlib.util.find_spec("vllm") is None:
            return not_run("vLLM is not installed here", installed=False)
        try:
            return self._examined(**asked)
        except Exception as error:  # noqa: BLE001  another project's start and model: its error is the reason
            return not_run(f"vLLM was not examined: {told(error)}")

    def _examined(self, tokens: list[int], new: int, device: str | None = None, **loading: Any) -> dict[str, Any]:
        os.environ[IN_PROCESS] = "0"
        import vllm  # type: ignore[import-not-found]  # present on the machines that compare with it

        see_only(device)
        options = engine_options(len(tokens) + 2 * new, enforce_eager=True, **loading)
        refused = ""
        try:
            self.llm = vllm.LLM(**options, enable_sleep_mode=True)
        except (TypeError, ValueError) as error:  # on platforms without it, and in versions before it
            refused = told(error)
            self.llm = vllm.LLM(**options)
        found, stopped = found_in(vllm), stop_at_layer(self.llm, tokens, greedy(new))
        slept = {"status": "not_run", "reason": f"vLLM refuses it: {refused}"} if refused else self._sleep(tokens, new)
        return {
            "status": "success",
            "vllm_installed": True,
            "vllm_initialized": True,
            "api_tests": {**answers_of(found), "public_methods": list(found.methods)},
            "api_found": found.evidence(),
            "conclusion": {"supports_layer_breakpoints": stopped["stops_inside_a_pass"]},
            "stop_at_layer": stopped,
            "sleep": slept,
        }

    def _sleep(self, tokens: list[int], new: int) -> dict[str, Any]:
        """Sleep and wake by `LLM.sleep` and `LLM.wake_up`, with the same prompt before and after."""
        before, held = self.generate(tokens, new)["tokens"], device_gigabytes()
        self.llm.sleep(level=SLEEP_LEVEL)
        asleep, begun = device_gigabytes(), time.perf_counter()
        self.llm.wake_up()
        woken = 1000 * (time.perf_counter() - begun)
        return {
            "status": "success",
            "level": SLEEP_LEVEL,
            "vram_before_sleep_gb": held,
            "vram_asleep_gb": asleep,
            "wake_up_ms": woken,
            "tokens_equal_after": self.generate(tokens, new)["tokens"] == before,
        }

    def pause(self, **asked: Any) -> dict[str, Any]:
        """Put a request aside in the midst of its tokens, and send another one meanwhile."""
        try:
            from vllm.v1.engine.async_llm import AsyncLLM  # type: ignore[import-not-found]

            return asyncio.run(_paused(AsyncLLM, **asked))
        except Exception as error:  # noqa: BLE001  as above
            return {"status": "not_run", "reason": f"vLLM does not pause: {told(error)}"}

    def load(self, length: int, cpu_offload_gb: float, device: str | None = None, **loading: Any) -> dict[str, Any]:
        """Start an engine that keeps `cpu_offload_gb` of weights on the host and reads them in every pass. `status` is
        not_run where vLLM is missing or does not start, with the reason."""
        if importlib.util.find_spec("vllm") is None:
            return {"status": "not_run", "reason": "vLLM is not installed here"}
        try:
            import vllm

            see_only(device)
            self.llm = vllm.LLM(**engine_options(length, **loading), cpu_offload_gb=cpu_offload_gb)
        except Exception as error:  # noqa: BLE001  as above
            return {"status": "not_run", "reason": f"vLLM did not start: {told(error)}"}
        return {"status": "success"}

    def generate(self, tokens: list[int], new: int) -> dict[str, Any]:
        """Generate greedily; return tokens and seconds."""
        begun = time.perf_counter()
        made = self.llm.generate([{"prompt_token_ids": tokens}], greedy(new), use_tqdm=False)
        return {"tokens": list(made[0].outputs[0].token_ids), "seconds": time.perf_counter() - begun}


async def _paused(
    engines: Any, tokens: list[int], new: int, seconds: float, device: str | None = None, **loading: Any
) -> dict[str, Any]:
    """Put request A aside between two of its tokens, the finest step that vLLM offers, while request B runs; then do so
    by the pause of the whole engine, under which no request goes on. `engines` is the class AsyncLLM."""
    from vllm.engine.arg_utils import AsyncEngineArgs  # type: ignore[import-not-found]

    see_only(device)
    options = engine_options(len(tokens) + new, enforce_eager=True, enable_prefix_caching=True, **loading)
    engine = engines.from_engine_args(AsyncEngineArgs(**options))
    try:
        aside = await _put_aside(engine, tokens, new, seconds)
        return {"status": "success", **aside, "whole_engine": await _pause_whole(engine, tokens, new, seconds)}
    finally:
        engine.shutdown()


async def _put_aside(engine: Any, tokens: list[int], new: int, seconds: float) -> dict[str, Any]:
    """Abort A, for vLLM has no pause of one request, run B, and ask for A again with the tokens that it had."""
    whole = await _RequestUnderWay(engine, "a alone", tokens, new).ended()
    a = _RequestUnderWay(engine, "a", tokens, new)
    await a.begins.wait()
    await a.abort()
    begun, b = time.perf_counter(), _RequestUnderWay(engine, "b", tokens, new)
    ended, _ = await asyncio.wait({b.task}, timeout=seconds)
    held, had = device_gigabytes(), list(a.tokens)
    await asyncio.sleep(max(0.0, seconds - (time.perf_counter() - begun)))
    await b.ended()
    rest = _RequestUnderWay(engine, "a again", [*tokens, *had], new - len(had)) if len(had) < new else None
    again = had + (await rest.ended() if rest is not None else [])
    return {
        "paused_after_tokens": len(had),
        "vram_during_pause_gb": held,
        "request_b_ended_during_pause": bool(ended),
        "ended": len(again) == new,
        "tokens_equal_without_pause": again == whole,
        "cached_tokens_on_return": 0 if rest is None else rest.cached,
    }


async def _pause_whole(engine: Any, tokens: list[int], new: int, seconds: float) -> dict[str, Any]:
    """Pause all requests by `pause_generation`, where this vLLM can keep them."""
    if "mode" not in inspect.signature(engine.pause_generation).parameters:
        return {"status": "not_run", "reason": "this vLLM's pause_generation cannot keep requests"}
    a = _RequestUnderWay(engine, "a of all", tokens, new)
    await a.begins.wait()
    await engine.pause_generation(mode="keep", clear_cache=False)
    had, b = len(a.tokens), _RequestUnderWay(engine, "b of all", tokens, new)
    ended, _ = await asyncio.wait({b.task}, timeout=seconds)
    stood = len(a.tokens) == had
    await engine.resume_generation()
    await asyncio.gather(a.task, b.task)
    return {
        "status": "success",
        "paused_after_tokens": had,
        "stood_still": stood,
        "request_b_ended_during_pause": bool(ended),
    }


class _RequestUnderWay:
    """One request of the asynchronous engine, under way from its making; `tokens` are those that came so far, `cached`
    those of its prompt that were in the cache."""

    def __init__(self, engine: Any, name: str, prompt: list[int], new: int) -> None:
        self.tokens: list[int] = []
        self.cached: int | None = None
        self.begins = asyncio.Event()
        self.task = asyncio.create_task(self._hear(engine, name, prompt, new))

    async def _hear(self, engine: Any, name: str, prompt: list[int], new: int) -> None:
        asked = {"prompt": {"prompt_token_ids": prompt}, "sampling_params": greedy(new), "request_id": name}
        async for output in engine.generate(**asked):
            self.tokens, self.cached = list(output.outputs[0].token_ids), output.num_cached_tokens
            self.begins.set()

    async def ended(self) -> list[int]:
        await self.task
        return self.tokens

    async def abort(self) -> None:
        """End it where it is: vLLM aborts a request whose asker has gone."""
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


def engine_options(
    length: int, model: str, dtype: str | None, random_weights: bool = False, **more: Any
) -> dict[str, Any]:
    """Return the constructor's options. Input and output are tokens, so no tokenizer is needed; `length` is the longest
    sequence."""
    drawn = {"load_format": "dummy", "seed": SEED} if random_weights else {}
    return {
        "model": source_of(model),
        "dtype": dtype or "auto",
        "max_model_len": length,
        "skip_tokenizer_init": True,
        **drawn,
        **more,
    }


def greedy(new: int) -> Any:
    import vllm

    return vllm.SamplingParams(temperature=0.0, max_tokens=new, ignore_eos=True, detokenize=False)


def see_only(device: str | None, environment: Any = os.environ) -> None:
    """Restrict, before CUDA starts, the GPUs visible to this process to the one of that index."""
    index = (device or "").partition("cuda:")[2]
    if index:
        seen = environment.get("CUDA_VISIBLE_DEVICES")
        environment["CUDA_VISIBLE_DEVICES"] = seen.split(",")[int(index)].strip() if seen else index


def device_gigabytes(run: Callable[..., Any] = subprocess.run) -> float | None:
    """Return the gigabytes (GiB) in use on the whole GPU by nvidia-smi, which takes no memory there; None without a
    GPU."""
    asked = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    only = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[0].strip()
    try:
        said = run([*asked, f"--id={only or 0}"], capture_output=True, text=True, check=False)
    except OSError:
        return None
    return float(said.stdout.split()[0]) / 1024 if said.returncode == 0 else None


def told(error: Exception) -> str:
    """Return the error in one line."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def not_run(reason: str, *, installed: bool = True) -> dict[str, Any]:
    """Return the fields of a result file without a run."""
    return {
        "status": "not_run",
        "vllm_installed": installed,
        "vllm_initialized": False,
        "api_tests": None,
        "conclusion": None,
        "reasons": {"api_tests": reason, "conclusion": reason},
    }


if __name__ == "__main__":
    engine = Vllm()
    serve({"examine": engine.examine, "pause": engine.pause, "load": engine.load, "generate": engine.generate})
