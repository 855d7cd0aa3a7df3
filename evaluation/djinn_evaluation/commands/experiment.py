"""`djinn experiment NAME`: 0 only for pass, 3 for undecided; `all` runs every one, `claims` judges earlier runs."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from djinn_evaluation.claims import RUNS
from djinn_jupyter._version import __version__
from djinn_jupyter.cli.commands import Commands, Parser
from djinn_jupyter.errors import DjinnError, UsageError
from djinn_jupyter.units import GIB, parse_bytes

TWO_MODELS = "Give --model or --random-weights, not both."
Run = Callable[[argparse.Namespace, Any], list[str]]
AddFlag = Callable[[argparse.ArgumentParser], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """An experiment as the command line offers it. `file` names the class of its configuration; `switches` set
    a key to true; `more` adds what is no key. `model_key` is the key of the model where there is one for the whole
    file, `without_file` the shipped file that is read where none is named, as the original's scripts without a
    configuration did."""

    name: str
    summary: str
    file: str
    run: Run
    keys: tuple[AddFlag, ...] = ()
    switches: tuple[str, ...] = ()
    more: AddFlag = lambda parser: None
    model_key: str | None = None
    without_file: str | None = None

    def kind(self) -> type[Any]:
        """Return the class of the configuration, imported when needed."""
        found: type[Any] = getattr(import_module("djinn_evaluation.configuration.sections"), self.file)
        return found

    def flags(self, parser: argparse.ArgumentParser) -> None:
        """Add the experiment's own flags."""
        for add in self.keys:
            add(parser)
        for name in self.switches:
            key = name.replace("-", "_")
            parser.add_argument(
                f"--{name}", dest="keys", action="append_const", const=(key, "true", str), help=f"sets {key}"
            )
        self.more(parser)


def _concluded(
    options: argparse.Namespace, folder: str, log: str, name: str, work: Callable[[Any], list[str]], **limits: Any
) -> list[str]:
    from djinn_evaluation import machine, report
    from djinn_evaluation.course import begin, conducted

    course = begin(options.output_dir or Path(folder), log, **{"setup": options.setup, **limits})
    course.every_file["code"] = machine.present_code()
    try:
        return conducted(course, work, lambda course, failures: report.write(course, name, failures))
    finally:
        page = course.folder / "report.html"
        if course.written and page.exists():
            print(page)


def _runs(name: str, module: str, *, timed: bool = False) -> Run:
    """Return the run of an experiment's module; `timed` where the file limits its minutes."""

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


def _key(
    flag: str, key: str, explanation: str | None = None, spell: Callable[[str], str] = str, nargs: str | None = None
) -> AddFlag:
    """Return what adds a flag that sets one key of the file; `spell` returns the value in the file's form."""
    return lambda parser: parser.add_argument(
        flag,
        metavar="VALUE",
        dest="keys",
        action="append",
        nargs=nargs,
        type=lambda value: (key, value, spell),
        help=explanation or f"the key {key}",
    )


def _whitebox_flags(parser: argparse.ArgumentParser) -> None:
    for side in ("pytorch", "vllm", "djinn"):
        parser.add_argument(f"--skip-{side}", action="store_true", help=f"leave {side} out")


def _whitebox(options: argparse.Namespace, file: Any) -> list[str]:
    from djinn_evaluation import pressure
    from djinn_evaluation.whitebox.experiment import FILES, LOG, SIDES, run

    skipped = [side for side in SIDES if getattr(options, f"skip_{side}")]

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
    from djinn_evaluation.configuration.sections import TESTS

    parser.add_argument("--only", choices=TESTS, help="this test alone")
    parser.add_argument("--model", metavar="M", help="the model of all tests that run")


def _validation(options: argparse.Namespace, file: Any) -> list[str]:
    from djinn_evaluation.configuration.sections import chosen_tests
    from djinn_evaluation.course import Setup
    from djinn_evaluation.machine import device_of
    from djinn_evaluation.serving import as_served
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
        file="Whitebox",
        run=_whitebox,
        keys=(MODEL,),
        more=_whitebox_flags,
        model_key="model.name",
    ),
    Offer(
        name="pressure",
        summary="many sessions stopped on a card that cannot hold them",
        file="Whitebox",
        run=_runs("pressure", "pressure", timed=True),
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
        file="ResumeLatency",
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
        file="CheckpointCost",
        run=_runs("checkpoint-cost", "timing.checkpoint_cost"),
        keys=(_key("--model", "model"),),
        without_file="checkpoint_cost.yaml",
        model_key="model",
    ),
    Offer(
        name="validation",
        summary="weights through the ring against plain Hugging Face, the flatline of the link, sleep and resume",
        file="ValidationFile",
        run=_validation,
        more=_validation_flags,
        without_file="validation_smoke.yaml",
    ),
    Offer(
        name="streaming",
        summary="models larger than the device: the ring, other offloads, and what copying and computing attain",
        file="Streaming",
        run=_runs("streaming", "streaming.experiment"),
        keys=(_key("--model", "model", "a model with weights of its own, in place of the shapes"),),
        switches=("skip-offloads",),
        model_key="model",
    ),
    Offer(
        name="agents",
        summary="many sessions that generate, pause and go on, kept in several ways on a card that cannot hold them",
        file="AgentsFile",
        run=_runs("agents", "agents.experiment", timed=True),
        keys=(
            _key("--agents", "agents.counts", "agents at once, in each part: 50,80 or 50 80", spell=_listed, nargs="+"),
            _key("--ways", "ways", "the ways of keeping them, such as lru hinted", spell=_listed, nargs="+"),
            MODEL,
        ),
        model_key="model.name",
    ),
)


ALL_LOG: Final = "all.log"
CLAIMS_LOG: Final = "claims.log"
CLAIMS: Final = "claims.json"
UNDECIDED: Final = 3  # the exit status of a run that has no failure and left a verdict open
NOT_RUN: Final = "NOT RUN"  # the verdict where the engine that runs already cannot serve this one, and the reason
ASKED: Final = ("profile", "model", "version", "server", "settings")  # shared by a run that was broken off to go on
RunOne = Callable[[Offer, list[str]], int]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRun:
    """One run of one experiment with options; `refused`: it proves nothing, so the experiment has to fail it."""

    name: str
    offer: str
    more: tuple[str, ...] = ()
    small: tuple[str, ...] = ()
    config: str | None = None
    profiles: tuple[str, ...] = ("small", "gpu")
    refused: bool = False


def _set(*settings: str) -> tuple[str, ...]:
    return tuple(word for setting in settings for word in ("--set", setting))


PAUSE_ALONE: Final = (
    "experiment.breakpoints.enabled=false",
    "validation.require_output_equivalence=false",
    "experiment.activation_steering.enabled=false",
    "validation.require_steering_effect=false",
    "experiment.concurrent_demo.until_full_gb=null",
)
STOPS_ALONE: Final = (
    "--skip-pytorch",
    "--skip-vllm",
    *_set(
        "experiment.overhead_pairs=1",
        "experiment.activation_steering.enabled=false",
        "validation.require_steering_effect=false",
        "experiment.concurrent_demo.enabled=false",
        "validation.require_concurrent_success=false",
    ),
)
LESS_OF_GPT2: Final = (  # what its state of [1, 512, 768] can be had without, in seconds on two cores
    "architecture.n_layer=10",
    "model.num_layers=10",
    "architecture.vocab_size=2048",
    "experiment.num_trials=1",
)
AGAIN: Final = (  # what a claim needs besides: a second time, a run that has to be refused, another model
    PlannedRun(name="whitebox_again", offer="whitebox", more=_set(*PAUSE_ALONE)),
    PlannedRun(name="whitebox_mistral", offer="whitebox", config="whitebox_mistral.yaml", profiles=("gpu",)),
    PlannedRun(
        name="whitebox_gpt2",
        offer="whitebox",
        config="whitebox_gpt2.yaml",
        more=(*STOPS_ALONE, "--random-weights", "gpt2"),
        small=_set(*LESS_OF_GPT2),
    ),
    PlannedRun(name="pressure_again", offer="pressure"),
    PlannedRun(name="pressure_few", offer="pressure", more=("--num-sessions", "6"), refused=True),
    PlannedRun(name="pressure_fewer", offer="pressure", more=("--num-sessions", "6"), refused=True),
    PlannedRun(
        name="validation_again",
        offer="validation",
        more=("--set", "pcie_flatline.baselines=false"),
        small=("--set", "pcie_flatline.enabled=false"),  # the claim that reads it twice needs a GPU
    ),
)


def _add_all(
    names: Commands,
    profiles: Sequence[str],
    offers: Sequence[Offer],
    run_one: RunOne,
    add_server: Callable[[argparse.ArgumentParser], None],
) -> None:
    steps = steps_of(offers)
    every = names.add_parser(
        "all", help="every experiment, each into a folder of its own, and the original's claims judged on them"
    )
    every.add_argument("--profile", choices=profiles, required=True, help="the shipped configurations of this name")
    every.add_argument("--model", metavar="M", help="the model of all of them, in place of the configured ones")
    every.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", dest="settings", help="one key of all of them"
    )
    every.add_argument("--only", choices=[step.name for step in steps], action="append", help="this one; repeatable")
    every.add_argument("--gpu-index", type=int, metavar="N", help="the GPU that all of them compute on")
    add_server(every)
    every.add_argument("--output-dir", type=Path, metavar="DIR", help="by default results/all_PROFILE")
    every.set_defaults(command=lambda options: _every(options, steps, offers, run_one))
    claims = names.add_parser("claims", help="the original's claims, judged on runs that are there")
    claims.add_argument("--results", type=Path, metavar="FOLDER", required=True, help="the folder of `all`")
    claims.set_defaults(command=_claims)


def steps_of(offers: Sequence[Offer]) -> list[PlannedRun]:
    """Return the runs in their order: each experiment once, then what is needed besides."""
    return [*(PlannedRun(name=offer.name.replace("-", "_"), offer=offer.name) for offer in offers), *AGAIN]


def _every(options: argparse.Namespace, steps: Sequence[PlannedRun], offers: Sequence[Offer], run_one: RunOne) -> int:
    from djinn_evaluation.course import begin, now
    from djinn_evaluation.machine import machine, present_code

    folder = options.output_dir or Path("results") / f"all_{options.profile}"
    named = {offer.name: offer for offer in offers}
    chosen = [s for s in steps if options.profile in s.profiles and (options.only is None or s.name in options.only)]
    asked = {"profile": options.profile, "model": options.model, "version": __version__}
    asked |= {name: told for name in ("server", "settings") if (told := getattr(options, name))}
    ended = _ended_earlier(folder, asked, also_complete=options.only is not None)
    whole = {step.name for step in steps if options.profile in step.profiles}
    course = begin(folder, ALL_LOG, files=(RUNS, CLAIMS), terminal=False)
    course.every_file["code"] = present_code()
    for step in chosen:
        if step.name not in ended or options.only is not None:
            found = _one_of_all(step, named[step.offer], options, folder / step.name, run_one)
            ended[step.name] = found
        course.write(RUNS, {**asked, "complete": False, "runs": ended})
    course.write(RUNS, {**asked, "complete": options.only is None or whole <= ended.keys(), "runs": ended})
    return _conclude(course, {"timestamp": now(), **asked, "runs": ended, "machine": dict(machine())})


def _claims(options: argparse.Namespace) -> int:
    """Judge the runs in a folder by the present code. What `all` recorded of them, and its machine, stays."""
    from djinn_evaluation.claims.judging import read_fields
    from djinn_evaluation.course import begin, now
    from djinn_evaluation.machine import present_code

    folder: Path = options.results
    known: dict[str, Any] = {}
    if not any(folder.glob("*/*.json")):
        raise UsageError(f"{folder} has no result of a run; name the folder of `djinn experiment all`.")
    for path in (folder / CLAIMS, folder / RUNS):
        known |= read_fields(path) if path.is_file() else {}
    told: dict[str, Any] = {name: known[name] for name in (*ASKED, "runs", "machine") if name in known}
    course = begin(folder, CLAIMS_LOG, files=(CLAIMS,), terminal=False)
    course.every_file["code"] = present_code()
    course.remark("The claims were judged after the runs; the machine below is the one that judged.")
    return _conclude(course, {"timestamp": now(), "runs": {}, **told})


def _is_open(verdict: str) -> bool:
    return verdict.startswith(("UNDECIDED", NOT_RUN))


def _ended_earlier(folder: Path, asked: dict[str, Any], *, also_complete: bool) -> dict[str, Any]:
    """Return the runs that had ended of the same command, broken off; or, `also_complete`, come to its end."""
    from djinn_evaluation.machine import present_code, same_code

    try:
        found = json.loads((folder / RUNS).read_text())
    except (OSError, ValueError):
        return {}
    if (
        (found["complete"] and not also_complete)
        or {key: value for key, value in found.items() if key in ASKED} != asked
        or not same_code(found.get("code"), present_code())
    ):
        return {}
    return {name: run for name, run in found["runs"].items() if not run["verdict"].startswith(("ERROR", NOT_RUN))}


def _one_of_all(
    step: PlannedRun, offer: Offer, options: argparse.Namespace, folder: Path, run_one: RunOne
) -> dict[str, Any]:
    """Run one step; return its seconds and its verdict, or the sentence with which it was refused or broke off."""
    print(f"== {step.name}", flush=True)
    chosen = ["--config", step.config] if step.config is not None else ["--profile", options.profile]
    besides = (*(step.small if options.profile == "small" else ()), *_set(*options.settings))
    arguments = [*chosen, "--output-dir", str(folder), *step.more, *besides]
    if options.model is not None and step.config is None:
        key = offer.model_key
        arguments += ["--model", options.model] if key is None else ["--set", f"{key}={json.dumps(options.model)}"]
    for flag, value in (("--server", options.server), ("--key", options.key)):
        arguments += [] if value is None else [flag, value]
    if options.gpu_index is not None:
        arguments += ["--gpu-index", str(options.gpu_index)]
    begun = time.monotonic()
    try:
        verdict = _verdict(run_one(offer, arguments), refused=step.refused)
    except DjinnError as error:
        refused = isinstance(error, UsageError) and options.server is not None
        verdict = f"{NOT_RUN if refused else 'ERROR'} {error}"
        print(verdict)
    return {"verdict": verdict, "seconds": time.monotonic() - begun}


def _verdict(status: int, *, refused: bool) -> str:
    if status == UNDECIDED:
        return "UNDECIDED"
    return "PASS" if bool(status) == refused else "FAIL"


def _conclude(course: Any, told: dict[str, Any]) -> int:
    """Write claims.json and the one report of all runs, and print their verdicts; return the exit status."""
    from djinn_evaluation import report
    from djinn_evaluation.claims import table
    from djinn_evaluation.claims.judging import Results, answers
    from djinn_evaluation.course import close_log

    found = Results(folder=course.folder, code=course.every_file["code"])
    course.write(CLAIMS, {**told, **answers(found, table.CLAIMS)})
    others = {name: run["verdict"] for name, run in told["runs"].items() if run["verdict"] != "PASS"}
    course.undecided += [f"{name}: {verdict}" for name, verdict in others.items() if _is_open(verdict)]
    failures = [f"{name}: {verdict}" for name, verdict in others.items() if not _is_open(verdict)]
    report.write(course, "claims", failures)
    close_log(course.log)
    print(course.folder / "report.html")
    for name, run in told["runs"].items():
        print(f"{name:<20}{run['verdict']}")
    return 1 if failures else UNDECIDED if others else 0


PROFILES = ("small", "gpu")


def add_to(commands: Commands) -> None:
    experiment = commands.add_parser("experiment", help="the evaluation: measure, compare, report")
    names = experiment.add_subparsers(required=True, metavar="EXPERIMENT")
    for offer in OFFERS:
        parser = names.add_parser(offer.name, help=offer.summary)
        _add_common(parser)
        offer.flags(parser)
        parser.set_defaults(command=lambda options, offer=offer: _command(options, offer))
    _add_all(names, PROFILES, OFFERS, _run_one, add_server)


def _run_one(offer: Offer, arguments: list[str]) -> int:
    """Run one experiment as its own command would; return the exit status."""
    parser = Parser(prog=f"djinn experiment {offer.name}")
    _add_common(parser)
    offer.flags(parser)
    return _command(parser.parse_args(arguments), offer)


def _add_common(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--config", metavar="FILE", help="a configuration file, by path or by the name of a shipped one")
    add(
        "--profile",
        choices=PROFILES,
        help="a shipped configuration: small, the demo model in minutes; gpu, Llama-2-13B on one GPU",
    )
    add("--set", action="append", default=[], metavar="KEY=VALUE", dest="settings", help="one key, by its dotted path")
    add(
        "--random-weights",
        metavar="CONFIG",
        help="this architecture (a folder, a config.json, a hub name) with random "
        "weights; its sizes by --set architecture.KEY=VALUE",
    )
    add("--output-dir", type=Path, metavar="DIR", help="the folder of the results, in place of the configured one")
    add("--gpu-index", type=int, metavar="N", help="the GPU that all sides compute on")
    add_server(parser)
    add("--explain", action="store_true", help="what each key does, and end")


def add_server(parser: argparse.ArgumentParser) -> None:
    """Add the flags of an engine that runs already."""
    parser.add_argument(
        "--server-address",
        "--server",
        metavar="ADDRESS",
        dest="server",
        help="an engine that runs, in place of one of the run's own: tcp://gpu-box:5556, gpu-box or ssh://gpu-box",
    )
    parser.add_argument("--key", metavar="NAME", help="--server: which of your keys, or its file; else the only one")


def server_of(options: argparse.Namespace) -> Any:
    """Return the address that the flags name; None without one. UsageError for a key alone."""
    from djinn_evaluation.course import ServerAddress

    if options.server is not None:
        return ServerAddress(place=options.server, key=options.key)
    if options.key is not None:
        raise UsageError("A key is for an engine that runs already: give its address too, as --server tcp://gpu-box.")
    return None


def _command(options: argparse.Namespace, offer: Offer) -> int:
    from djinn_evaluation.configuration.reading import architecture, explain, read, split
    from djinn_evaluation.course import Setup, Undecided

    if options.explain:
        print(explain(offer.kind()))
        return 0
    from djinn_evaluation.machine import device_of

    name = _chosen(options, offer)
    settings, sizes = split([*options.settings, *(f"{key}={value}" for key, value in _flags_given(options))])
    options.server = server_of(options)
    options.setup = Setup(device=device_of(options.gpu_index), random=options.random_weights, server=options.server)
    with architecture(options.random_weights, sizes) as folder:
        if folder is not None and offer.model_key is not None:
            if any(key == offer.model_key for key, _ in _flags_given(options)):
                raise UsageError(TWO_MODELS)
            settings.append(f"{offer.model_key}={json.dumps(folder)}")
        options.drawn_model = folder
        try:
            failures = offer.run(options, read(name, offer.kind(), settings))
        except Undecided as why:
            print(f"UNDECIDED {why}")
            return UNDECIDED
    print("FAIL" if failures else "PASS")
    return int(bool(failures))


def _chosen(options: argparse.Namespace, offer: Offer) -> str:
    """Return the name of the configuration: the one given, or the shipped one that stands for a script without any."""
    if options.config and options.profile:
        raise UsageError("Give --config or --profile, not both.")
    if options.profile is not None:
        return f"{offer.name.replace('-', '_')}_{options.profile}.yaml"
    if options.config is None and offer.without_file is None:
        raise UsageError("Which configuration? Give --profile small or gpu, or --config FILE.")
    if options.config is None:
        print(f"No configuration is named: {offer.without_file} is read.", file=sys.stderr)
    return str(options.config or offer.without_file)


def _flags_given(options: argparse.Namespace) -> list[tuple[str, str]]:
    """Yield keys and values; of a flag with several values (a list) they are one, with commas."""
    flags = []
    for found in getattr(options, "keys", None) or ():
        told = found if isinstance(found, list) else [found]
        key, _, spell = told[0]
        flags.append((key, spell(",".join(value for _, value, _ in told))))
    return flags
