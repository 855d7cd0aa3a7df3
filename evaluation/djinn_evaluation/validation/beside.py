"""The same model, cache, prompt and new tokens streamed by other tools: manual offload, accelerate, vLLM."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from djinn_evaluation.baselines.asking import Baseline, BaselineFailed, baseline
from djinn_evaluation.configuration.validation import PcieFlatline
from djinn_evaluation.cores import seconds_without_core
from djinn_evaluation.course import Course, Unmeasured
from djinn_evaluation.validation.opening import PAGES_SHARE
from djinn_evaluation.validation.windows import MovedBytes, TimeSpan
from djinn_jupyter.units import GIB

PROMPT, NEW = 8, 16
ROUNDS = 3


@dataclass(slots=True, kw_only=True)
class HandStreamed:
    """A model streamed by manual offload with plain PyTorch, round by round. `weights` are the bytes of all."""

    weights: int
    device: str
    offload: Baseline | None = None
    copies: list[MovedBytes] = field(default_factory=list)  # of layers, while others are computed
    alone: list[MovedBytes] = field(default_factory=list)  # the same while nothing is computed, some in each round
    spans: list[TimeSpan] = field(default_factory=list)  # of the rounds' passes
    rates: list[float] = field(default_factory=list)  # tokens a second of each round
    tokens: tuple[int, ...] = ()  # new ones
    stalled: float = 0.0  # seconds in which computing waited for a copy
    beside: float = 0.0  # seconds of copies for which it did not wait, copy by copy
    without_core: float | None = 0.0  # seconds of the rounds' passes; None where the kernel does not count them

    def stream(self, layers: Sequence[int] | None) -> None:
        """Stream these layers from now on, all of them for None."""
        self._ask("stream", layers=layers if layers is None else list(layers))
        self._generate(2)  # the first is slow

    def round(self) -> None:
        """Generate, then copy the layers once while nothing is computed."""
        before = self._waited()
        made = self._generate(NEW)
        self.without_core = added(self.without_core, before, self._waited())
        self.copies += _moved(made)
        self.stalled += sum(stalled for *_, stalled in made["copies"])
        self.beside += sum(max(0.0, seconds - stalled) for _, seconds, _, stalled in made["copies"])
        self.spans.append(TimeSpan(begun=made["begun"], ended=made["ended"]))
        self.rates.append(NEW / made["seconds"])
        self.tokens = tuple(made["tokens"])
        self.alone += _moved(self._ask("copy"))

    def fastest(self) -> float:
        """Return the bytes a second of the fastest copy."""
        return max(copy.nbytes / copy.seconds for copy in (*self.copies, *self.alone))

    @property
    def seconds(self) -> float:
        return sum(span.seconds for span in self.spans)

    @property
    def together(self) -> float:
        """Return the share of the time in which copying and computing could overlap and did; 0 in turns."""
        copying = sum(copy.seconds for copy in self.copies)
        possible = min(copying, self.seconds - self.stalled)
        return self.beside / possible if possible > 0 else 0.0

    @property
    def pid(self) -> int:
        assert self.offload is not None
        return self.offload.process.pid

    def _generate(self, new: int) -> dict[str, Any]:
        return self._ask("generate", tokens=list(range(1, PROMPT + 1)), new=new, mode="ahead")

    def _waited(self) -> float | None:
        return seconds_without_core([self.pid])

    def _ask(self, verb: str, **asked: Any) -> dict[str, Any]:
        assert self.offload is not None
        return self.offload.ask(verb, **asked)


@contextmanager
def by_hand(course: Course, wanted: PcieFlatline) -> Iterator[HandStreamed]:
    """Yield the model, read and not yet streamed, in a process that ends with the block."""
    course.tell("Manual pinned offload, beside which ours is held")
    with baseline("by_hand") as offload:
        asked = {"model": wanted.model_id, "dtype": wanted.dtype, "threads": 1, **course.setup.words()}
        loaded = offload.ask("load", **asked)
        yield HandStreamed(weights=loaded["weight_bytes"], device=loaded["device"], offload=offload)


def _moved(made: dict[str, Any]) -> list[MovedBytes]:
    return [MovedBytes(nbytes=nbytes, seconds=seconds, begun=begun) for nbytes, seconds, begun, _ in made["copies"]]


def added(seconds: float | None, before: float | None, after: float | None) -> float | None:
    """Return the seconds with those from `before` to `after`; None where one of them is not known."""
    return None if seconds is None or before is None or after is None else seconds + max(0.0, after - before)


def beside(
    course: Course, wanted: PcieFlatline, allowed: int, hand: HandStreamed, ours: Sequence[float], tokens: Sequence[int]
) -> dict[str, Any]:
    """Return each side's tokens a second and compare its new tokens with Djinn's; `allowed` bytes are for weights and
    pages together."""
    sides = {
        "djinn": _fields(ours, tokens, tokens),
        "manual_pinned_offload": _fields(hand.rates, hand.tokens, tokens),
    }
    budget = allowed - allowed // PAGES_SHARE
    loading = {"model": wanted.model_id, "dtype": wanted.dtype, "threads": 1, **course.setup.words()}
    for to in ("cpu", "disk"):
        asked = {**loading, "budget": budget, "to": to}
        sides[f"accelerate_{to}_offload"] = _asked(course, "with_accelerate", asked, tokens)
    away = max(0, hand.weights - budget) / GIB
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
