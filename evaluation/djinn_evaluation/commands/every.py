"""`djinn experiment all`: every experiment into a folder of its own, and the claims judged on all of them; `claims`:
the claims judged on runs that are there."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from djinn_evaluation.claims import RUNS
from djinn_evaluation.commands.offers import Offer
from djinn_jupyter._version import __version__
from djinn_jupyter.cli.commands import Commands
from djinn_jupyter.errors import DjinnError, UsageError

LOG: Final = "all.log"
CLAIMS_LOG: Final = "claims.log"
CLAIMS: Final = "claims.json"
UNDECIDED: Final = 3  # the exit status of a run that has no failure and left a verdict open
NOT_RUN: Final = "NOT RUN"  # the verdict where the engine that runs already cannot serve this one, and the reason
ASKED: Final = ("profile", "model", "version", "server", "settings")  # shared by a run that was broken off to go on
RunOne = Callable[[Offer, list[str]], int]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRun:
    """One run of one experiment, with the options `more`, and in the small profile `small` too. `refused`: it proves
    nothing, so that the experiment has to fail it."""

    name: str
    offer: str
    more: tuple[str, ...] = ()
    small: tuple[str, ...] = ()
    config: str | None = None
    profiles: tuple[str, ...] = ("small", "gpu")
    refused: bool = False


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
    *("--set", "experiment.overhead_pairs=1"),
    *("--set", "experiment.activation_steering.enabled=false"),
    *("--set", "validation.require_steering_effect=false"),
    *("--set", "experiment.concurrent_demo.enabled=false"),
    *("--set", "validation.require_concurrent_success=false"),
)
LESS_OF_GPT2: Final = (  # what its state of [1, 512, 768] can be had without, in seconds on two cores
    "architecture.n_layer=10",
    "model.num_layers=10",
    "architecture.vocab_size=2048",
    "experiment.num_trials=1",
)
AGAIN: Final = (  # what a claim needs besides: a second time, a run that has to be refused, another model
    PlannedRun(name="whitebox_again", offer="whitebox", more=tuple(w for s in PAUSE_ALONE for w in ("--set", s))),
    PlannedRun(name="whitebox_mistral", offer="whitebox", config="whitebox_mistral.yaml", profiles=("gpu",)),
    PlannedRun(
        name="whitebox_gpt2",
        offer="whitebox",
        config="whitebox_gpt2.yaml",
        more=(*STOPS_ALONE, "--random-weights", "gpt2"),
        small=tuple(w for s in LESS_OF_GPT2 for w in ("--set", s)),
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


def add_to(
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
    from djinn_evaluation.commit import present
    from djinn_evaluation.course import begin, now
    from djinn_evaluation.machine import machine

    folder = options.output_dir or Path("results") / f"all_{options.profile}"
    named = {offer.name: offer for offer in offers}
    chosen = [s for s in steps if options.profile in s.profiles and (options.only is None or s.name in options.only)]
    asked = {"profile": options.profile, "model": options.model, "version": __version__}
    asked |= {name: told for name in ("server", "settings") if (told := getattr(options, name))}
    ended = _ended_earlier(folder, asked, also_complete=options.only is not None)
    whole = {step.name for step in steps if options.profile in step.profiles}
    course = begin(folder, LOG, files=(RUNS, CLAIMS), terminal=False)
    course.every_file["code"] = present()
    for step in chosen:
        if step.name not in ended or options.only is not None:
            found = _one_of_all(step, named[step.offer], options, folder / step.name, run_one)
            ended[step.name] = found
        course.write(RUNS, {**asked, "complete": False, "runs": ended})
    course.write(RUNS, {**asked, "complete": options.only is None or whole <= ended.keys(), "runs": ended})
    return _conclude(course, {"timestamp": now(), **asked, "runs": ended, "machine": dict(machine())})


def _claims(options: argparse.Namespace) -> int:
    """Judge the runs in a folder, by the code of now. What `all` told of them, and its machine, stays told."""
    from djinn_evaluation.claims.results import read
    from djinn_evaluation.commit import present
    from djinn_evaluation.course import begin, now

    folder: Path = options.results
    known: dict[str, Any] = {}
    if not any(folder.glob("*/*.json")):
        raise UsageError(f"{folder} has no result of a run; name the folder of `djinn experiment all`.")
    for path in (folder / CLAIMS, folder / RUNS):
        known |= read(path) if path.is_file() else {}
    told: dict[str, Any] = {name: known[name] for name in (*ASKED, "runs", "machine") if name in known}
    course = begin(folder, CLAIMS_LOG, files=(CLAIMS,), terminal=False)
    course.every_file["code"] = present()
    course.remark("The claims were judged after the runs; the machine below is the one that judged.")
    return _conclude(course, {"timestamp": now(), "runs": {}, **told})


def _is_open(verdict: str) -> bool:
    return verdict.startswith(("UNDECIDED", NOT_RUN))


def _ended_earlier(folder: Path, asked: dict[str, Any], *, also_complete: bool) -> dict[str, Any]:
    """Return the runs of the same command that had ended when it was broken off; where it came to its end none, or,
    `also_complete`, all of them: one is then run again beside the others."""
    from djinn_evaluation.commit import present, same

    try:
        found = json.loads((folder / RUNS).read_text())
    except (OSError, ValueError):
        return {}
    if (found["complete"] and not also_complete) or _asked_of(found) != asked or not same(found.get("code"), present()):
        return {}
    return {name: run for name, run in found["runs"].items() if not run["verdict"].startswith(("ERROR", NOT_RUN))}


def _asked_of(found: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in found.items() if key in ASKED}


def _one_of_all(
    step: PlannedRun, offer: Offer, options: argparse.Namespace, folder: Path, run_one: RunOne
) -> dict[str, Any]:
    """Run one step; return its seconds and its verdict, or the sentence with which it was refused or broke off."""
    print(f"== {step.name}", flush=True)
    chosen = ["--config", step.config] if step.config is not None else ["--profile", options.profile]
    besides = [
        *(step.small if options.profile == "small" else ()),
        *(w for s in options.settings for w in ("--set", s)),
    ]
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
    from djinn_evaluation.claims.answers import answers
    from djinn_evaluation.claims.results import Results
    from djinn_evaluation.logs import close_log

    course.write(CLAIMS, {**told, **answers(Results(folder=course.folder, code=course.every_file["code"]))})
    others = {name: run["verdict"] for name, run in told["runs"].items() if run["verdict"] != "PASS"}
    course.undecided += [f"{name}: {verdict}" for name, verdict in others.items() if _is_open(verdict)]
    failures = [f"{name}: {verdict}" for name, verdict in others.items() if not _is_open(verdict)]
    report.write(course, "claims", failures)
    close_log(course.log)
    print(course.folder / "report.html")
    for name, run in told["runs"].items():
        print(f"{name:<20}{run['verdict']}")
    return 1 if failures else UNDECIDED if others else 0
