"""`python -m djinn_evaluation.benchmarks [NAME ...] [--quick] [--results FOLDER]`: run benchmarks and write figures."""

from __future__ import annotations

import argparse
import sys
import traceback
from pathlib import Path

from djinn_evaluation import machine
from djinn_evaluation.benchmarks import harness
from djinn_evaluation.benchmarks.harness import MODULE_OF, aged, benchmark, setting
from djinn_evaluation.machine import computed_on

# Only where they are named: a quarter of an hour and more, one that reads another's result, counts of a checkout, one
# that needs a network, and two that need nbclient.
BY_NAME = ("corners", "limits", "house", "install", "notebooks", "ways")
NAMES = tuple(name for name in MODULE_OF if name not in BY_NAME)


def main() -> int:
    options = _parser().parse_args()
    folder = options.results or (harness.usual() / "quick" if options.quick else harness.usual())
    print(f"Results go to {folder}", flush=True)
    failed = []
    device = computed_on()
    for name in options.names or NAMES:
        begun = machine.describe(threads=options.threads, device=device)
        print(f"{name} (load {begun.load_before[0]})", flush=True)
        try:
            with setting(quick=options.quick, threads=options.threads, device=device, at=options.at) as place:
                found = benchmark(name)(place)
        except Exception:  # noqa: BLE001  the other benchmarks still run; this one has no result
            traceback.print_exc()
            failed.append(name)
            continue
        for figure in found.figures:
            print(f"  {figure}", flush=True)
        harness.write(found, machine.ended(begun), folder)
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
    parser.add_argument("--at", metavar="COMMIT", help="house: count this commit, in place of the checkout")
    parser.add_argument("--threads", type=int, default=1, help="of either side (default 1)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
