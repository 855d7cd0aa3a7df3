"""TransformerLens's analysis on our engine, against the same code on its own model: its patching function, a cache of
all values with its attribution, a forward with a function at every layer, and the three one after another. CPU seconds,
in turns. Of the last two pieces also the limit of an engine whose passes are as fast as their own: what bare round
trips with the same bytes add."""

from __future__ import annotations

from typing import Any

from djinn_evaluation.benchmarks.both_sides import POSITIONS, REQUEST, BytesAcross, Tool
from djinn_evaluation.benchmarks.results import Result
from djinn_evaluation.benchmarks.setting import Setting, Shape
from djinn_evaluation.benchmarks.worker import Worker

EVERY, ROUNDS = 8, 3


def run(setting: Setting) -> Result:
    return TRANSFORMER_LENS.measured("analysis", setting, rounds=ROUNDS, patched=f"one of {EVERY}")


def _across(asked: Worker, shape: Shape, line: Any) -> tuple[BytesAcross, ...]:
    of_layer = POSITIONS * shape.width * 4
    return (
        BytesAcross(times=1, there=REQUEST, back=asked.ask("cached_bytes", line=line)["bytes"]),
        BytesAcross(times=shape.layers, there=of_layer, back=of_layer),
    )


TRANSFORMER_LENS = Tool(
    environment="transformer_lens",
    worker="with_transformer_lens",
    pair=("patch_on", "patching of residuals by TransformerLens, of its own speed"),
    of_pair={"every": EVERY},
    lines=(
        ("analyse", "a cache of all values and attribution by TransformerLens, of its own speed"),
        ("hook", "a forward with a function at every layer, of TransformerLens's own speed"),
    ),
    across=_across,
    together="the three one after another, of TransformerLens's own speed",
)
