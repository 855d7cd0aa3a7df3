"""The experiments as the command line offers them: their flags, and the way from options and a file to a run."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from djinn_jupyter.amounts import GIB, parse_bytes
from djinn_jupyter.errors import UsageError

TWO_MODELS = "Give --model or --random-weights, not both."


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """An experiment as the command line offers it. `kind` and `run` import what they need when they are called;
    `model_key` is the key of the model where there is one for the whole file, `without_file` the shipped file that is
    read where none is named, as the original's scripts without a configuration did."""

    name: str
    summary: str
    kind: Callable[[], type[Any]]
    run: Callable[[argparse.Namespace, Any], list[str]]
    flags: Callable[[argparse.ArgumentParser], None]
    model_key: str | None = None
    without_file: str | None = None


def _concluded(
    options: argparse.Namespace, folder: str, log: str, name: str, work: Callable[[Any], list[str]], **limits: Any
) -> list[str]:
    from djinn_evaluation import commit, report
    from djinn_evaluation.course import begin, conducted

    course = begin(options.output_dir or Path(folder), log, **{"setup": options.setup, **limits})
    course.every_file["code"] = commit.present()
    try:
        return conducted(course, work, lambda course, failures: report.write(course, name, failures))
    finally:
        page = course.folder / "report.html"
        if course.written and page.exists():
            print(page)


def _cost_flags(parser: argparse.ArgumentParser) -> None:
    _key(parser, "--model", "model", "the key model")


def _key(
    parser: argparse.ArgumentParser,
    flag: str,
    key: str,
    explanation: str,
    spell: Callable[[str], str] = str,
    nargs: str | None = None,
) -> None:
    parser.add_argument(
        flag,
        metavar="VALUE",
        dest="keys",
        action="append",
        nargs=nargs,
        type=lambda value: (key, value, spell),
        help=explanation,
    )


def _gibibytes(amount: str) -> str:
    """Return the number of GiB in `80GiB`, or in a plain number of GiB."""
    try:
        return str(float(amount))
    except ValueError:
        return str((parse_bytes(amount) or 0) / GIB)


def _listed(value: str) -> str:
    """Return `1,10,20` as a list; `[1, 10, 20]` stays as it is."""
    return value if value.startswith("[") else f"[{value}]"


def _switch(parser: argparse.ArgumentParser, flag: str, key: str) -> None:
    parser.add_argument(flag, dest="keys", action="append_const", const=(key, "true", str), help=f"sets {key}")


def _whitebox_kind() -> type[Any]:
    from djinn_evaluation.configuration.whitebox import Whitebox

    return Whitebox


def _whitebox_flags(parser: argparse.ArgumentParser) -> None:
    for side in ("pytorch", "vllm", "djinn"):
        parser.add_argument(f"--skip-{side}", action="store_true", help=f"leave {side} out")
    _key(parser, "--model", "model.name", "the key model.name")


def _whitebox(options: argparse.Namespace, file: Any) -> list[str]:
    from djinn_evaluation.pressure import experiment as pressure
    from djinn_evaluation.whitebox.experiment import FILES, LOG, Skipped, run

    skipped = Skipped(pytorch=options.skip_pytorch, vllm=options.skip_vllm, djinn=options.skip_djinn)

    def work(course: Any) -> list[str]:
        failures = run(course, file, skipped)
        last = file.experiment.memory_pressure_test
        if last is not None and last.enabled and not options.skip_djinn:
            with course.told_to(pressure.LOG):
                found = pressure.run(course, file)
            failures += found if file.validation.require_memory_pressure_success else []
        return failures

    limits = {"limit_seconds": 60 * file.duration, "files": (*FILES, pressure.FILE)}
    return _concluded(options, file.output_dir, LOG, "whitebox", work, **limits)


def _pressure_flags(parser: argparse.ArgumentParser) -> None:
    _key(parser, "--num-sessions", "experiment.memory_pressure_test.num_sessions", "sessions alive at the same time")
    _key(parser, "--capacity", "hardware.vram_limit_gb", "a smaller card than there is, such as 80GiB", _gibibytes)
    _key(parser, "--model", "model.name", "the key model.name")


def _pressure(options: argparse.Namespace, file: Any) -> list[str]:
    from djinn_evaluation.pressure.experiment import FILE, LOG, run

    limits = {"limit_seconds": 60 * file.duration, "files": (FILE,)}
    return _concluded(options, file.output_dir, LOG, "pressure", lambda c: run(c, file), **limits)


def _resume_kind() -> type[Any]:
    from djinn_evaluation.configuration.timing import ResumeLatency

    return ResumeLatency


def _resume_flags(parser: argparse.ArgumentParser) -> None:
    _key(parser, "--layers", "layers", "layers that the pass is stopped after: 1,10,20 or 1 10 20", _listed, "+")
    for flag in ("model", "max-length", "warmup", "repeat"):
        _key(parser, f"--{flag}", flag.replace("-", "_"), f"the key {flag.replace('-', '_')}")
    for side in ("recompute", "offload", "djinn"):
        _switch(parser, f"--skip-{side}", f"skip_{side}")


def _resume(options: argparse.Namespace, file: Any) -> list[str]:
    from djinn_evaluation.timing.resume_latency import FILES, LOG, run

    return _concluded(options, file.output_dir, LOG, "resume-latency", lambda c: run(c, file), files=FILES)


def _cost_kind() -> type[Any]:
    from djinn_evaluation.configuration.timing import CheckpointCost

    return CheckpointCost


def _cost(options: argparse.Namespace, file: Any) -> list[str]:
    from djinn_evaluation.timing.checkpoint_cost import FILE, LOG, run

    return _concluded(options, file.output_dir, LOG, "checkpoint-cost", lambda c: run(c, file), files=(FILE,))


def _validation_kind() -> type[Any]:
    from djinn_evaluation.configuration.validation import ValidationFile

    return ValidationFile


def _validation_flags(parser: argparse.ArgumentParser) -> None:
    from djinn_evaluation.configuration.validation import TESTS

    parser.add_argument("--only", choices=TESTS, help="this test alone")
    parser.add_argument("--model", metavar="M", help="the model of all tests that run")


def _validation(options: argparse.Namespace, file: Any) -> list[str]:
    from djinn_evaluation.attached import as_served
    from djinn_evaluation.configuration.validation import chosen_tests
    from djinn_evaluation.course import Setup
    from djinn_evaluation.devices import device_of
    from djinn_evaluation.validation.experiment import FILES, LOG, run

    if options.model is not None and options.drawn_model is not None:
        raise UsageError(TWO_MODELS)
    if options.server is not None and (options.config, options.profile, options.model) == (None, None, None):
        file = as_served(file, options.server)
    asked = chosen_tests(file, options.only, options.drawn_model if options.model is None else options.model)
    gpu, wanted = asked.hardware.gpu_device if options.gpu_index is None else options.gpu_index, asked.logging
    setup = Setup(device=device_of(gpu), random=options.random_weights, server=options.server)
    told = {"saves": wanted.save_results, "level": wanted.level, "verbose": wanted.verbose, "files": FILES}
    folder = wanted.results_dir or "results/validation"
    return _concluded(options, folder, LOG, "validation", lambda c: run(c, asked), setup=setup, **told)


def _streaming_kind() -> type[Any]:
    from djinn_evaluation.configuration.streaming import Streaming

    return Streaming


def _streaming_flags(parser: argparse.ArgumentParser) -> None:
    _key(parser, "--model", "model", "a model with weights of its own, in place of the shapes")
    _switch(parser, "--skip-offloads", "skip_offloads")


def _streaming(options: argparse.Namespace, file: Any) -> list[str]:
    from djinn_evaluation.streaming.experiment import FILES, LOG, run

    return _concluded(options, file.output_dir, LOG, "streaming", lambda c: run(c, file), files=FILES)


def _agents_kind() -> type[Any]:
    from djinn_evaluation.configuration.agents import AgentsFile

    return AgentsFile


def _agents_flags(parser: argparse.ArgumentParser) -> None:
    _key(parser, "--agents", "agents.counts", "agents at once, in each part: 50,80 or 50 80", _listed, "+")
    _key(parser, "--ways", "ways", "the ways of keeping them, such as lru hinted", _listed, "+")
    _key(parser, "--model", "model.name", "the key model.name")


def _agents(options: argparse.Namespace, file: Any) -> list[str]:
    from djinn_evaluation.agents.experiment import FILE, LOG, run

    limits = {"limit_seconds": 60 * file.duration, "files": (FILE,)}
    return _concluded(options, file.output_dir, LOG, "agents", lambda c: run(c, file), **limits)


OFFERS = (
    Offer(
        name="whitebox",
        summary="stop at layers, resume, steer, and serve another request meanwhile",
        kind=_whitebox_kind,
        run=_whitebox,
        flags=_whitebox_flags,
        model_key="model.name",
    ),
    Offer(
        name="pressure",
        summary="many sessions stopped on a card that cannot hold them",
        kind=_whitebox_kind,
        run=_pressure,
        flags=_pressure_flags,
        without_file="pressure.yaml",
        model_key="model.name",
    ),
    Offer(
        name="resume-latency",
        summary="from a stop to the next token's logits, against recomputing and offloading",
        kind=_resume_kind,
        run=_resume,
        flags=_resume_flags,
        without_file="resume_latency.yaml",
        model_key="model",
    ),
    Offer(
        name="checkpoint-cost",
        summary="what a stop costs a neighbour that is generating",
        kind=_cost_kind,
        run=_cost,
        flags=_cost_flags,
        without_file="checkpoint_cost.yaml",
        model_key="model",
    ),
    Offer(
        name="validation",
        summary="weights through the ring against plain Hugging Face, the flatline of the link, sleep and resume",
        kind=_validation_kind,
        run=_validation,
        flags=_validation_flags,
        without_file="validation_smoke.yaml",
    ),
    Offer(
        name="streaming",
        summary="models larger than the device: the ring, other offloads, and what copying and computing attain",
        kind=_streaming_kind,
        run=_streaming,
        flags=_streaming_flags,
        model_key="model",
    ),
    Offer(
        name="agents",
        summary="many sessions that generate, pause and go on, kept in several ways on a card that cannot hold them",
        kind=_agents_kind,
        run=_agents,
        flags=_agents_flags,
        model_key="model.name",
    ),
)
