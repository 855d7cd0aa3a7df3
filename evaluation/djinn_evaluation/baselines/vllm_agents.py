"""Agents on vLLM's asynchronous engine. It keeps requests and no sessions: each turn is a request with all tokens so
far, of which the prefix cache, and the offload to the host where it is on, still have some; the scheduler preempts.

Written against vLLM 0.12 to 0.32, whose options give the cache a size in bytes.
"""

from __future__ import annotations

import asyncio
import importlib.util
import time
from collections.abc import Mapping, Sequence
from typing import Any

from djinn_evaluation.baselines.answering import serve
from djinn_evaluation.baselines.vllm import engine_options, greedy, see_only, told

SIZE, OFFLOAD = "kv_cache_memory_bytes", "kv_offloading_size"  # options of the engine, which older versions lack
PREEMPTIONS = "vllm:num_preemptions"


class VllmAgents:
    """One engine of vLLM and the loop that it runs in."""

    engine: Any

    def __init__(self) -> None:
        self._loop, self._asked, self._lives = asyncio.new_event_loop(), 0, 0

    def start(self, **asked: Any) -> dict[str, Any]:
        """Start an engine whose cache has `cache_bytes` on the device and, unless 0, `offload_gb` on the host. `status`
        is not_run where vLLM is missing, lacks that, or does not start, with the reason."""
        if importlib.util.find_spec("vllm") is None:
            return {"status": "not_run", "reason": "vLLM is not installed here (pip install vllm, for a GPU)"}
        try:
            return self._loop.run_until_complete(self._start(**asked))
        except Exception as error:  # noqa: BLE001  another project's start: its error is the reason
            return {"status": "not_run", "reason": f"vLLM did not start: {told(error)}"}

    def live(self, agents: list[Any], reply_tokens: int, *, pauses: bool) -> dict[str, Any]:
        """Let the agents live, together and with their pauses, or one after the other without. Return the replies of
        each, the preemptions meanwhile (None where this vLLM does not count them), and the seconds. What an earlier
        call left in the cache is not found."""
        self._lives += 1
        return self._loop.run_until_complete(self._live(agents, reply_tokens, pauses=pauses))

    async def _start(
        self, length: int, cache_bytes: int, offload_gb: float, device: str | None = None, **loading: Any
    ) -> dict[str, Any]:
        see_only(device)
        from vllm.engine.arg_utils import AsyncEngineArgs  # type: ignore[import-not-found]
        from vllm.v1.engine.async_llm import AsyncLLM  # type: ignore[import-not-found]

        sized = {SIZE: cache_bytes, **({OFFLOAD: offload_gb} if offload_gb else {})}
        lacking = [name for name in sized if name not in AsyncEngineArgs.__dataclass_fields__]
        if lacking:
            return {"status": "not_run", "reason": f"this vLLM has no option {lacking[0]}"}
        options = engine_options(length, enable_prefix_caching=True, **loading)
        self.engine = AsyncLLM.from_engine_args(AsyncEngineArgs(**options, **sized))
        return {"status": "success"}

    async def _live(self, agents: list[Any], reply_tokens: int, *, pauses: bool) -> dict[str, Any]:
        shared: list[int] = next((agent["prefix"] for agent in agents if agent["prefix"]), [])
        after = (await self._reply(shared, 1))["tokens"] if shared else []
        begun, before = time.perf_counter(), preemptions()
        lives = (self._life(agent, after, reply_tokens, begun, pauses=pauses) for agent in agents)
        found = await asyncio.gather(*lives) if pauses else [await life for life in lives]
        counted = preemptions()
        return {
            "agents": found,
            "preemptions": None if counted is None or before is None else counted - before,
            "seconds": time.perf_counter() - begun,
        }

    async def _life(
        self, agent: Mapping[str, Any], after: Sequence[int], reply_tokens: int, begun: float, *, pauses: bool
    ) -> list[dict[str, Any]]:
        """Return the replies of an agent, turn by turn; `after` follows the shared tokens."""
        tokens = [*agent["prefix"], *(after if agent["prefix"] else ())]
        replies = []
        for turn in agent["turns"]:
            await asyncio.sleep(turn["pause_seconds"] if pauses else 0)
            tokens += turn["tokens"]
            asked = time.perf_counter() - begun
            replies.append({**await self._reply(tokens, reply_tokens), "asked": asked})
            tokens += replies[-1]["tokens"]
        return replies

    async def _reply(self, tokens: Sequence[int], new: int) -> dict[str, Any]:
        """Return the tokens of one request, the milliseconds to the first and from one to the next, and how many of the
        prompt's were in the cache."""
        self._asked += 1
        asked, came = time.perf_counter(), []
        prompt = {"prompt_token_ids": list(tokens), "cache_salt": f"live {self._lives}"}
        answered = self.engine.generate(prompt=prompt, sampling_params=greedy(new), request_id=f"request {self._asked}")
        async for output in answered:
            came.append((time.perf_counter(), output))
        (first, _), (last, whole) = came[0], came[-1]
        return {
            "tokens": list(whole.outputs[0].token_ids),
            "first_ms": 1000 * (first - asked),
            "token_ms": 1000 * (last - first) / max(new - 1, 1),
            "cached_tokens": whole.num_cached_tokens,
        }


def preemptions() -> int | None:
    """Return how often vLLM preempted a request since its start, by its own metrics; None where it has none."""
    try:
        from vllm.v1.metrics.reader import get_metrics_snapshot  # type: ignore[import-not-found]
    except ImportError:
        return None
    return sum(int(one.value) for one in get_metrics_snapshot() if one.name.startswith(PREEMPTIONS))


if __name__ == "__main__":
    side = VllmAgents()
    serve({"start": side.start, "live": side.live})
