"""Our side: an engine whose layers stream through its ring, its times, its logits and the bytes that it moved."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, Final

from djinn_evaluation.configuration.streaming import Streaming
from djinn_evaluation.cores import cores_first
from djinn_evaluation.course import Course, timed
from djinn_evaluation.outcomes import finished
from djinn_evaluation.serving import engine_for, pids_of, prompt_of
from djinn_evaluation.streaming.logits import Answer
from djinn_evaluation.streaming.subjects import Subject
from djinn_evaluation.streaming.turns import Measure, Repetition, watched
from djinn_evaluation.validation.ring import arrived
from djinn_jupyter.api.engine import RemoteEngine
from djinn_jupyter.api.session import RemoteSession
from djinn_jupyter.errors import UsageError
from djinn_jupyter.wire.nouns import LayerCopy, WeightsStatistics

NAME: Final = "djinn"
SMALL_PAGE: Final = 16
TIMEOUT: Final = 600.0  # seconds within which copies under way arrive
SEED: Final = 700


@dataclass(slots=True, kw_only=True)
class RingSide:
    """The engine of one subject with `budget` bytes for weights and pages. The other fields are filled while its
    process is open: `answers` to the samples, `repeated` to the first of them each time that it was timed, `moved`
    bytes of a pass over each sample, on average, `outside` the milliseconds of a token by itself that are not its
    pass: the request, its journal and its reply."""

    course: Course
    subject: Subject
    file: Streaming
    budget: int
    device: str = ""
    prompts: list[list[int]] = field(default_factory=list)
    weights: WeightsStatistics | None = None
    layers: tuple[int, ...] = ()
    answers: list[Answer] = field(default_factory=list)
    repeated: list[Answer] = field(default_factory=list)
    moved: list[float] = field(default_factory=list)
    outside: list[float] = field(default_factory=list)
    copies: tuple[LayerCopy, ...] = ()
    cores_first: bool = False

    @contextmanager
    def opened(self) -> Iterator[Mapping[str, Measure]]:
        options = {"dtype": self.file.dtype, "device_memory": self.budget, "page_positions": SMALL_PAGE, "threads": 1}
        with engine_for(self.course, self.subject.source, **options) as engine:
            self._learn(engine)
            with cores_first(pids_of(engine), asked=self.file.cores_first) as self.cores_first:
                yield {NAME: watched(pids_of(engine), lambda: self._reading(engine))}
            self.copies = arrived(engine, 0, TIMEOUT)

    def _learn(self, engine: RemoteEngine) -> None:
        """Run the samples, after a pass from which the ring learns the order of its layers."""
        self.device, self.weights = engine.description.device, engine.wake().weights
        if self.weights.residency != "streamed":
            raise UsageError("The whole model stays on the device, so nothing streams; set a smaller device_share.")
        count = max(self.file.samples, 1)
        self.prompts = [prompt_of(engine, self.file.prompt_tokens, seed=SEED + number) for number in range(count)]
        session = engine.session("streaming", fresh=True)
        session.run(self.prompts[0], max_new_tokens=2, ignore_eos=True)
        self.layers = tuple(sorted({copy.layer for copy in arrived(engine, 0, TIMEOUT)}))
        for prompt in self.prompts:
            self._answer(engine, session, prompt)

    def _answer(self, engine: RemoteEngine, session: RemoteSession, prompt: list[int]) -> None:
        last = max((copy.number for copy in arrived(engine, 0, TIMEOUT)), default=0)
        done = finished(session.run(prompt, max_new_tokens=self.file.new_tokens, ignore_eos=True))
        nbytes = sum(copy.bytes_moved for copy in arrived(engine, last, TIMEOUT))
        self.moved.append(nbytes / done.passes)
        self.answers.append(Answer(tokens=tuple(done.tokens), logits=done.logits))

    def _reading(self, engine: RemoteEngine) -> Repetition:
        """Time a run of the first sample by its tokens, as they come, and then the pass of one token more by itself."""
        session, prompt, new = engine.session("streaming"), self.prompts[0], self.file.new_tokens
        came: list[float] = []

        begun = perf_counter()
        done = finished(
            session.run(prompt, max_new_tokens=new, ignore_eos=True, on_token=lambda token: came.append(perf_counter()))
        )
        total = 1000 * (perf_counter() - begun)
        before = engine.wake().weights.pass_seconds
        _, asked = timed(lambda: finished(session.run(max_new_tokens=1, ignore_eos=True, extend=True)))
        alone = 1000 * (engine.wake().weights.pass_seconds - before)
        self.outside.append(asked - alone)
        self.repeated.append(Answer(tokens=tuple(done.tokens), logits=done.logits))
        each = 1000 * (came[-1] - came[0]) / (new - 1)
        return Repetition(first=1000 * (came[0] - begun), token=each, total=total, alone=alone)

    def mean_rate(self) -> float:
        return sum(copy.bytes_moved for copy in self.copies) / sum(copy.seconds for copy in self.copies)

    def stalls(self) -> dict[int, float]:
        """Return for each streamed layer the median of the milliseconds that computing waited for its copy."""
        waited: dict[int, list[float]] = {layer: [] for layer in self.layers}
        for copy in self.copies:
            if copy.stalled_seconds is not None:
                waited[copy.layer].append(1000 * copy.stalled_seconds)
        return {layer: statistics.median(found) for layer, found in waited.items() if found}

    def facts(self) -> dict[str, Any]:
        """Return the fields of the result file that say what streamed."""
        assert self.weights is not None
        return {
            "device": self.device,
            "cores_first": self.cores_first,
            "device_memory_bytes": self.budget,
            "bytes_total": self.weights.bytes_total,
            "bytes_on_device": self.weights.bytes_on_device,
            "bytes_streamed_per_pass": self.weights.bytes_streamed_per_pass,
            "layers_streamed": list(self.layers),
            "ring_slots": self.weights.ring_slots,
            "bytes_moved_per_pass": self.moved,
            "outside_of_the_pass_ms": statistics.median(self.outside),
            "waited_ms_by_layer": {str(layer): waited for layer, waited in self.stalls().items()},
        }
