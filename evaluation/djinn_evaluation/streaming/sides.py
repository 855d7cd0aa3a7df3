"""The sides of a streamed model: ours, by hand, accelerate and DeepSpeed; their models, logits and order."""

from __future__ import annotations

import base64
import json
import shutil
import statistics
import tempfile
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import perf_counter
from typing import Any, Final

import numpy as np

from djinn_evaluation.baselines.asking import Baseline, BaselineFailed, baseline
from djinn_evaluation.configuration.reading import architecture
from djinn_evaluation.configuration.sections import Streaming
from djinn_evaluation.course import Course, timed
from djinn_evaluation.machine import core_wait, cores_first
from djinn_evaluation.serving import engine_for, finished, pids_of, prompt_of
from djinn_evaluation.validation.opening import arrived
from djinn_jupyter.api.engine import RemoteEngine
from djinn_jupyter.api.session import RemoteSession
from djinn_jupyter.errors import UsageError
from djinn_jupyter.machine import main_memory
from djinn_jupyter.units import GIB, spell_bytes
from djinn_jupyter.wire.nouns import LayerCopy, WeightsStatistics

Measure = Callable[[], "Repetition"]
Tool = Callable[[], AbstractContextManager[Mapping[str, Measure]]]
"""Opens a process and yields its sides by name."""
WARM_UP = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Repetition:
    """Milliseconds of one repetition; `alone`: of a token by itself; `without_core`: the share of its time."""

    first: float
    token: float
    total: float
    alone: float | None = None
    without_core: float | None = None


def watched(pids: Sequence[int], measure: Measure) -> Measure:
    """Return `measure` with the time that the threads of these processes waited for a core."""

    def reading() -> Repetition:
        with core_wait(pids) as waited:
            found = measure()
        return replace(found, without_core=waited.share)

    return reading


def readings(
    tools: Sequence[Tool], repeat: int, *, together: bool, check: Callable[[], None]
) -> dict[str, list[Repetition]]:
    """Return every side's readings after a warm-up: `together` in turns, else one tool after another."""
    found: dict[str, list[Repetition]] = {}
    for group in [list(tools)] if together else [[tool] for tool in tools]:
        with ExitStack() as stack:
            sides: dict[str, Measure] = {}
            for tool in group:
                sides |= stack.enter_context(tool())
            for number in range(WARM_UP + repeat):
                for name in list(sides) if number % 2 == 0 else reversed(list(sides)):
                    check()
                    reading = sides[name]()
                    if number >= WARM_UP:
                        found.setdefault(name, []).append(reading)
    return found


def fit_together(weights: int, copies: int, host_free: int) -> bool:
    """Return whether so many copies of the weights leave half of the free memory to all else."""
    return copies * weights < host_free // 2


TOP: Final = 5
Row = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """New tokens after one prompt, and the fp32 logits [V] of the last."""

    tokens: tuple[int, ...]
    logits: Row

    @classmethod
    def of(cls, reply: Mapping[str, Any]) -> Answer:
        """Return a baseline's answer."""
        row = np.frombuffer(base64.b64decode(reply["logits"]), dtype=np.float32)
        return cls(tokens=tuple(reply["tokens"]), logits=row)

    def likeliest(self) -> list[int]:
        """Return the most likely tokens; none where a logit is no number, which is like no other."""
        if np.isnan(self.logits).any():
            return []
        return [int(token) for token in np.argsort(-self.logits, kind="stable")[:TOP]]


def compared(ours: Sequence[Answer], reference: Sequence[Answer], *, same_device: bool) -> dict[str, Any]:
    """Return the comparison's fields, the worst of all samples: bits decide on one device, likely tokens on two."""
    pairs = list(zip(ours, reference, strict=True))
    off = [np.abs(one.logits.astype(np.float64) - other.logits.astype(np.float64)) for one, other in pairs]
    bitwise = all(equal(one, other) for one, other in pairs)
    likeliest = all(one.likeliest() == other.likeliest() != [] and one.tokens == other.tokens for one, other in pairs)
    return {
        "samples": len(pairs),
        "decided_by": "bits" if same_device else "five most likely tokens",
        "passed": bitwise if same_device else likeliest,
        "bitwise_equal": bitwise,
        "five_most_likely_equal": likeliest,
        "max_diff": max(finite(row.max()) for row in off),
        "mean_diff": max(finite(row.mean()) for row in off),
        "norm_diff": max(finite(np.linalg.norm(row)) for row in off),
    }


def equal(one: Answer, other: Answer) -> bool:
    return one.tokens == other.tokens and one.logits.tobytes() == other.logits.tobytes()


def finite(value: Any) -> float:
    """Return a number that JSON has: NaN, of weights that had not arrived, is the largest there is."""
    return float(value) if np.isfinite(value) else float(np.finfo(np.float64).max)


WIDTHS: Final = ("hidden_size", "intermediate_size", "vocab_size")
HEADS: Final = ("num_attention_heads", "num_key_value_heads", "hidden_size", "intermediate_size", "vocab_size")
EVEN: Final = 8  # a head's width is a multiple of this
LEAST_LAYERS: Final = 4  # of fewer no two slots and a layer that waits
SPARE: Final = 9 / 10  # of the disk and of main memory
OWN_DTYPE: Final = "float16"  # of a shape whose configuration has none
WeightBytes = Callable[[dict[str, Any]], int]


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnShape:
    """An architecture whose weights are drawn; None: its own layers and dtype, or as many as there is room for."""

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
    """A model to stream, by the `source` that every side loads; the host may not have room for all its layers."""

    name: str
    source: str
    share_of_layers: float = 1.0


@contextmanager
def subject(course: Course, shape: DrawnShape, hand: Baseline) -> Iterator[Subject]:
    """Yield a shape with random weights in a folder that is deleted. UsageError: unknown, or it does not fit."""
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
    """Return the config.json of an architecture. UsageError where it is not available."""
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


RESIDENT, BY_LAYER, COMPUTING = "resident", "synchronous_offload", "computing_alone"
COPYING, BOTH = "copying_alone", "both_at_once"
OFFLOADS: Final = {
    "accelerate_cpu_offload": ("offloads", "cpu"),
    "accelerate_disk_offload": ("offloads", "disk"),
    "deepspeed_zero_inference": ("offloads.ZeroInference", "cpu"),
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
        with baseline("eager.ByHand") if self.running is None else nullcontext(self.running) as hand:
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
        """Return the parts of streaming as sides; where the model does not fit, the slot's weights compute."""
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
    """Another tool's offload with the ring's bytes on the device. `reason` is why it did not run."""

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
    """Return the model in the form of requests to baselines."""
    return {"model": subject.source, "dtype": file.dtype, "threads": 1, **course.setup.words()}


def reading(made: Mapping[str, Any], new: int) -> Repetition:
    """Return the times of a baseline's generation."""
    total, decoding = 1000 * made["seconds"], 1000 * made["decoding"]
    alone = 1000 * made["alone"] if "alone" in made else None
    return Repetition(first=total - decoding, token=decoding / (new - 1), total=total, alone=alone)
