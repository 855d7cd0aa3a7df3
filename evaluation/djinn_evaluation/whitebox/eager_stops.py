"""The stops of PyTorch eager itself: a pass that goes on from a kept hidden state, and steering by a hook.

It has them as any program has that writes its hooks before the pass; ours are beside it."""

from __future__ import annotations

from typing import Any

from djinn_evaluation.baselines.asking import Baseline, any_prompt
from djinn_evaluation.configuration.whitebox import Whitebox


def eager_stops(eager: Baseline, file: Whitebox) -> dict[str, Any]:
    """Return the metrics of stops and steering, on the most likely token after each position of a prompt."""
    tokens = any_prompt(file.experiment.inference.input_length)
    plain = eager.ask("predicted", tokens=tokens)["predicted"]
    layers = file.experiment.breakpoints.layers
    resumed = [eager.ask("resumed", tokens=tokens, layer=layer)["predicted"] for layer in layers]
    found = {"token_accuracy_percent": _agreeing(plain, resumed)}
    steering = file.experiment.activation_steering
    if steering is None or not steering.enabled:
        return found
    asked = {"tokens": tokens, "layer": steering.steering_layer, "factor": steering.modification_factor}
    first, second = (eager.ask("steered", **asked)["predicted"] for _ in range(2))
    return {
        **found,
        "steering_token_diff_percent": 100 - _agreeing(plain, [first]),
        "steering_repeats": first == second,
    }


def _agreeing(plain: list[int], runs: list[list[int]]) -> float:
    """Return the share of equal tokens in percent, over all runs."""
    right = sum(a == b for run in runs for a, b in zip(plain, run, strict=True))
    return 100 * right / (len(runs) * len(plain))
