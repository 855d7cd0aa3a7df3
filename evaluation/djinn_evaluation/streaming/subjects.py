"""The models of a run: one with weights of its own, or shapes that get random weights in a folder of this run's."""

from __future__ import annotations

import json
import shutil
import tempfile
from bisect import bisect_left
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from djinn_evaluation.baselines.asking import Baseline
from djinn_evaluation.configuration.architecture import architecture
from djinn_evaluation.course import Course
from djinn_jupyter.errors import UsageError
from djinn_jupyter.machine import main_memory
from djinn_jupyter.units import GIB, spell_bytes

WIDTHS: Final = ("hidden_size", "intermediate_size", "vocab_size")
HEADS: Final = ("num_attention_heads", "num_key_value_heads", "hidden_size", "intermediate_size", "vocab_size")
EVEN: Final = 8  # a head's width is a multiple of this
LEAST_LAYERS: Final = 4  # of fewer no two slots and a layer that waits
SPARE: Final = 9 / 10  # of the disk and of main memory
OWN_DTYPE: Final = "float16"  # of a shape whose configuration has none
WeightBytes = Callable[[dict[str, Any]], int]


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnShape:
    """An architecture whose weights are drawn: `layers` None for its own or as many as there is room for, `dtype` None
    for its own. Widths are divided by more than `divide_widths` where the weights would take more than `weights_gb`."""

    architecture: str
    divide_widths: int
    layers: int | None
    dtype: str | None
    weights_gb: float | None = None

    def divided(self, weight_bytes: WeightBytes) -> tuple[int, dict[str, Any]]:
        """Return the divisor of its widths, and its configuration with them. UsageError where none is small enough."""
        own = configuration_of(self.architecture)
        depth = {} if self.layers is None else {"num_hidden_layers": self.layers}
        kind = {"dtype": self.dtype or own.get("dtype") or OWN_DTYPE}

        def fits(divisor: int) -> bool:
            return self.weights_gb is None or weight_bytes(shrunk(own, divisor) | depth | kind) <= self.weights_gb * GIB

        divisors = range(self.divide_widths, max(self.divide_widths, own["hidden_size"]) + 1)
        place = bisect_left(divisors, True, key=fits)
        if place == len(divisors):
            raise UsageError(f"No width of {self.architecture} is small enough for weights_gb; give more.")
        return divisors[place], shrunk(own, divisors[place]) | depth | kind


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A model to stream: `source` is what every side loads. `share_of_layers` is below 1 where the host has no room for
    all layers of the shape."""

    name: str
    source: str
    share_of_layers: float = 1.0


@contextmanager
def subject(course: Course, shape: DrawnShape, hand: Baseline) -> Iterator[Subject]:
    """Yield a shape with random weights, drawn by `hand` into a folder that is deleted after the block. UsageError for
    an architecture that is unknown, cannot be divided, or does not fit."""
    named = shape.architecture

    def weight_bytes(config: dict[str, Any]) -> int:
        return int(hand.ask("drawn_bytes", config=config)["weight_bytes"])

    with tempfile.TemporaryDirectory(prefix=".weights-", dir=course.folder) as place:
        folder = Path(place) / named.rpartition("/")[2]
        folder.mkdir()
        divisor, asked = shape.divided(weight_bytes)
        room = int(SPARE * min(shutil.disk_usage(folder).free, main_memory().available))
        config = that_fits(named, asked, room, weight_bytes)
        course.tell(f"Writing {config['num_hidden_layers']} layers of {named} with random weights")
        hand.ask("draw", config=config, folder=str(folder))
        share = config["num_hidden_layers"] / asked["num_hidden_layers"]
        scale = "" if divisor == 1 else f", widths divided by {divisor}"
        name = f"{named}{scale}, {config['num_hidden_layers']} layers with random weights"
        yield Subject(name=name, source=str(folder), share_of_layers=share)


def configuration_of(shape: str) -> dict[str, Any]:
    """Return the config.json of an architecture. UsageError where it is not at hand."""
    with architecture(shape, {}) as folder:
        file = Path(str(folder)) / "config.json"
        if not file.is_file():
            raise UsageError(f"The config.json of the shape {shape} is not at hand; give a path, or a shipped one.")
        found: dict[str, Any] = json.loads(file.read_text())
    if lacking := [key for key in (*HEADS, "num_hidden_layers") if key not in found]:
        raise UsageError(f"The shape {shape} has no key {lacking[0]} to be scaled by; give --random-weights {shape}.")
    return found


def shrunk(config: dict[str, Any], divisor: int) -> dict[str, Any]:
    """Return the configuration with its widths divided, its groups of heads and as many heads to a group as before."""
    if divisor == 1:
        return dict(config)
    group = config["num_attention_heads"] // config["num_key_value_heads"]
    groups = max(1, round(config["num_key_value_heads"] / divisor))
    heads = groups * group
    width = max(EVEN, round(config["hidden_size"] / divisor / heads / EVEN) * EVEN)
    widths = {key: max(EVEN, round(config[key] / divisor / EVEN) * EVEN) for key in WIDTHS}
    return {
        **config,
        **widths,
        "hidden_size": heads * width,
        "num_attention_heads": heads,
        "num_key_value_heads": groups,
        **({"head_dim": width} if config.get("head_dim") else {}),
    }


def that_fits(shape: str, config: dict[str, Any], room: int, weight_bytes: WeightBytes) -> dict[str, Any]:
    """Return the configuration with as many of its layers as there is room for. UsageError where those are too few."""
    layers: int = config["num_hidden_layers"]
    most, fewer = weight_bytes(config), weight_bytes(config | {"num_hidden_layers": layers - 1})
    over = max(0, -(-(most - room) // max(1, most - fewer)))
    if layers - over < LEAST_LAYERS:
        raise UsageError(
            f"{LEAST_LAYERS} layers of {shape} do not fit: all {layers} take {spell_bytes(most)}, and disk and main "
            f"memory have room for {spell_bytes(room)}; divide its widths, or leave it out of shapes."
        )
    return config | {"num_hidden_layers": layers - over}
