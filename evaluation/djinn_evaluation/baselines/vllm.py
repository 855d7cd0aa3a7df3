"""vLLM where it is installed, by its documented interface: sleep, pause, its own offload for streamed weights, agents
on its asynchronous engine, and a stop inside a pass, asked of it from a hook on a layer.

An error that keeps vLLM from starting is recorded as its reason for not running. Written against vLLM 0.10 to 0.33;
features that an installed version lacks are reported as missing."""

from __future__ import annotations

import asyncio
import importlib.util
import inspect
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from importlib import import_module
from typing import Any, Final

from djinn_evaluation.baselines.asking import serve, source_of
from djinn_evaluation.nvml import Unseen, card
from djinn_jupyter.units import GIB

_STOP = r"(break|pause|stop|halt)"
WANTED = {  # whether a method or a parameter, and how its name would read
    "breakpoint_layer_parameter": ("parameters", rf"{_STOP}.*layer|layer.*{_STOP}"),
    "pause_at_layer_method": ("methods", rf"{_STOP}.*layer|layer.*{_STOP}"),
    "resume_from_checkpoint_method": ("methods", r"(resume|restore|continue).*(checkpoint|layer|state)"),
    "get_activation_at_layer_method": ("methods", r"activation|(get|return|extract).*hidden"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Interface:
    """Public names, each after its class, such as `LLM.sleep`; parameters of methods and of options."""

    methods: tuple[str, ...]
    parameters: tuple[str, ...]

    def evidence(self) -> dict[str, list[str]]:
        """Return for each test the names that match it."""
        return {
            test: [name for name in getattr(self, kind) if re.search(pattern, name.partition(".")[2])]
            for test, (kind, pattern) in WANTED.items()
        }


def answers_of(found: Interface) -> dict[str, bool]:
    return {test: bool(names) for test, names in found.evidence().items()}


def found_in(vllm: Any) -> Interface:
    """Return an installed vLLM's interface: its offline class, its asynchronous engine, sampling and engine options."""
    classes = [vllm.LLM, *_there("vllm.v1.engine.async_llm", "AsyncLLM")]
    options = [vllm.SamplingParams, *_there("vllm.engine.arg_utils", "EngineArgs")]
    methods = tuple(f"{owner.__name__}.{name}" for owner in classes for name in _public(owner))
    taken = [f"{owner.__name__}.{name}" for owner in classes for name in _taken_by(owner)]
    given = [f"{owner.__name__}.{name}" for owner in options for name in fields_of(owner)]
    return Interface(methods=methods, parameters=tuple(dict.fromkeys([*taken, *given])))


def _there(module: str, name: str) -> Iterator[Any]:
    """Yield the class where this version has it."""
    try:
        yield getattr(import_module(module), name)
    except (ImportError, AttributeError):
        return


def _public(owner: Any) -> list[str]:
    return [name for name, _ in inspect.getmembers(owner, callable) if not name.startswith("_")]


def _taken_by(owner: Any) -> Iterable[str]:
    """Yield the parameters of the constructor and of the public methods."""
    for name in ("__init__", *_public(owner)):
        try:
            yield from (given for given in inspect.signature(getattr(owner, name)).parameters if given != "self")
        except (TypeError, ValueError):
            continue  # written in another language


def fields_of(owner: Any) -> list[str]:
    if is_dataclass(owner):
        return [field.name for field in fields(owner)]
    return [name for name in inspect.signature(owner).parameters if name != "self"]


SLEEP_LEVEL: Final = 1  # weights to host memory, keys and values discarded; level 2 would lose the weights too
SEED: Final = 0
IN_PROCESS: Final = "VLLM_ENABLE_V1_MULTIPROCESSING"  # 0: the model is in this process, where a hook can be watched
STOPPED: Final = "stopped at a layer"  # the request's name
SIZE, OFFLOAD = "kv_cache_memory_bytes", "kv_offloading_size"  # options of the engine, which older versions lack
PREEMPTIONS: Final = "vllm:num_preemptions"


class Vllm:
    """One engine of vLLM, in this process and its workers, and the loop that an asynchronous one runs in."""

    llm: Any
    engine: Any

    def __init__(self) -> None:
        self._loop, self._asked, self._lives = asyncio.new_event_loop(), 0, 0

    def examine(self, **asked: Any) -> dict[str, Any]:
        """Report features and a sleep. `status` not_run: vLLM is missing, does not start or calls no hook."""
        found = _tried("was not examined", lambda: self._examined(**asked))
        installed = importlib.util.find_spec("vllm") is not None
        return found if found["status"] == "success" else not_run(found["reason"], installed=installed)

    def _examined(self, tokens: list[int], new: int, device: str | None = None, **loading: Any) -> dict[str, Any]:
        os.environ[IN_PROCESS] = "0"
        import vllm  # type: ignore[import-not-found]  # present on the machines that compare with it

        see_only(device)
        options = engine_options(len(tokens) + 2 * new, enforce_eager=True, **loading)
        try:
            self.llm, refused = vllm.LLM(**options, enable_sleep_mode=True), ""
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

    def load(self, length: int, cpu_offload_gb: float, device: str | None = None, **loading: Any) -> dict[str, Any]:
        """Start an engine with `cpu_offload_gb` of weights on the host, or tell why it is not run."""

        def started() -> dict[str, Any]:
            import vllm

            see_only(device)
            self.llm = vllm.LLM(**engine_options(length, **loading), cpu_offload_gb=cpu_offload_gb)
            return {"status": "success"}

        return _tried("did not start", started)

    def generate(self, tokens: list[int], new: int) -> dict[str, Any]:
        """Generate greedily; return tokens and seconds."""
        begun = time.perf_counter()
        made = self.llm.generate([{"prompt_token_ids": tokens}], greedy(new), use_tqdm=False)
        return {"tokens": list(made[0].outputs[0].token_ids), "seconds": time.perf_counter() - begun}

    def pause(self, tokens: list[int], new: int, seconds: float, **loading: Any) -> dict[str, Any]:
        """Put request A aside between two tokens while B runs; then pause the whole engine."""

        async def paused() -> dict[str, Any]:
            await self._open(len(tokens) + new, enforce_eager=True, **loading)
            try:
                aside = await _put_aside(self.engine, tokens, new, seconds)
                whole = await _pause_whole(self.engine, tokens, new, seconds)
                return {"status": "success", **aside, "whole_engine": whole}
            finally:
                self.engine.shutdown()

        return _tried("does not pause", lambda: self._loop.run_until_complete(paused()))

    async def _open(self, length: int, device: str | None = None, **options: Any) -> None:
        """Start an asynchronous engine with a prefix cache."""
        see_only(device)
        from vllm.engine.arg_utils import AsyncEngineArgs  # type: ignore[import-not-found]
        from vllm.v1.engine.async_llm import AsyncLLM  # type: ignore[import-not-found]

        lacking = [name for name in (SIZE, OFFLOAD) if name in options and name not in fields_of(AsyncEngineArgs)]
        if lacking:
            raise Lacking(f"this vLLM has no option {lacking[0]}")
        asked = engine_options(length, enable_prefix_caching=True, **options)
        self.engine = AsyncLLM.from_engine_args(AsyncEngineArgs(**asked))

    def start(self, length: int, cache_bytes: int, offload_gb: float, **loading: Any) -> dict[str, Any]:
        """Start an engine with `cache_bytes` on the device and `offload_gb` on the host, or tell why not."""
        sized: dict[str, Any] = {SIZE: cache_bytes, **({OFFLOAD: offload_gb} if offload_gb else {})}

        def started() -> dict[str, Any]:
            self._loop.run_until_complete(self._open(length, **sized, **loading))
            return {"status": "success"}

        return _tried("did not start", started)

    def live(self, agents: list[Any], reply_tokens: int, *, pauses: bool) -> dict[str, Any]:
        """Let the agents live, together and with their pauses, or one after the other without. Each turn is a request
        with all tokens so far. Return the replies of each, the preemptions meanwhile (None where this vLLM does not
        count them), and the seconds. What an earlier call left in the cache is not found."""
        self._lives += 1
        return self._loop.run_until_complete(self._live(agents, reply_tokens, pauses=pauses))

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
        """Return one request's tokens, milliseconds to the first and between, and cached tokens of its prompt."""
        self._asked += 1
        asked = time.perf_counter()
        request = RequestUnderWay(self.engine, f"request {self._asked}", tokens, new, cache_salt=f"live {self._lives}")
        await request.task
        first, last = request.times[0], request.times[-1]
        return {
            "tokens": request.tokens,
            "first_ms": 1000 * (first - asked),
            "token_ms": 1000 * (last - first) / max(new - 1, 1),
            "cached_tokens": request.cached,
        }


class RequestUnderWay:
    """One request of the asynchronous engine, sent when constructed: tokens so far, their times, the cached ones."""

    def __init__(self, engine: Any, name: str, prompt: Sequence[int], new: int, **salted: str) -> None:
        self.tokens: list[int] = []
        self.times: list[float] = []
        self.cached: int | None = None
        self.begins = asyncio.Event()
        asked = {"prompt": {"prompt_token_ids": list(prompt), **salted}, "sampling_params": greedy(new)}
        self.task = asyncio.create_task(self._hear(engine.generate(**asked, request_id=name)))

    async def _hear(self, answered: Any) -> None:
        async for output in answered:
            self.times.append(time.perf_counter())
            self.tokens, self.cached = list(output.outputs[0].token_ids), output.num_cached_tokens
            self.begins.set()

    async def ended(self) -> list[int]:
        await self.task
        return self.tokens

    async def abort(self) -> None:
        """End it early: vLLM aborts a request whose client has gone."""
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


async def _put_aside(engine: Any, tokens: list[int], new: int, seconds: float) -> dict[str, Any]:
    """Abort A, for vLLM has no pause of one request, run B, and ask for A again with the tokens that it had."""
    whole = await RequestUnderWay(engine, "a alone", tokens, new).ended()
    a = RequestUnderWay(engine, "a", tokens, new)
    await a.begins.wait()
    await a.abort()
    begun, b = time.perf_counter(), RequestUnderWay(engine, "b", tokens, new)
    ended, _ = await asyncio.wait({b.task}, timeout=seconds)
    held, had = device_gigabytes(), list(a.tokens)
    await asyncio.sleep(max(0.0, seconds - (time.perf_counter() - begun)))
    await b.ended()
    rest = RequestUnderWay(engine, "a again", [*tokens, *had], new - len(had)) if len(had) < new else None
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
    a = RequestUnderWay(engine, "a of all", tokens, new)
    await a.begins.wait()
    await engine.pause_generation(mode="keep", clear_cache=False)
    had, b = len(a.tokens), RequestUnderWay(engine, "b of all", tokens, new)
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


def stop_at_layer(llm: Any, tokens: list[int], sampling: Any) -> dict[str, Any]:
    """Run a request; when its first pass has come to the middle layer, abort it by the engine's own interface. Return
    the layers that ran in that pass before and after, the shape that the hook read there, and True where the pass
    stopped. The model has to be in this process; RuntimeError where none of its layers called the hook."""
    layers, engine = llm.apply_model(layers_of)[0], llm.llm_engine
    middle = len(layers) // 2
    ran, shape = list[int](), list[int]()  # the layers of the passes as they come, and what the hook read

    def hook_of(number: int) -> Any:
        def hook(module: Any, inputs: Any, output: Any) -> None:
            ran.append(number)
            if number == middle and not shape:
                shape.extend((output[0] if isinstance(output, tuple) else output).shape)
                engine.abort_request([STOPPED])

        return hook

    hooks = [layer.register_forward_hook(hook_of(number)) for number, layer in enumerate(layers)]
    try:
        engine.add_request(STOPPED, {"prompt_token_ids": tokens}, sampling)
        while engine.has_unfinished_requests():
            engine.step()
    finally:
        for hook in hooks:
            hook.remove()
    if not shape:
        raise RuntimeError("no pass came to the hook on the middle layer, so none was asked to stop")
    before = ran.index(middle) + 1
    rest = ran[before:]
    after = next((at for at, number in enumerate(rest) if number <= middle), len(rest))  # of a further pass are none
    return {
        "layers": len(layers),
        "asked_after_layers": before,
        "layers_run_after_it": after,
        "hidden_state_read": shape,
        "stops_inside_a_pass": before + after < len(layers),
    }


def layers_of(model: Any) -> Any:
    """Return the modules of the longest list in a model: its layers."""
    import torch

    return max((one for one in model.modules() if isinstance(one, torch.nn.ModuleList)), key=len)


def engine_options(
    length: int, model: str, dtype: str | None, random_weights: bool = False, **more: Any
) -> dict[str, Any]:
    """Return the constructor's options for sequences of tokens up to `length`; no tokenizer is needed."""
    drawn = {"load_format": "dummy", "seed": SEED} if random_weights else {}
    named = {"model": source_of(model), "dtype": dtype or "auto", "max_model_len": length}
    return {**named, "skip_tokenizer_init": True, **drawn, **more}


def greedy(new: int) -> Any:
    import vllm

    return vllm.SamplingParams(temperature=0.0, max_tokens=new, ignore_eos=True, detokenize=False)


def see_only(device: str | None, environment: Any = os.environ) -> None:
    """Restrict, before CUDA starts, the GPUs visible to this process to the one of that index."""
    index = (device or "").partition("cuda:")[2]
    if index:
        seen = environment.get("CUDA_VISIBLE_DEVICES")
        environment["CUDA_VISIBLE_DEVICES"] = seen.split(",")[int(index)].strip() if seen else index


def device_gigabytes() -> float | None:
    """Return the gigabytes (GiB) in use on the whole GPU by NVML, which takes no memory there; None without a GPU."""
    try:
        with card("cuda:0") as seen:  # of those that this process sees
            return seen.bytes_in_use() / GIB
    except Unseen:
        return None


def preemptions() -> int | None:
    """Return the number of requests that vLLM has preempted, by its own metrics; None where it has none."""
    try:
        from vllm.v1.metrics.reader import get_metrics_snapshot  # type: ignore[import-not-found]
    except ImportError:
        return None
    return sum(int(one.value) for one in get_metrics_snapshot() if one.name.startswith(PREEMPTIONS))


class Lacking(Exception):
    """This vLLM lacks an option; the message is the whole reason."""


def _tried(what: str, work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Return what `work` returns, or the reason why vLLM `what`."""
    reason = "vLLM is not installed here (pip install vllm, for a GPU)"
    try:
        if importlib.util.find_spec("vllm") is not None:
            return work()
    except Lacking as why:
        reason = str(why)
    except Exception as error:  # noqa: BLE001  another project's start and model: its error is the reason
        reason = f"vLLM {what}: {told(error)}"
    return {"status": "not_run", "reason": reason}


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
    serve(Vllm)
