"""The run of `whitebox`: reference, trials, steering, two requests, baselines, table, verdict."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from djinn_evaluation.baselines.asking import Baseline, BaselineFailed, any_prompt, baseline
from djinn_evaluation.baselines.vllm import not_run
from djinn_evaluation.configuration.sections import Concurrent, Whitebox
from djinn_evaluation.course import Course, Unmeasured, now
from djinn_evaluation.link import TimedCopy, measured_link
from djinn_evaluation.memory import bytes_of, options_for_limit
from djinn_evaluation.serving import (
    OTHER_BITS,
    engine_for,
    finished,
    foretold,
    prompt_of,
    require_whitebox,
    sentence,
    shape_of,
)
from djinn_evaluation.whitebox import pause
from djinn_evaluation.whitebox.slow_line import measure_thin_client
from djinn_evaluation.whitebox.trials import (
    FIELDS,
    RESULTS,
    Reference,
    measure_overhead,
    measure_wire,
    ran_its_layers,
    run_meanwhile,
    run_prompt,
    run_steering,
    run_trials,
    summary,
)
from djinn_jupyter.api.engine import RemoteEngine
from djinn_jupyter.errors import UsageError

Fields = Mapping[str, Any]


# Each row's cell of each side: a dotted path into its file, or what reads it there.
CELLS: Final[Mapping[str, Mapping[str, str | Callable[[Fields], Any]]]] = {
    "pytorch_eager": {
        "breakpoint_support": lambda fields: (
            fields["metrics"]["layers_run_before_stop"] == fields["breakpoint_layer"] + 1
        ),
        "vram_during_pause_gb": "metrics.vram_held_during_pause_gb",
        "vram_per_paused_session_mb": "metrics.vram_per_paused_session_mb",
        "vram_released": "conclusion.vram_released",
        "requires_full_gpu_for_pause": "conclusion.requires_full_gpu_for_pause",
        "sessions_until_full": "metrics.sessions_until_full",
        "sessions_until_full_reached": "metrics.sessions_until_full_reached",
        "concurrent_requests": "metrics.can_run_other_requests",
        "activation_steering": lambda side: _eager_steers(side["metrics"]),
        "token_accuracy_percent": "metrics.token_accuracy_percent",
    },
    "vllm": {
        "breakpoint_support": "conclusion.supports_layer_breakpoints",
        "vram_during_pause_gb": "pause.vram_during_pause_gb",
        "concurrent_requests": "pause.request_b_ended_during_pause",
    },
    "djinn": {
        "breakpoint_support": lambda side: _djinn_stops(side["token_accuracy"]),
        "vram_during_pause_gb": "concurrent_demo.vram_during_pause_gb",
        "vram_per_paused_session_mb": "concurrent_demo.vram_per_paused_session_mb",
        "vram_released": "concurrent_demo.vram_released",
        "requires_full_gpu_for_pause": "concurrent_demo.requires_full_gpu_for_pause",
        "sessions_until_full": "concurrent_demo.sessions_until_full",
        "sessions_until_full_reached": "concurrent_demo.sessions_until_full_reached",
        "concurrent_requests": "concurrent_demo.request_b_ended_during_pause",
        "activation_steering": "activation_steering.steering_successful",
        "token_accuracy_percent": "token_accuracy.token_accuracy_mean",
    },
}


def compare(eager: Fields | None, vllm: Fields | None, djinn: Fields | None) -> dict[str, Any]:
    """Return comparative_results.json: each cell by the result files, null where its side did not run."""
    sides = {"pytorch_eager": eager, "vllm": vllm, "djinn": djinn}
    table = {row: {side: _cell(CELLS[side].get(row), found) for side, found in sides.items()} for row in CELLS["djinn"]}
    return {
        "timestamp": now(),
        "baselines": {
            side: {"status": "not_run" if found is None else found["status"]} for side, found in sides.items()
        },
        "summary_table": table,
    }


def _cell(read: str | Callable[[Fields], Any] | None, fields: Fields | None) -> Any:
    if fields is None:
        return Unmeasured(reason="this side was left out")
    if fields["status"] == "not_run":
        return Unmeasured(reason=next(iter(fields.get("reasons", {}).values()), "this side did not run"))
    found = read(fields) if callable(read) else None if read is None else _at(fields, read)
    return Unmeasured(reason="this side was not measured in this") if found is None else found


def _at(fields: Fields, path: str) -> Any:
    """Return the value at a path of two names; None where the part was not measured."""
    part, name = path.split(".")
    return fields[part] and fields[part].get(name)


def _eager_steers(metrics: Fields) -> bool | None:
    changed = metrics.get("steering_token_diff_percent")
    return None if changed is None else changed > 0 and metrics["steering_repeats"]


def _djinn_stops(accuracy: Fields | None) -> bool:
    entries = accuracy["entries"] if accuracy else []
    return bool(entries) and all(entry["layers_run_before_stop"] == entry["layer"] + 1 for entry in entries)


# It has them as any program has that writes its hooks before the pass; ours are beside it.
def eager_stops(eager: Baseline, file: Whitebox) -> dict[str, Any]:
    """Return the metrics of stops and steering, on the most likely token after each position of a prompt."""
    tokens = any_prompt(file.experiment.inference.input_length)
    plain = eager.ask("predicted", tokens=tokens)["predicted"]
    layers = file.experiment.breakpoints.layers
    resumed = [eager.ask("resumed", tokens=tokens, layer=layer)["predicted"] for layer in layers]
    found = {"token_accuracy_percent": _agreeing(plain, resumed)}
    steering = file.experiment.activation_steering
    if steering is None or not steering.enabled:
        return found
    asked = {"tokens": tokens, "layer": steering.steering_layer, "factor": steering.modification_factor}
    first, second = (eager.ask("resumed", **asked)["predicted"] for _ in range(2))
    return {
        **found,
        "steering_token_diff_percent": 100 - _agreeing(plain, [first]),
        "steering_repeats": first == second,
    }


def _agreeing(plain: list[int], runs: list[list[int]]) -> float:
    """Return the share of equal tokens in percent, over all runs."""
    right = sum(a == b for run in runs for a, b in zip(plain, run, strict=True))
    return 100 * right / (len(runs) * len(plain))


LOG = "exp3_osdi.log"
TABLE, EAGER, VLLM = "comparative_results.json", "pytorch_eager_results.json", "vllm_results.json"
FILES = (TABLE, RESULTS, EAGER, VLLM)
THREADS = 1  # of each side
SIDES = ("pytorch", "vllm", "djinn")
NO_STOPS = Unmeasured(reason="experiment.breakpoints.enabled is false")
OF_STOPS = ("token_accuracy", "os_overhead", "slow_line")
COMPARED = ("token_accuracy", "activation_steering", "concurrent_demo")  # with plain Hugging Face, bit for bit


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """The inputs that all parts of Djinn's side share. `failures` collects their reasons why the run fails."""

    course: Course
    engine: RemoteEngine
    file: Whitebox
    prompt: list[int]
    reference: Reference
    failures: list[str]
    copies: list[TimedCopy] = field(default_factory=list)  # of sessions that left and came back

    def require(self, sentence: str, held: bool) -> None:
        """Add `sentence` to the failures where `held` is false."""
        if not held:
            self.failures.append(sentence)


def run(course: Course, file: Whitebox, skipped: Collection[str] = ()) -> list[str]:
    """Write the result files, of the sides not `skipped`; return the reasons why the run fails, none when it passes."""
    if len(skipped) == len(SIDES):
        raise UsageError("All three sides are skipped; leave at least one in.")
    failures = _unjudged(file) if "djinn" in skipped else []
    require_whitebox(foretold(file.model.name), file)
    course.write_partial(TABLE, ("timestamp", "baselines", "summary_table"), {})
    djinn = None if "djinn" in skipped else _djinn(course, file, failures)
    eager = None if "pytorch" in skipped else _eager(course, file, _stood(djinn))
    vllm = None if "vllm" in skipped else _vllm(course, file)
    course.write(TABLE, compare(eager, vllm, djinn))
    course.concluded(failures)
    return failures


def _unjudged(file: Whitebox) -> list[str]:
    """Return a failure for each requirement of the file on Djinn's side, which is left out."""
    required = [key for key in file.validation.__struct_fields__ if getattr(file.validation, key)]
    return [f"validation.{key} is set, and --skip-djinn leaves out what it judges." for key in required]


def _djinn(course: Course, file: Whitebox, failures: list[str]) -> dict[str, Any]:
    course.write_partial(RESULTS, FIELDS, {})
    options: dict[str, Any] = {"dtype": file.model.dtype, "page_positions": file.model.page_positions}
    limits = {
        **options_for_limit(bytes_of(file.hardware.vram_limit_gb)),
        "host_memory": bytes_of(file.hardware.host_limit_gb),
    }
    with engine_for(course, file.model.name, threads=THREADS, **options, **limits) as engine:
        require_whitebox(shape_of(engine), file)
        preallocated = pause.slab_bytes(engine)
        prompt = prompt_of(engine, file.experiment.inference.input_length, seed=1)
        reference = _reference(course, engine, file, prompt)
        bench = Bench(course=course, engine=engine, file=file, prompt=prompt, reference=reference, failures=failures)
        told = {"model": course.setup.named(file.model.name), "device": engine.description.device}
        fields: dict[str, Any] = {**told, "baseline_prompt": prompt}
        stops, compared = file.experiment.breakpoints.enabled, _comparable(bench)
        for name, part in PARTS.items():
            if name in COMPARED and not compared:
                fields[name] = OTHER_BITS
            else:
                fields[name] = part(bench) if stops or name not in OF_STOPS else NO_STOPS
            course.write_partial(RESULTS, FIELDS, fields)
        layer = file.experiment.breakpoints.layers[0]
        fields["memory_breakdown"] = pause.read_breakdown(engine, layer, prompt, preallocated)
        fields["arithmetic"] = pause.sentences(fields["memory_breakdown"], len(prompt))
        fields |= _wire(bench) | _link(bench)
        device = engine.description.device
    if not isinstance(fields["concurrent_demo"], Unmeasured):
        fields["concurrent_demo"] |= _pause(course, file, device, failures, **options, **limits)
    fields["status"] = "failed" if failures else "undecided" if course.undecided else "success"
    fields["failures"] = list(failures)
    return course.write(RESULTS, fields)


def _reference(course: Course, engine: RemoteEngine, file: Whitebox, prompt: list[int]) -> Reference:
    new = file.experiment.inference.continuation_tokens
    course.tell(f"Plain Hugging Face on a prompt of {len(prompt)} tokens and {new} more")
    with baseline("eager") as eager:
        eager.ask(
            "load", model=file.model.name, dtype=engine.description.dtype, threads=THREADS, **course.setup.words()
        )
        plain = eager.ask("reference", tokens=prompt, new=new)
        layers = file.experiment.breakpoints.layers if file.experiment.breakpoints.enabled else ()
        hooked = {layer: eager.ask("captured", tokens=prompt, layer=layer) for layer in layers}
    return Reference(
        predicted=tuple(plain["predicted"]),
        tokens=tuple(plain["tokens"]),
        first=plain["first"],
        digest=plain["digest"],
        captured={layer: (found["shape"], found["digest"]) for layer, found in hooked.items()},
    )


def _comparable(bench: Bench) -> bool:
    """Return whether plain Hugging Face here is what the engine's bits are held against. One that is reached over a
    line has to have them without any stop, for another machine may round otherwise; the run is undecided where it has
    not."""
    if not bench.course.afar:
        return True
    session = bench.engine.session("without a stop", fresh=True)
    done = finished(run_prompt(session, bench.prompt, bench.file.experiment.inference.continuation_tokens))
    session.close()
    if not bench.reference.equals(done):
        bench.course.leave_open(sentence(OTHER_BITS))
        return False
    return True


def _accuracy(bench: Bench) -> dict[str, Any]:
    wanted, file = bench.file.experiment, bench.file
    entries, copies = run_trials(bench.course, bench.engine, file, bench.prompt, bench.reference)
    bench.copies.extend(copies)
    found, threshold = summary(entries), wanted.inference.token_accuracy_threshold
    mean, equal = found["token_accuracy_mean"], all(e["bitwise_equal"] for e in entries)
    hooked = all(e["captured_bitwise_equal"] for e in entries)
    layers = all(ran_its_layers(e, bench.engine.description.layers) for e in entries)
    bench.require(f"Token accuracy {mean:.2f} % is below {threshold} %.", mean >= threshold)
    bench.require(
        "A resumed run is not bitwise equal to one that never stopped.",
        equal or not file.validation.require_output_equivalence,
    )
    bench.require("A hidden state at a stop is not the one that a plain hook sees.", hooked)
    bench.require("A stop ran other layers than those before it, or a resume other than those after it.", layers)
    in_decode = all(e["stopped_in_decode"] for e in entries)
    bench.require("A breakpoint at the first new token did not stop its pass.", in_decode)
    return found


def _thin_client(bench: Bench) -> Any:
    layer = bench.file.experiment.breakpoints.layers[0]
    return measure_thin_client(bench.course, bench.engine, layer, bench.prompt)


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


PARTS: Final[Mapping[str, Callable[[Bench], Any]]] = {
    "token_accuracy": _accuracy,
    "os_overhead": lambda bench: measure_overhead(bench.course, bench.engine, bench.file, bench.prompt),
    "activation_steering": _steering,
    "concurrent_demo": _meanwhile,
    "slow_line": _thin_client,
}


def _link(bench: Bench) -> dict[str, Any]:
    """Hold the copies of the trials against the link of this machine."""
    link = measured_link(bench.course, bench.engine.description.device)
    bench.failures.extend(link.failures(bench.copies))
    return {"link": link.fields(bench.copies)}


def _wire(bench: Bench) -> dict[str, Any]:
    wanted = bench.file.experiment
    new = wanted.inference.continuation_tokens
    found = [measure_wire(bench.engine, layer, bench.prompt, new) for layer in (wanted.breakpoints.layers * 2)[:2]]
    bench.require("Keys and values crossed the wire.", not any(one["kv_bytes_on_wire"] for one in found))
    return {**max(found, key=lambda one: one["kv_bytes_on_wire"]), "wire_repetitions": found}


def _asked(file: Whitebox, seconds: float | None = None) -> pause.PausePlan:
    """Return the request to both sides to stop, with its time; the configured time for None."""
    demo = file.experiment.concurrent_demo or Concurrent()
    return pause.PausePlan(
        layer=file.experiment.breakpoints.layers[0],
        prompts=pause.prompts_of(file.experiment.inference.input_length, demo.paused_sessions),
        seconds=demo.pause_duration_seconds if seconds is None else seconds,
        idle_seconds=demo.idle_seconds,
        new=file.experiment.inference.continuation_tokens,
    )


def _pause(course: Course, file: Whitebox, device: str, failures: list[str], **options: Any) -> dict[str, Any]:
    if course.setup.server is not None:
        its_own = Unmeasured(reason="that engine has an idle threshold and a limit of its own")
        return dict.fromkeys((*pause.PAUSE_FIELDS, *pause.FULL_FIELDS), its_own)
    found = pause.pause_of_djinn(course, file.model.name, device, _asked(file), threads=THREADS, **options)
    if not found["paused_sessions_bitwise_equal"]:
        failures.append("A session that stood paused is not what it would have been without the pause.")
    filling = _filling(file)
    if filling is None:
        return found | dict.fromkeys(pause.FULL_FIELDS, pause.NO_LIMIT)
    full = pause.filled_by_djinn(course, file.model.name, device, filling, threads=THREADS, **options)
    if full["sessions_until_full_bitwise_equal"] is False:
        failures.append("A session that stood in full memory is not what it would have been alone.")
    return found | full


def _filling(file: Whitebox) -> pause.Filling | None:
    """Return what both sides fill; None without a limit."""
    demo = file.experiment.concurrent_demo or Concurrent()
    limit = bytes_of(demo.until_full_gb)
    if limit is None:
        return None
    inference, layer = file.experiment.inference, file.experiment.breakpoints.layers[0]
    prompts = pause.prompts_of(inference.input_length, demo.until_full_sessions)
    return pause.Filling(limit=limit, layer=layer, prompts=prompts, new=inference.continuation_tokens)


def _stood(djinn: Mapping[str, Any] | None) -> float | None:
    """Return the time of Djinn's sessions at their stops, for eager's; None where they were not measured."""
    demo = None if djinn is None else djinn["concurrent_demo"]
    return None if demo is None else demo.get("pause_duration_seconds")


def _eager(course: Course, file: Whitebox, seconds: float | None) -> dict[str, Any]:
    course.check_time()
    course.write_partial(EAGER, ("metrics", "conclusion"), {"baseline": "pytorch_eager"})
    wanted = _asked(file, seconds)
    with baseline("eager") as eager:
        loading = {"model": file.model.name, "dtype": file.model.dtype, "threads": THREADS, **course.setup.words()}
        loaded = eager.ask("load", **loading)
        metrics = {**pause.pause_of_eager(eager, loaded["device"], wanted), **eager_stops(eager, file)}
        filling = _filling(file)
        unlimited = dict.fromkeys(pause.FULL_FIELDS, pause.NO_LIMIT)
        metrics |= unlimited if filling is None else pause.filled_by_eager(eager, filling)
    absent = {"gpu_free_during_pause_gb": "no GPU", "request_b_latency_ms": "no room for request B beside the pause"}
    metrics |= {name: Unmeasured(reason=why) for name, why in absent.items() if metrics[name] is None}
    others = metrics["request_b_tokens"] == wanted.new
    conclusion = {name: metrics.pop(name) for name in ("vram_released", "requires_full_gpu_for_pause")}
    fields = {
        "status": "success",
        "baseline": "pytorch_eager",
        "device": loaded["device"],
        "model": course.setup.named(file.model.name),
        "breakpoint_layer": wanted.layer,
        "pause_duration_seconds": wanted.seconds,
        "metrics": {
            **metrics,
            "vram_held_during_pause_gb": metrics.pop("vram_during_pause_gb"),
            "can_run_other_requests": others,
        },
        "conclusion": {**conclusion, "allows_concurrent_requests": others},
    }
    return course.write(EAGER, fields)


def _vllm(course: Course, file: Whitebox) -> dict[str, Any]:
    named = {"baseline": "vllm", "model": course.setup.named(file.model.name)}
    course.check_time()
    course.write_partial(VLLM, ("vllm_installed", "vllm_initialized", "api_tests", "conclusion"), named)
    inference, demo = file.experiment.inference, file.experiment.concurrent_demo
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
        seconds = 1.0 if demo is None else demo.pause_duration_seconds
        found["pause"] = _of_vllm(
            "pause", {**asked, "seconds": seconds}, lambda why: {"status": "not_run", "reason": why}
        )
    return course.write(VLLM, {**named, **found})


def _of_vllm(verb: str, asked: dict[str, Any], ended: Callable[[str], dict[str, Any]]) -> dict[str, Any]:
    """Ask vLLM in a process of its own, which frees the device; a failure is the reason for `ended`."""
    try:
        with baseline("vllm") as vllm:
            return vllm.ask(verb, **asked)
    except BaselineFailed as error:
        return ended(str(error))
