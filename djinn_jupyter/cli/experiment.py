"""`djinn experiment NAME`: read the configuration, run, write, and end with 0 only if the verdict is pass."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from djinn_jupyter.amounts import GIB, parse_bytes
from djinn_jupyter.cli.commands import Commands, Parser
from djinn_jupyter.errors import DjinnError, UsageError

PROFILES = ("small", "gpu")
TWO_MODELS = "Give --model or --random-weights, not both."


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """An experiment as the command line offers it. `kind` and `run` import what they need when they are called;
    `model_key` is the key of the model where there is one for the whole file."""

    name: str
    summary: str
    kind: Callable[[], type[Any]]
    run: Callable[[argparse.Namespace, Any], list[str]]
    flags: Callable[[argparse.ArgumentParser], None]
    model_key: str | None = None


def add_to(commands: Commands) -> None:
    experiment = commands.add_parser("experiment", help="the evaluation: measure, compare, report")
    names = experiment.add_subparsers(required=True, metavar="EXPERIMENT")
    for offer in OFFERS:
        parser = names.add_parser(offer.name, help=offer.summary)
        _add_common(parser)
        offer.flags(parser)
        parser.set_defaults(command=lambda options, offer=offer: _command(options, offer))
    _add_all(names)


def _add_all(names: Commands) -> None:
    every = names.add_parser("all", help="every experiment, each into a folder of its own; the others go on after one")
    every.add_argument("--profile", choices=PROFILES, required=True, help="the shipped configurations of this name")
    every.add_argument("--model", metavar="M", help="the model of all of them, in place of the configured ones")
    every.add_argument("--only", choices=[offer.name for offer in OFFERS], action="append", help="this one; repeatable")
    every.add_argument("--output-dir", type=Path, metavar="DIR", help="by default results/all_PROFILE")
    every.set_defaults(command=_every)


def _every(options: argparse.Namespace) -> int:
    folder = options.output_dir or Path("results") / f"all_{options.profile}"
    chosen = [offer for offer in OFFERS if options.only is None or offer.name in options.only]
    verdicts = {offer.name: _one_of_all(offer, options, folder / offer.name.replace("-", "_")) for offer in chosen}
    for name, verdict in verdicts.items():
        print(f"{name:<16}{verdict}")
    return int(set(verdicts.values()) != {"PASS"})


def _one_of_all(offer: Offer, options: argparse.Namespace, folder: Path) -> str:
    """Run one experiment; return its verdict, or the sentence with which it was refused or broke off."""
    print(f"== {offer.name}", flush=True)
    parser = Parser(prog=f"djinn experiment {offer.name}")
    _add_common(parser)
    offer.flags(parser)
    arguments = ["--profile", options.profile, "--output-dir", str(folder)]
    if options.model is not None:
        key = offer.model_key
        arguments += ["--model", options.model] if key is None else ["--set", f"{key}={json.dumps(options.model)}"]
    try:
        return "FAIL" if _command(parser.parse_args(arguments), offer) else "PASS"
    except DjinnError as error:
        return f"ERROR {error}"


def _add_common(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--config", metavar="FILE", help="a configuration file, by path or by the name of a shipped one")
    add(
        "--profile",
        choices=PROFILES,
        help="a shipped configuration: small, the demo model in under two minutes; gpu, Llama-2-13B on one GPU",
    )
    add("--set", action="append", default=[], metavar="KEY=VALUE", dest="settings", help="one key, by its dotted path")
    add(
        "--random-weights",
        metavar="CONFIG",
        help="this architecture (a folder, a config.json, a hub name) with random "
        "weights; its sizes by --set architecture.KEY=VALUE",
    )
    add("--output-dir", type=Path, metavar="DIR", help="the folder of the results, in place of the configured one")
    add("--explain", action="store_true", help="what each key does, and end")


def _command(options: argparse.Namespace, offer: Offer) -> int:
    from djinn_jupyter.experiments.configuration.architecture import architecture, split
    from djinn_jupyter.experiments.configuration.reading import explain, read
    from djinn_jupyter.experiments.course import Setup

    if options.explain:
        print(explain(offer.kind()))
        return 0
    from djinn_jupyter.experiments.devices import device_of

    name = _chosen(options, offer.name.replace("-", "_"))
    settings, sizes = split([*options.settings, *_flagged(options)])
    options.setup = Setup(device=device_of(getattr(options, "gpu_index", None)), random=options.random_weights)
    with architecture(options.random_weights, sizes) as folder:
        if folder is not None and offer.model_key is not None:
            if any(key == offer.model_key for key, _ in _flags_given(options)):
                raise UsageError(TWO_MODELS)
            settings.append(f"{offer.model_key}={json.dumps(folder)}")
        options.drawn_model = folder
        failures = offer.run(options, read(name, offer.kind(), settings))
    print("FAIL" if failures else "PASS")
    return int(bool(failures))


def _chosen(options: argparse.Namespace, name: str) -> str:
    if options.config and options.profile:
        raise UsageError("Give --config or --profile, not both.")
    if options.config is None and options.profile is None:
        raise UsageError("Which configuration? Give --profile small or gpu, or --config FILE.")
    chosen: str = options.config or f"{name}_{options.profile}.yaml"
    return chosen


def _flagged(options: argparse.Namespace) -> list[str]:
    """Return the old flags that are keys of the file, as settings."""
    return [f"{key}={value}" for key, value in _flags_given(options)]


def _flags_given(options: argparse.Namespace) -> list[tuple[str, str]]:
    """Yield keys and values; of a flag with several values (a list) they are one, with commas."""
    flags = []
    for found in getattr(options, "keys", None) or ():
        told = found if isinstance(found, list) else [found]
        key, _, spell = told[0]
        flags.append((key, spell(",".join(value for _, value, _ in told))))
    return flags


def _concluded(
    options: argparse.Namespace, folder: str, log: str, name: str, work: Callable[[Any], list[str]], **limits: Any
) -> list[str]:
    from djinn_jupyter.experiments import report
    from djinn_jupyter.experiments.course import begin, conducted

    course = begin(options.output_dir or Path(folder), log, **{"setup": options.setup, **limits})
    try:
        return conducted(course, work, lambda course, failures: report.write(course, name, failures))
    finally:
        page = course.folder / "report.html"
        if course.written and page.exists():
            print(page)


def _no_flags(parser: argparse.ArgumentParser) -> None: ...


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


def _gpu_index(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--gpu-index", type=int, metavar="N", help="the GPU that all sides compute on")


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
    from djinn_jupyter.experiments.configuration.whitebox import Whitebox

    return Whitebox


def _whitebox_flags(parser: argparse.ArgumentParser) -> None:
    for side in ("pytorch", "vllm", "djinn"):
        parser.add_argument(f"--skip-{side}", action="store_true", help=f"leave {side} out")
    _gpu_index(parser)


def _whitebox(options: argparse.Namespace, file: Any) -> list[str]:
    from djinn_jupyter.experiments.pressure import experiment as pressure
    from djinn_jupyter.experiments.whitebox.experiment import FILES, LOG, Skipped, run

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
    _gpu_index(parser)


def _pressure(options: argparse.Namespace, file: Any) -> list[str]:
    from djinn_jupyter.experiments.pressure.experiment import FILE, LOG, run

    limits = {"limit_seconds": 60 * file.duration, "files": (FILE,)}
    return _concluded(options, file.output_dir, LOG, "pressure", lambda c: run(c, file), **limits)


def _resume_kind() -> type[Any]:
    from djinn_jupyter.experiments.configuration.timing import ResumeLatency

    return ResumeLatency


def _resume_flags(parser: argparse.ArgumentParser) -> None:
    _key(parser, "--layers", "layers", "layers that the pass is stopped after: 1,10,20 or 1 10 20", _listed, "+")
    for flag in ("model", "max-length", "warmup", "repeat"):
        _key(parser, f"--{flag}", flag.replace("-", "_"), f"the key {flag.replace('-', '_')}")
    for side in ("recompute", "offload", "djinn"):
        _switch(parser, f"--skip-{side}", f"skip_{side}")


def _resume(options: argparse.Namespace, file: Any) -> list[str]:
    from djinn_jupyter.experiments.timing.resume_latency import FILES, LOG, run

    return _concluded(options, file.output_dir, LOG, "resume-latency", lambda c: run(c, file), files=FILES)


def _cost_kind() -> type[Any]:
    from djinn_jupyter.experiments.configuration.timing import CheckpointCost

    return CheckpointCost


def _cost(options: argparse.Namespace, file: Any) -> list[str]:
    from djinn_jupyter.experiments.timing.checkpoint_cost import FILE, LOG, run

    return _concluded(options, file.output_dir, LOG, "checkpoint-cost", lambda c: run(c, file), files=(FILE,))


def _validation_kind() -> type[Any]:
    from djinn_jupyter.experiments.configuration.validation import ValidationFile

    return ValidationFile


def _validation_flags(parser: argparse.ArgumentParser) -> None:
    from djinn_jupyter.experiments.configuration.validation import TESTS

    parser.add_argument("--only", choices=TESTS, help="this test alone")
    parser.add_argument("--model", metavar="M", help="the model of all tests that run")


def _validation(options: argparse.Namespace, file: Any) -> list[str]:
    from djinn_jupyter.experiments.configuration.validation import chosen
    from djinn_jupyter.experiments.course import Setup
    from djinn_jupyter.experiments.devices import device_of
    from djinn_jupyter.experiments.validation.experiment import FILES, LOG, run

    if options.model is not None and options.drawn_model is not None:
        raise UsageError(TWO_MODELS)
    asked = chosen(file, options.only, options.drawn_model if options.model is None else options.model)
    gpu, wanted = asked.hardware.gpu_device, asked.logging
    setup = Setup(device=device_of(gpu), random=options.random_weights)
    told = {"saves": wanted.save_results, "level": wanted.level, "verbose": wanted.verbose, "files": FILES}
    folder = wanted.results_dir or "results/validation"
    return _concluded(options, folder, LOG, "validation", lambda c: run(c, asked), setup=setup, **told)


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
        model_key="model.name",
    ),
    Offer(
        name="resume-latency",
        summary="from a stop to the next token's logits, against recomputing and offloading",
        kind=_resume_kind,
        run=_resume,
        flags=_resume_flags,
        model_key="model",
    ),
    Offer(
        name="checkpoint-cost",
        summary="what a stop costs a neighbour that is generating",
        kind=_cost_kind,
        run=_cost,
        flags=_no_flags,
        model_key="model",
    ),
    Offer(
        name="validation",
        summary="weights through the ring against plain Hugging Face, the flatline of the link, sleep and resume",
        kind=_validation_kind,
        run=_validation,
        flags=_validation_flags,
    ),
)
