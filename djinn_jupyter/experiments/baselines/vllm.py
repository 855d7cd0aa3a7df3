"""vLLM where it is installed: what its public interface offers for stopping inside a model, looked up, not assumed; and
its own offload for streamed weights.
"""

from __future__ import annotations

import importlib.util
import time
from typing import Any

from djinn_jupyter.experiments.baselines.answering import serve

WANTED = {
    "breakpoint_layer_parameter": ("breakpoint_layer", "layer_breakpoint"),
    "pause_at_layer_method": ("pause_at_layer",),
    "resume_from_checkpoint_method": ("resume_from_checkpoint",),
    "get_activation_at_layer_method": ("get_activation_at_layer",),
}


def examine(model: str) -> dict[str, Any]:
    """`status` is not_run where vLLM is missing or does not start, with the reason."""
    if importlib.util.find_spec("vllm") is None:
        return _not_run("vLLM is not installed here", installed=False)
    try:
        import vllm  # type: ignore[import-not-found]  # present on the machines that compare with it

        llm = vllm.LLM(model=model)
    except Exception as error:  # noqa: BLE001  another project's start: whatever it says is the reason
        return _not_run(f"vLLM did not start: {type(error).__name__}: {str(error).splitlines()[0]}", installed=True)
    public = [name for name in dir(llm) if not name.startswith("_")]
    parameters = vllm.SamplingParams.__annotations__
    found: dict[str, Any] = {
        test: any(name in public or name in parameters for name in names) for test, names in WANTED.items()
    }
    return {
        "status": "success",
        "vllm_installed": True,
        "vllm_initialized": True,
        "api_tests": {**found, "public_methods": public},
        "conclusion": {"supports_layer_breakpoints": any(found.values())},
    }


class Offloading:
    """vLLM's own `cpu_offload_gb`: weights beyond the budget stay on the host and are read in every pass."""

    llm: Any

    def load(self, model: str, dtype: str, cpu_offload_gb: float) -> dict[str, Any]:
        """`status` is not_run where vLLM is missing or does not start, with the reason."""
        if importlib.util.find_spec("vllm") is None:
            return {"status": "not_run", "reason": "vLLM is not installed here"}
        try:
            import vllm

            self.llm = vllm.LLM(model=model, dtype=dtype, cpu_offload_gb=cpu_offload_gb)
        except Exception as error:  # noqa: BLE001  another project's start: whatever it says is the reason
            return {"status": "not_run", "reason": f"vLLM did not start: {str(error).splitlines()[0]}"}
        return {"status": "success"}

    def generate(self, tokens: list[int], new: int) -> dict[str, Any]:
        """Greedy: its tokens and seconds."""
        import vllm

        wanted = vllm.SamplingParams(temperature=0.0, max_tokens=new, ignore_eos=True)
        begun = time.perf_counter()
        made = self.llm.generate([{"prompt_token_ids": tokens}], wanted)
        return {"tokens": list(made[0].outputs[0].token_ids), "seconds": time.perf_counter() - begun}


def _not_run(reason: str, *, installed: bool) -> dict[str, Any]:
    return {
        "status": "not_run",
        "vllm_installed": installed,
        "vllm_initialized": False,
        "api_tests": None,
        "conclusion": None,
        "reasons": {"api_tests": reason, "conclusion": reason},
    }


if __name__ == "__main__":
    offloading = Offloading()
    serve({"examine": examine, "load": offloading.load, "generate": offloading.generate})
