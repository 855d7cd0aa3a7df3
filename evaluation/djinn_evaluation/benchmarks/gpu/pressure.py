"""The step of the claims' run under pressure: 50 sessions of 2,048 tokens on 13B-shaped weights that the card cannot
hold at the same time, by the experiment `pressure` of the profile gpu. Below the usual size its file is read too, with
keys for tiny weights.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from djinn_evaluation.benchmarks.gpu.evaluation import results_of
from djinn_evaluation.benchmarks.gpu.serving import TINY_PAGE
from djinn_evaluation.benchmarks.gpu.shapes import per_position, weight_bytes
from djinn_evaluation.benchmarks.gpu.steps import Unfinished
from djinn_evaluation.benchmarks.measuring import Spread
from djinn_evaluation.benchmarks.results import Bar, Figure, Result, at_least, at_most
from djinn_evaluation.benchmarks.setting import Setting
from djinn_evaluation.pressure.experiment import FILE
from djinn_jupyter.units import GIB

FOLDER: Final = "pressure"  # of both runs: the claims read them together
JUDGED: Final = ("PASS", "FAIL", "UNDECIDED")
TINY_SESSIONS, TINY_LENGTH = 50, 24 * TINY_PAGE


def run(setting: Setting) -> Result:
    return measured("pressure", "pressure", setting)


def measured(name: str, experiment: str, setting: Setting) -> Result:
    """Run one of the two; return the result of that name. Raises Unfinished, with the figures so far kept, where it is
    cut."""
    begun, file = time.time(), (setting.results or setting.home) / FOLDER / experiment / FILE
    try:
        found = results_of(name, setting, (experiment,), into=FOLDER, likely=0, tiny=_tiny)
    except Unfinished as how_far:
        if file.exists() and file.stat().st_mtime >= begun:
            setting.so_far(figures_of(file), str(how_far))
        raise
    judged = found.settings["verdicts"][experiment].startswith(JUDGED)
    return replace(found, figures=(*found.figures, *figures_of(file))) if judged else found


def _tiny(config: dict[str, Any]) -> list[str]:
    """Return the keys for a shape of few layers: shorter sessions, of which a smaller device holds two thirds."""
    layers = config["num_hidden_layers"]
    pages = TINY_SESSIONS * TINY_LENGTH * per_position(config)
    return [
        f"model.num_layers={layers}",
        f"model.page_positions={TINY_PAGE}",
        f"experiment.breakpoints.layers=[{layers // 2}]",
        f"experiment.inference.input_length={TINY_LENGTH}",
        f"experiment.inference.context_tokens={TINY_LENGTH}",
        f"experiment.activation_steering.steering_layer={layers // 2}",
        f"experiment.memory_pressure_test.session_pause_layer={layers // 2}",
        f"hardware.vram_limit_gb={(weight_bytes(config) + 2 * pages // 3) / GIB}",
    ]


# --- what came of it -------------------------------------------------------------------------------------------------


def figures_of(file: Path) -> tuple[Figure, ...]:
    """Return the figures of the experiment's file, as far as it came."""
    fields = json.loads(file.read_text())
    asked, resumed = fields["num_sessions_requested"], fields.get("sessions_resumed")
    counts = [
        ("alive at the same time", "sessions_alive_max", asked),
        (f"outputs equal to the session's alone, of {resumed} resumed", "outputs_equal", resumed),
    ]
    found = [_figure(fields, what, key, at_least(bar)) for what, key, bar in counts if fields.get(key) is not None]
    return (*found, *_of_memory(fields), *_speeds(fields))


def _figure(fields: dict[str, Any], what: str, key: str, bar: Bar) -> Figure:
    return Figure(name=f"sessions: {what}", unit="of them", value=Spread.of([float(fields[key])]), bar=bar)


def _of_memory(fields: dict[str, Any]) -> Iterator[Figure]:
    """Yield the most that was counted, as a share of what it must not exceed; a run that was cut has no such count."""
    by_driver = [gigabytes for _, gigabytes in fields.get("driver_samples") or ()]
    for who, found, most in (
        ("the engine counted", [fields["slab_books_gb"]], fields["capacity_gb"]),
        ("the driver saw", by_driver, fields.get("card_gb")),
    ):
        value = Spread.of([max(found) / most]) if most and found and None not in found else None
        why = fields.get("reasons", {}).get("driver_samples") or "the run did not come to its end"
        name = f"sessions: the most that {who}, of what there was"
        yield Figure(name=name, unit="x", value=value, bar=at_most(1.0), not_run=None if value else why)


def _speeds(fields: dict[str, Any]) -> Iterator[Figure]:
    """Yield the speed of the moves in each direction that copied bytes, by the mover's own seconds."""
    events = fields.get("swap_events") or ()
    for way in ("out", "in"):
        speeds = [e["gb_per_s"] * GIB / 1e9 for e in events if e["direction"] == way and e["gb_per_s"] is not None]
        why = None if speeds else "no such move copied bytes"
        yield Figure(name=f"sessions: moves {way}", unit="GB/s", value=Spread.of(speeds), not_run=why)
