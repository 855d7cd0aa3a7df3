"""The other sides: the model by hand (resident, a layer at a time, the parts of streaming), accelerate, DeepSpeed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Final

from djinn_evaluation.baselines.asking import Baseline, BaselineFailed, baseline
from djinn_evaluation.configuration.streaming import Streaming
from djinn_evaluation.cores import cores_first
from djinn_evaluation.course import Course
from djinn_evaluation.streaming.logits import Answer
from djinn_evaluation.streaming.ring import RingSide
from djinn_evaluation.streaming.subjects import Subject
from djinn_evaluation.streaming.turns import Measure, Repetition, watched

RESIDENT, BY_LAYER, COMPUTING = "resident", "synchronous_offload", "computing_alone"
COPYING, BOTH = "copying_alone", "both_at_once"
OFFLOADS: Final = {
    "accelerate_cpu_offload": ("with_accelerate", "cpu"),
    "accelerate_disk_offload": ("with_accelerate", "disk"),
    "deepspeed_zero_inference": ("with_deepspeed", "cpu"),
}


@dataclass(slots=True, kw_only=True)
class HandSide:
    """The baseline by hand, in a process of its own where `running` is None. It streams the layers that `ring` streams,
    so the ring is opened first. The other fields are filled while it is open; `plain` are the answers of the resident
    model, where it fits."""

    course: Course
    subject: Subject
    file: Streaming
    ring: RingSide
    running: Baseline | None = None
    device: str = ""
    fits: bool = False
    streamed_bytes: int = 0
    fastest: float = 0.0  # bytes a second of the fastest copy of a layer
    reference: list[Answer] = field(default_factory=list)
    plain: list[Answer] = field(default_factory=list)
    tokens: dict[str, set[tuple[int, ...]]] = field(default_factory=dict)

    @contextmanager
    def opened(self) -> Iterator[Mapping[str, Measure]]:
        with baseline("by_hand") if self.running is None else nullcontext(self.running) as hand:
            model = asked(self.course, self.subject, self.file)
            self.device = hand.ask("load", **model)["device"]
            streamed = hand.ask("stream", layers=list(self.ring.layers))
            self.fits, self.streamed_bytes = streamed["fits"], streamed["streamed_bytes"]
            self._answer(hand)
            with cores_first([hand.process.pid], asked=self.file.cores_first):
                yield self._sides(hand)

    def _answer(self, hand: Baseline) -> None:
        for prompt in self.ring.prompts:
            self.reference.append(self._logits(hand, prompt, "by_layer"))
            if self.fits:
                self.plain.append(self._logits(hand, prompt, "resident"))

    def _logits(self, hand: Baseline, prompt: list[int], mode: str) -> Answer:
        return Answer.of(hand.ask("streamed_logits", tokens=prompt, new=self.file.new_tokens, mode=mode))

    def _sides(self, hand: Baseline) -> dict[str, Measure]:
        """Return the parts of streaming as sides. Where the model does not fit, the slot's weights stand for each
        layer's while the time of computing is taken."""
        mode = "resident" if self.fits else "computing"
        computing = {RESIDENT if self.fits else COMPUTING: self._generating(hand, "generate", mode)}
        return {
            **computing,
            COPYING: watched([hand.process.pid], lambda: self._copied(hand)),
            BOTH: self._generating(hand, "generate_and_copy", mode),
            BY_LAYER: self._generating(hand, "generate", "by_layer"),
        }

    def _generating(self, hand: Baseline, verb: str, mode: str) -> Measure:
        def measure() -> Repetition:
            made = hand.ask(verb, tokens=self.ring.prompts[0], new=self.file.new_tokens, mode=mode)
            if mode != "computing":
                self.tokens.setdefault(verb + mode, set()).add(tuple(made["tokens"]))
            return reading(made, self.file.new_tokens)

        return watched([hand.process.pid], measure)

    def _copied(self, hand: Baseline) -> Repetition:
        """Return the milliseconds of copying what the ring streams in a pass, as those of each token."""
        made = hand.ask("copy")
        self.fastest = max(self.fastest, *(nbytes / seconds for nbytes, seconds, *_ in made["copies"]))
        assert self.ring.weights is not None
        share = self.ring.weights.bytes_streamed_per_pass / self.streamed_bytes
        each = 1000 * made["seconds"] * share
        return Repetition(first=each, token=each, total=each * self.file.new_tokens)


@dataclass(slots=True, kw_only=True)
class OffloadSide:
    """Another tool's offload with the ring's bytes on the device. `reason` says why it did not run."""

    course: Course
    subject: Subject
    file: Streaming
    ring: RingSide
    name: str
    running: Baseline | None = None
    reason: str | None = None
    tokens: set[tuple[int, ...]] = field(default_factory=set)

    @contextmanager
    def started(self) -> Iterator[Mapping[str, Measure]]:
        """Start the process, which has no sides yet, so that it imports while the sides before it load."""
        with baseline(OFFLOADS[self.name][0]) as self.running:
            yield {}
        self.running = None

    @contextmanager
    def opened(self) -> Iterator[Mapping[str, Measure]]:
        module, to = OFFLOADS[self.name]
        assert self.ring.weights is not None
        with baseline(module) if self.running is None else nullcontext(self.running) as tool:
            model = asked(self.course, self.subject, self.file)
            budget = self.ring.weights.bytes_on_device
            loaded = self._tried(lambda: tool.ask("load", budget=budget, to=to, **model))
            self.reason = self.reason or loaded.get("reason")
            with cores_first([tool.process.pid], asked=self.file.cores_first):
                yield {} if self.reason else {self.name: lambda: self._reading(tool)}

    def _reading(self, tool: Baseline) -> Repetition:
        new = self.file.new_tokens
        made = self._tried(lambda: tool.ask("generate", tokens=self.ring.prompts[0], new=new))
        if self.reason:
            return Repetition(first=0.0, token=0.0, total=0.0)  # left out, for there is a reason
        self.tokens.add(tuple(made["tokens"]))
        return reading(made, new)

    def _tried(self, ask: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        if self.reason:
            return {}
        try:
            return ask()
        except BaselineFailed as error:
            self.reason = str(error)
            return {}


def asked(course: Course, subject: Subject, file: Streaming) -> dict[str, Any]:
    """Return the model as baselines are asked for it."""
    return {"model": subject.source, "dtype": file.dtype, "threads": 1, **course.setup.words()}


def reading(made: Mapping[str, Any], new: int) -> Repetition:
    """Return the times of a baseline's generation."""
    total, decoding = 1000 * made["seconds"], 1000 * made["decoding"]
    alone = 1000 * made["alone"] if "alone" in made else None
    return Repetition(first=total - decoding, token=decoding / (new - 1), total=total, alone=alone)
