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

from djinn_jupyter.experiments.baselines.answering import serve
from djinn_jupyter.experiments.baselines.sources import source_of
from djinn_jupyter.experiments.baselines.vllm_interface import answers_of, found_in

SLEEP_LEVEL = 1  # weights to host memory, keys and values discarded; level 2 would lose the weights too
SEED = 0


class Vllm:
    """One engine of vLLM, in this process and its workers."""

    llm: Any

    def examine(self, **asked: Any) -> dict[str, Any]:
        """Report the interface's features and a sleep. `status` is not_run where vLLM is missing or does not start."""
        if importlib.util.find_spec("vllm") is None:
            return not_run("vLLM is not installed here", installed=False)
        try:
            return self._examined(**asked)
        except Exception as error:  # noqa: BLE001  another project's start: its error is the reason
            return not_run(f"vLLM did not start: {told(error)}")

    def _examined(self, tokens: list[int], new: int, device: str | None = None, **loading: Any) -> dict[str, Any]:
        import vllm  # type: ignore[import-not-found]  # present on the machines that compare with it

        see_only(device)
        options = _options(len(tokens) + 2 * new, enforce_eager=True, **loading)
        refused = ""
        try:
            self.llm = vllm.LLM(**options, enable_sleep_mode=True)
        except (TypeError, ValueError) as error:  # on platforms without it, and in versions before it
            refused = told(error)
            self.llm = vllm.LLM(**options)
        found = found_in(vllm)
        slept = {"status": "not_run", "reason": f"vLLM refuses it: {refused}"} if refused else self._sleep(tokens, new)
        return {
            "status": "success",
            "vllm_installed": True,
            "vllm_initialized": True,
            "api_tests": {**answers_of(found), "public_methods": list(found.methods)},
            "api_found": found.evidence(),
            "conclusion": {"supports_layer_breakpoints": found.stops_at_layers},
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
        """Pause the asynchronous engine in the middle of a request, and send another request meanwhile."""
        try:
            from vllm.v1.engine.async_llm import AsyncLLM  # type: ignore[import-not-found]

            if "mode" not in inspect.signature(AsyncLLM.pause_generation).parameters:
                return {"status": "not_run", "reason": "this vLLM's pause_generation cannot keep requests"}
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
            self.llm = vllm.LLM(**_options(length, **loading), cpu_offload_gb=cpu_offload_gb)
        except Exception as error:  # noqa: BLE001  as above
            return {"status": "not_run", "reason": f"vLLM did not start: {told(error)}"}
        return {"status": "success"}

    def generate(self, tokens: list[int], new: int) -> dict[str, Any]:
        """Generate greedily; return tokens and seconds."""
        begun = time.perf_counter()
        made = self.llm.generate([{"prompt_token_ids": tokens}], _greedy(new), use_tqdm=False)
        return {"tokens": list(made[0].outputs[0].token_ids), "seconds": time.perf_counter() - begun}


async def _paused(
    engines: Any, tokens: list[int], new: int, seconds: float, device: str | None = None, **loading: Any
) -> dict[str, Any]:
    """Pause request A between two of its tokens, the finest step that vLLM offers. `engines` is the class AsyncLLM."""
    from vllm.engine.arg_utils import AsyncEngineArgs  # type: ignore[import-not-found]

    see_only(device)
    engine = engines.from_engine_args(AsyncEngineArgs(**_options(len(tokens) + new, enforce_eager=True, **loading)))
    prompt, begins, came = {"prompt_token_ids": tokens}, asyncio.Event(), {"a": 0, "b": 0}

    async def ask(name: str) -> None:
        async for output in engine.generate(prompt=prompt, sampling_params=_greedy(new), request_id=name):
            came[name] = len(output.outputs[0].token_ids)
            begins.set()

    try:
        request_a = asyncio.create_task(ask("a"))
        await begins.wait()
        await engine.pause_generation(mode="keep", clear_cache=False)
        paused_at, begun = came["a"], time.perf_counter()
        request_b = asyncio.create_task(ask("b"))
        ended, _ = await asyncio.wait({request_b}, timeout=seconds)
        held, stood = device_gigabytes(), came["a"] == paused_at
        await asyncio.sleep(max(0.0, seconds - (time.perf_counter() - begun)))
        await engine.resume_generation()
        await asyncio.gather(request_a, request_b)
    finally:
        engine.shutdown()
    return {
        "status": "success",
        "paused_after_tokens": paused_at,
        "stood_still": stood,
        "vram_during_pause_gb": held,
        "request_b_ended_during_pause": bool(ended),
        "ended": came["a"] == new,
    }


def _options(length: int, model: str, dtype: str | None, random_weights: bool = False, **more: Any) -> dict[str, Any]:
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


def _greedy(new: int) -> Any:
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
