"""nnsight's traces on our engine, against the same code on its own model: a residual patched in a trace for each layer,
the outputs of all layers read, and all MLPs changed, in one trace each. CPU seconds, in turns. Of the last two also the
limit of an engine whose passes are as fast as nnsight's own: a trace's body comes to one place after another."""

from __future__ import annotations

from typing import Any

from djinn_evaluation.benchmarks.both_sides import POSITIONS, REQUEST, BytesAcross, Tool
from djinn_evaluation.benchmarks.results import Result
from djinn_evaluation.benchmarks.setting import Setting, Shape
from djinn_evaluation.benchmarks.worker import Worker

ROUNDS = 5


def run(setting: Setting) -> Result:
    return NNSIGHT.measured("tracing", setting, rounds=ROUNDS)


def _across(asked: Worker, shape: Shape, line: Any) -> tuple[BytesAcross, ...]:
    of_layer = POSITIONS * shape.width * 4
    return tuple(BytesAcross(times=shape.layers, there=there, back=of_layer) for there in (REQUEST, of_layer))


NNSIGHT = Tool(
    environment="nnsight",
    worker="with_nnsight",
    pair=("patch_on", "a residual patched in a trace for each layer by nnsight, of its own speed"),
    lines=(
        ("read", "a trace that reads the output of every layer, of nnsight's own speed"),
        ("change", "a trace that changes the MLP of every layer, of nnsight's own speed"),
    ),
    across=_across,
)
