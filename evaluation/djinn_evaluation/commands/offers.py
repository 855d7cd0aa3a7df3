"""The experiments as the command line offers them: their flags, and the way from options and a file to a run."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from djinn_jupyter.errors import UsageError
from djinn_jupyter.units import GIB, parse_bytes

TWO_MODELS = "Give --model or --random-weights, not both."
Run = Callable[[argparse.Namespace, Any], list[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyFlag:
    """A flag that sets one key of the file. `nargs` is argparse's; `spell` returns the value as the file has it."""

    flag: str
    key: str
    explanation: str
    spell: Callable[[str], str] = str
    nargs: str | None = None

    def add_to(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            self.flag,
            metavar="VALUE",
            dest="keys",
            action="append",
            nargs=self.nargs,
            type=lambda value: (self.key, value, self.spell),
            help=self.explanation,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """An experiment as the command line offers it. `file` is the class of its configuration, by module; `switches` set
    a key to true; `more` adds what is no key. `model_key` is the key of the model where there is one for the whole
    file, `without_file` the shipped file that is read where none is named, as the original's scripts without a
    configuration did."""

    name: str
    summary: str
    file: str
    run: Run
    keys: tuple[KeyFlag, ...] = ()
    switches: tuple[str, ...] = ()
    more: Callable[[argparse.ArgumentParser], None] = lambda parser: None
    model_key: str | None = None
    without_file: str | None = None

    def kind(self) -> type[Any]:
        """Return the class of the configuration; imported where it is asked for."""
        module, _, name = self.file.partition(".")
        found: type[Any] = getattr(import_module(f"djinn_evaluation.configuration.{module}"), name)
        return found

    def flags(self, parser: argparse.ArgumentParser) -> None:
        """Add the experiment's own flags."""
        for flag in self.keys:
            flag.add_to(parser)
        for name in self.switches:
            key = name.replace("-", "_")
            parser.add_argument(
                f"--{name}", dest="keys", action="append_const", const=(key, "true", str), help=f"sets {key}"
            )
        self.more(parser)


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


def _runs(name: str, module: str, *, timed: bool = False) -> Run:
    """Return the run of an experiment's module; `timed` where the file says how many minutes it may take."""

    def run(options: argparse.Namespace, file: Any) -> list[str]:
        experiment = import_module(f"djinn_evaluation.{module}")
        limits = {"limit_seconds": 60 * file.duration} if timed else {}
        limits["files"] = experiment.FILES
        return _concluded(options, file.output_dir, experiment.LOG, name, lambda c: experiment.run(c, file), **limits)

    return run


def _gibibytes(amount: str) -> str:
    """Return the number of GiB in `80GiB`, or in a plain number of GiB."""
    try:
        return str(float(amount))
    except ValueError:
        return str((parse_bytes(amount) or 0) / GIB)


def _listed(value: str) -> str:
    """Return `1,10,20` as a list; `[1, 10, 20]` stays as it is."""
    return value if value.startswith("[") else f"[{value}]"


def _key(flag: str, key: str, explanation: str | None = None, **others: Any) -> KeyFlag:
    return KeyFlag(flag=flag, key=key, explanation=explanation or f"the key {key}", **others)


def _whitebox_flags(parser: argparse.ArgumentParser) -> None:
    for side in ("pytorch", "vllm", "djinn"):
        parser.add_argument(f"--skip-{side}", action="store_true", help=f"leave {side} out")


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


MODEL = _key("--model", "model.name")
PRESSURE = "experiment.memory_pressure_test.num_sessions"
OFFERS = (
    Offer(
        name="whitebox",
        summary="stop at layers, resume, steer, and serve another request meanwhile",
        file="whitebox.Whitebox",
        run=_whitebox,
        keys=(MODEL,),
        more=_whitebox_flags,
        model_key="model.name",
    ),
    Offer(
        name="pressure",
        summary="many sessions stopped on a card that cannot hold them",
        file="whitebox.Whitebox",
        run=_runs("pressure", "pressure.experiment", timed=True),
        keys=(
            _key("--num-sessions", PRESSURE, "sessions alive at the same time"),
            _key(
                "--capacity", "hardware.vram_limit_gb", "a smaller card than there is, such as 80GiB", spell=_gibibytes
            ),
            MODEL,
        ),
        without_file="pressure.yaml",
        model_key="model.name",
    ),
    Offer(
        name="resume-latency",
        summary="from a stop to the next token's logits, against recomputing and offloading",
        file="timing.ResumeLatency",
        run=_runs("resume-latency", "timing.resume_latency"),
        keys=(
            _key(
                "--layers",
                "layers",
                "layers that the pass is stopped after: 1,10,20 or 1 10 20",
                spell=_listed,
                nargs="+",
            ),
            *(_key(f"--{name}", name.replace("-", "_")) for name in ("model", "max-length", "warmup", "repeat")),
        ),
        switches=("skip-recompute", "skip-offload", "skip-djinn"),
        without_file="resume_latency.yaml",
        model_key="model",
    ),
    Offer(
        name="checkpoint-cost",
        summary="what a stop costs a neighbour that is generating",
        file="timing.CheckpointCost",
        run=_runs("checkpoint-cost", "timing.checkpoint_cost"),
        keys=(_key("--model", "model"),),
        without_file="checkpoint_cost.yaml",
        model_key="model",
    ),
    Offer(
        name="validation",
        summary="weights through the ring against plain Hugging Face, the flatline of the link, sleep and resume",
        file="validation.ValidationFile",
        run=_validation,
        more=_validation_flags,
        without_file="validation_smoke.yaml",
    ),
    Offer(
        name="streaming",
        summary="models larger than the device: the ring, other offloads, and what copying and computing attain",
        file="streaming.Streaming",
        run=_runs("streaming", "streaming.experiment"),
        keys=(_key("--model", "model", "a model with weights of its own, in place of the shapes"),),
        switches=("skip-offloads",),
        model_key="model",
    ),
    Offer(
        name="agents",
        summary="many sessions that generate, pause and go on, kept in several ways on a card that cannot hold them",
        file="agents.AgentsFile",
        run=_runs("agents", "agents.experiment", timed=True),
        keys=(
            _key("--agents", "agents.counts", "agents at once, in each part: 50,80 or 50 80", spell=_listed, nargs="+"),
            _key("--ways", "ways", "the ways of keeping them, such as lru hinted", spell=_listed, nargs="+"),
            MODEL,
        ),
        model_key="model.name",
    ),
)
