"""The run of `whitebox`: reference, trials, steering, two requests, baselines, table, verdict."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from djinn_jupyter.amounts import GIB, spell_bytes
from djinn_jupyter.client.engine import RemoteEngine
from djinn_jupyter.errors import UsageError
from djinn_jupyter.experiments.baselines.asking import BaselineFailed, any_prompt, baseline
from djinn_jupyter.experiments.baselines.vllm import not_run
from djinn_jupyter.experiments.configuration.whitebox import Whitebox
from djinn_jupyter.experiments.course import Course, Unmeasured
from djinn_jupyter.experiments.memory import bytes_of
from djinn_jupyter.experiments.serving import engine_for, prompt_of
from djinn_jupyter.experiments.shape import foretold, require_whitebox, shape_of
from djinn_jupyter.experiments.whitebox import comparison
from djinn_jupyter.experiments.whitebox.meanwhile import run_meanwhile
from djinn_jupyter.experiments.whitebox.steering import run_steering
from djinn_jupyter.experiments.whitebox.trials import FIELDS, RESULTS, Reference, run_trials, summary
from djinn_jupyter.experiments.whitebox.wire import measure_wire

LOG = "exp3_osdi.log"
TABLE, EAGER, VLLM = "comparative_results.json", "pytorch_eager_results.json", "vllm_results.json"
FILES = (TABLE, RESULTS, EAGER, VLLM)
THREADS = 1  # of each side


@dataclass(frozen=True, slots=True, kw_only=True)
class Skipped:
    """Sides that are left out."""

    pytorch: bool = False
    vllm: bool = False
    djinn: bool = False

    def check(self) -> None:
        """Raise UsageError where no side is left."""
        if self.pytorch and self.vllm and self.djinn:
            raise UsageError("All three sides are skipped; leave at least one in.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """The inputs that all parts of Djinn's side share. `failures` collects their reasons why the run fails."""

    course: Course
    engine: RemoteEngine
    file: Whitebox
    prompt: list[int]
    reference: Reference
    failures: list[str]

    def require(self, sentence: str, held: bool) -> None:
        """Add `sentence` to the failures where `held` is false."""
        if not held:
            self.failures.append(sentence)


def run(course: Course, file: Whitebox, skipped: Skipped) -> list[str]:
    """Write the result files; return the reasons why the run fails, none when it passes."""
    skipped.check()
    failures = _unjudged(file) if skipped.djinn else []
    require_whitebox(foretold(file.model.name), file)
    course.write_partial(TABLE, ("timestamp", "baselines", "summary_table"), {})
    djinn = None if skipped.djinn else _djinn(course, file, failures)
    eager = None if skipped.pytorch else _eager(course, file)
    vllm = None if skipped.vllm else _vllm(course, file)
    course.write(TABLE, comparison.compare(eager, vllm, djinn))
    for failure in failures:
        course.tell(f"FAILED: {failure}")
    return failures


def _unjudged(file: Whitebox) -> list[str]:
    """Return a failure for each requirement of the file on Djinn's side, which is left out."""
    required = [key for key in file.validation.__struct_fields__ if getattr(file.validation, key)]
    return [f"validation.{key} is set, and --skip-djinn leaves out what it judges." for key in required]


def _djinn(course: Course, file: Whitebox, failures: list[str]) -> dict[str, Any]:
    course.write_partial(RESULTS, FIELDS, {})
    options: dict[str, Any] = {"dtype": file.model.dtype, "page_positions": file.model.page_positions}
    limits = {
        "card_memory": bytes_of(file.hardware.vram_limit_gb),
        "host_memory": bytes_of(file.hardware.host_limit_gb),
    }
    with engine_for(course, file.model.name, threads=THREADS, **options, **limits) as engine:
        require_whitebox(shape_of(engine), file)
        preallocated = _slab_bytes(engine)
        prompt = prompt_of(engine, file.experiment.inference.input_length, seed=1)
        reference = _reference(course, engine, file, prompt)
        bench = Bench(course=course, engine=engine, file=file, prompt=prompt, reference=reference, failures=failures)
        fields: dict[str, Any] = {"baseline_prompt": prompt}
        parts = {"token_accuracy": _accuracy, "activation_steering": _steering, "concurrent_demo": _meanwhile}
        for name, part in parts.items():
            fields[name] = part(bench)
            course.write_partial(RESULTS, FIELDS, fields)
        fields["memory_breakdown"] = _breakdown(engine, len(prompt), preallocated)
        fields["arithmetic"] = _sums(fields["memory_breakdown"], len(prompt))
        fields |= _wire(bench)
    fields["status"] = "failed" if failures else "success"
    return course.write(RESULTS, fields)


def _reference(course: Course, engine: RemoteEngine, file: Whitebox, prompt: list[int]) -> Reference:
    new = file.experiment.inference.continuation_tokens
    course.tell(f"Plain Hugging Face on a prompt of {len(prompt)} tokens and {new} more")
    with baseline("eager") as eager:
        eager.ask(
            "load", model=file.model.name, dtype=engine.description.dtype, threads=THREADS, **course.setup.words()
        )
        plain = eager.ask("reference", tokens=prompt, new=new)
    return Reference(
        predicted=tuple(plain["predicted"]),
        tokens=tuple(plain["tokens"]),
        first=plain["first"],
        digest=plain["digest"],
    )


def _accuracy(bench: Bench) -> dict[str, Any] | Unmeasured:
    wanted, file = bench.file.experiment, bench.file
    if not wanted.breakpoints.enabled:
        return Unmeasured(reason="experiment.breakpoints.enabled is false")
    entries = run_trials(bench.course, bench.engine, file, bench.prompt, bench.reference)
    found, threshold = summary(entries), wanted.inference.token_accuracy_threshold
    mean, equal = found["token_accuracy_mean"], all(e.bitwise_equal for e in entries)
    layers = all(e.layers_as_they_should(file.model.num_layers) for e in entries)
    bench.require(f"Token accuracy {mean:.2f} % is below {threshold} %.", mean >= threshold)
    bench.require(
        "A resumed run is not bitwise equal to one that never stopped.",
        equal or not file.validation.require_output_equivalence,
    )
    bench.require("A stop ran other layers than those before it, or a resume other than those after it.", layers)
    bench.require(
        "A breakpoint at the first new token did not stop its pass.", all(e.stopped_in_decode for e in entries)
    )
    return found


def _steering(bench: Bench) -> dict[str, Any] | Unmeasured:
    wanted, new = bench.file.experiment.activation_steering, bench.file.experiment.inference.continuation_tokens
    if wanted is None or not wanted.enabled:
        return Unmeasured(reason="experiment.activation_steering is not enabled")
    found = run_steering(bench.course, bench.engine, wanted, bench.prompt, new, bench.reference)
    needed = bench.file.validation.require_steering_effect
    bench.require("Steering changed nothing.", found["output_changed"] or not needed)
    bench.require("The same edit at the same stop gave two results.", found["repeats_bitwise"])
    return found


def _meanwhile(bench: Bench) -> dict[str, Any] | Unmeasured:
    experiment = bench.file.experiment
    wanted, new = experiment.concurrent_demo, experiment.inference.continuation_tokens
    if wanted is None or not wanted.enabled:
        return Unmeasured(reason="experiment.concurrent_demo is not enabled")
    layer = experiment.breakpoints.layers[0]
    found = run_meanwhile(bench.course, bench.engine, wanted, layer, bench.prompt, new, bench.reference)
    ended, needed = found["request_b_ended_during_pause"], bench.file.validation.require_concurrent_success
    bench.require("Request A is not what it would have been without B.", found["request_a_bitwise_equal"])
    bench.require("Request B is not what it would have been without A.", not ended or found["request_b_bitwise_equal"])
    bench.require("Request B did not end within A's pause.", ended or not needed)
    return found


def _slab_bytes(engine: RemoteEngine) -> int:
    return sum(slab.bytes_allocated for slab in engine.statistics().slabs)


def _breakdown(engine: RemoteEngine, positions: int, preallocated: int) -> dict[str, Any]:
    """Return the memory by kind. `preallocated` bytes of the slab were allocated before anything ran."""
    reading = engine.statistics()
    groups = engine.description.cache_groups
    per_session = sum(-(-positions // g.page_positions) * g.page_bytes for g in groups)
    total = reading.device_bytes_total
    hidden = positions * engine.description.hidden_size * (4 if engine.description.dtype == "float32" else 2)
    return {
        "vmu_slab_preallocated_gb": preallocated / GIB,
        "slab_allocated_gb": sum(slab.bytes_allocated for slab in reading.slabs) / GIB,
        "slab_limit_gb": max((slab.bytes_limit for slab in reading.slabs), default=0) / GIB,
        "model_weights_gb": reading.weight_bytes / GIB,
        "kv_cache_per_session_gb": per_session / GIB,
        "activation_stack_gb": hidden / GIB,
        "gpu_total_gb": Unmeasured(reason="no GPU") if total is None else total / GIB,
        "explanation": (
            "The slab grows on demand; preallocated is what it had before anything ran. A stopped pass keeps one "
            "hidden state [positions, features]; keys and values are counted in whole pages."
        ),
    }


def _sums(breakdown: dict[str, Any], positions: int) -> list[str]:
    names = ("model_weights_gb", "kv_cache_per_session_gb", "activation_stack_gb")
    weights, session, hidden = (spell_bytes(breakdown[name] * GIB, 4) for name in names)
    return [
        f"Weights {weights}, once for all sessions. One of {positions} positions has {session} of "
        f"keys and values in whole pages, and {hidden} of hidden state while it is stopped."
    ]


def _wire(bench: Bench) -> dict[str, int]:
    wanted = bench.file.experiment
    new = wanted.inference.continuation_tokens
    found = measure_wire(bench.engine, wanted.breakpoints.layers[0], bench.prompt, new)
    bench.require("Keys and values crossed the wire.", not found["kv_bytes_on_wire"])
    return found


def _eager(course: Course, file: Whitebox) -> dict[str, Any]:
    course.check_time()
    course.write_partial(EAGER, ("metrics", "conclusion"), {"baseline": "pytorch_eager"})
    layer = file.experiment.breakpoints.layers[0]
    pause = 1.0 if file.experiment.concurrent_demo is None else file.experiment.concurrent_demo.pause_duration_seconds
    inference = file.experiment.inference
    asked = {"tokens": any_prompt(inference.input_length), "new": inference.continuation_tokens}
    with baseline("eager") as eager:
        eager.ask("load", model=file.model.name, dtype=file.model.dtype, threads=THREADS, **course.setup.words())
        metrics = eager.ask("pause", layer=layer, seconds=pause, **asked)
    absent = {"gpu_free_during_pause_gb": "no GPU", "request_b_latency_ms": "no room for request B beside the pause"}
    metrics |= {name: Unmeasured(reason=why) for name, why in absent.items() if metrics[name] is None}
    held, others = metrics["vram_held_during_pause_gb"], metrics["request_b_tokens"] == asked["new"]
    fields = {
        "status": "success",
        "baseline": "pytorch_eager",
        "model": course.setup.named(file.model.name),
        "breakpoint_layer": layer,
        "pause_duration_seconds": pause,
        "metrics": {**metrics, "can_run_other_requests": others},
        "conclusion": {
            "vram_released": held <= metrics["vram_before_pause_gb"],
            "allows_concurrent_requests": others,
            "requires_full_gpu_for_pause": held >= metrics["weights_gb"],
        },
    }
    return course.write(EAGER, fields)


def _vllm(course: Course, file: Whitebox) -> dict[str, Any]:
    named = {"baseline": "vllm", "model": course.setup.named(file.model.name)}
    course.check_time()
    course.write_partial(VLLM, ("vllm_installed", "vllm_initialized", "api_tests", "conclusion"), named)
    inference, pause = file.experiment.inference, file.experiment.concurrent_demo
    asked = {
        "model": file.model.name,
        "dtype": file.model.dtype,
        "tokens": any_prompt(inference.input_length),
        "new": inference.continuation_tokens,
        **course.setup.words(),
    }
    found = _of_vllm("examine", asked, not_run)
    course.tell(f"vLLM: {found['status']} {found.get('reasons', {}).get('api_tests', '')}".rstrip())
    if found["status"] == "success":
        course.write_partial(VLLM, ("pause",), {**named, **found})
        seconds = 1.0 if pause is None else pause.pause_duration_seconds
        found["pause"] = _of_vllm("pause", {**asked, "seconds": seconds}, _not_paused)
    return course.write(VLLM, {**named, **found})


def _of_vllm(verb: str, asked: dict[str, Any], ended: Callable[[str], dict[str, Any]]) -> dict[str, Any]:
    """Ask vLLM in a process of its own, so that it holds no device memory afterwards; a failure becomes the reason
    passed to `ended`."""
    try:
        with baseline("vllm") as vllm:
            return vllm.ask(verb, **asked)
    except BaselineFailed as error:
        return ended(str(error))


def _not_paused(reason: str) -> dict[str, Any]:
    return {"status": "not_run", "reason": reason}
