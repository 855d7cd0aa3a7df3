"""The same model, cache, prompt and new tokens streamed by other tools: manual offload, accelerate, vLLM."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from djinn_jupyter.amounts import GIB
from djinn_jupyter.experiments.baselines.asking import BaselineFailed, baseline
from djinn_jupyter.experiments.configuration.validation import PcieFlatline
from djinn_jupyter.experiments.course import Course, Unmeasured
from djinn_jupyter.experiments.validation.opening import PAGES_SHARE

PROMPT, NEW = 8, 16
ROUNDS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Streamed:
    """A model streamed by manual offload."""

    weights: int  # bytes of all
    copies: tuple[tuple[int, float], ...]  # bytes and seconds of each copy of a layer, while another is computed
    alone: tuple[tuple[int, float], ...]  # the same of copies while nothing is computed, some in each round
    rounds: tuple[float, ...]  # tokens a second of each
    tokens: tuple[int, ...]  # new ones


def manual(course: Course, model: str, dtype: str, seconds: float) -> Streamed:
    """Stream the model by manual offload for at least `seconds`, and at least three rounds."""
    course.tell("Manual pinned offload, beside which ours is held")
    copies: list[tuple[int, float]] = []
    alone: list[tuple[int, float]] = []
    rounds: list[float] = []
    with baseline("offload") as offload:
        loaded = offload.ask("load", model=model, dtype=dtype, threads=1, **course.setup.words())
        prompt = list(range(1, PROMPT + 1))
        offload.ask("generate", tokens=prompt, new=2)
        begun = time.monotonic()
        made: dict[str, Any] = {}
        while time.monotonic() - begun < seconds or len(rounds) < ROUNDS:
            course.check_time()
            made = offload.ask("generate", tokens=prompt, new=NEW)
            copies += [(nbytes, taken) for nbytes, taken in made["copies"]]
            alone += [(nbytes, taken) for nbytes, taken in offload.ask("copy")["copies"]]
            rounds.append(NEW / made["seconds"])
    return Streamed(
        weights=loaded["weight_bytes"],
        copies=tuple(copies),
        alone=tuple(alone),
        rounds=tuple(rounds),
        tokens=tuple(made["tokens"]),
    )


def beside(
    course: Course, wanted: PcieFlatline, allowed: int, by_hand: Streamed, ours: Sequence[float], tokens: Sequence[int]
) -> dict[str, Any]:
    """Return each side's tokens a second and compare its new tokens with Djinn's; `allowed` bytes are for weights and
    pages together."""
    sides = {
        "djinn": _fields(ours, tokens, tokens),
        "manual_pinned_offload": _fields(by_hand.rounds, by_hand.tokens, tokens),
    }
    budget = allowed - allowed // PAGES_SHARE
    loading = {"model": wanted.model_id, "dtype": wanted.dtype, "threads": 1, **course.setup.words()}
    for to in ("cpu", "disk"):
        asked = {**loading, "budget": budget, "to": to}
        sides[f"accelerate_{to}_offload"] = _asked(course, "with_accelerate", asked, tokens)
    away = max(0, by_hand.weights - budget) / GIB
    asked = {"model": wanted.model_id, "dtype": wanted.dtype, "cpu_offload_gb": away, "length": PROMPT + NEW}
    sides["vllm"] = _asked(course, "vllm", {**asked, **course.setup.words()}, tokens)
    if course.setup.random is not None and sides["vllm"]["status"] == "success":
        sides["vllm"]["tokens_equal_to_djinn"] = Unmeasured(reason="vLLM draws random weights of its own")
    for name, side in sides.items():
        course.tell(f"{name}: {side.get('reason') or format(side['tokens_per_second'], '.1f') + ' tokens/s'}")
    return sides


def _asked(course: Course, module: str, loading: dict[str, Any], tokens: Sequence[int]) -> dict[str, Any]:
    course.check_time()
    prompt = list(range(1, PROMPT + 1))
    try:
        with baseline(module) as side:
            loaded = side.ask("load", **loading)
            if loaded["status"] == "not_run":
                return loaded
            side.ask("generate", tokens=prompt, new=2)
            made = [side.ask("generate", tokens=prompt, new=NEW) for _ in range(ROUNDS)]
    except BaselineFailed as error:
        return {"status": "not_run", "reason": str(error)}
    return _fields([NEW / one["seconds"] for one in made], made[0]["tokens"], tokens)


def _fields(rates: Sequence[float], tokens: Sequence[int], ours: Sequence[int]) -> dict[str, Any]:
    return {
        "status": "success",
        "tokens_per_second": statistics.median(rates),
        "rounds": len(rates),
        "new_tokens": len(tokens),
        "tokens_equal_to_djinn": list(tokens) == list(ours),
    }
