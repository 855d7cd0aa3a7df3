"""`python -m djinn_evaluation.benchmarks [NAME ...] [--quick] [--results FOLDER]`: run benchmarks and write figures."""

from __future__ import annotations

import argparse
import importlib
import sys
import traceback
from pathlib import Path

from djinn_evaluation import machine
from djinn_evaluation.benchmarks import results
from djinn_evaluation.benchmarks.age import aged
from djinn_evaluation.benchmarks.setting import setting
from djinn_evaluation.devices import computed_on

NAMES = (
    "generation", "breakpoints", "resume", "stop", "round_trip", "load_ext", "fork", "swap", "prefetch", "sweep",
    "patching", "attribution", "adapters", "collection", "batches", "rules", "streaming", "replay", "crowds", "paint",
    "cold_start", "first_card", "journal", "beside", "people", "shared_passes",
    "logs", "features", "agreement", "analysis", "tracing",
)  # fmt: skip
BY_NAME = ("corners", "house")  # a quarter of an hour and more, and counts of a checkout: only where they are named


def main() -> int:
    options = _parser().parse_args()
    folder = options.results or (results.usual() / "quick" if options.quick else results.usual())
    print(f"Results go to {folder}", flush=True)
    failed = []
    device = computed_on()
    for name in options.names or NAMES:
        begun = machine.describe(threads=options.threads, device=device)
        print(f"{name} (load {begun.load_before[0]})", flush=True)
        try:
            with setting(quick=options.quick, threads=options.threads, device=device) as place:
                found = importlib.import_module(f"djinn_evaluation.benchmarks.{name}").run(place)
        except Exception:  # noqa: BLE001  the other benchmarks still run; this one has no result
            traceback.print_exc()
            failed.append(name)
            continue
        for figure in found.figures:
            print(f"  {figure}", flush=True)
        results.write(found, machine.ended(begun), folder)
    for sentence in aged():
        print(sentence)
    if failed:
        print(f"Without a result: {', '.join(failed)}.", file=sys.stderr)
    return 1 if failed else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m djinn_evaluation.benchmarks")
    which = f"which: {', '.join(NAMES + BY_NAME)}; by default all but {', '.join(BY_NAME)}"
    parser.add_argument("names", nargs="*", metavar="NAME", help=which)
    parser.add_argument("--quick", action="store_true", help="tiny models, few rounds; results not for quoting")
    where = "of the results (default: in a checkout its own, else djinn-results/benchmarks)"
    parser.add_argument("--results", type=Path, metavar="FOLDER", help=where)
    parser.add_argument("--threads", type=int, default=1, help="of either side (default 1)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
