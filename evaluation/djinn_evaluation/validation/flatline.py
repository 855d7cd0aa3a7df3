"""The flatline of the link: the bytes of each window of wall time, while passes run one after the other, against a bar;
and the same model streamed by other tools. Windows are the only figure that sees a link which idles between two fast
copies."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np

from djinn_evaluation.baselines.asking import Baseline, BaselineFailed, baseline
from djinn_evaluation.configuration.sections import PcieFlatline, ValidationFile
from djinn_evaluation.course import Course, Unmeasured, now, timed
from djinn_evaluation.intervals import CONFIDENCE, MedianInterval, ratios
from djinn_evaluation.link import FASTER, HAND_WAITED, at_most_by_hand
from djinn_evaluation.machine import cores_first, seconds_without_core
from djinn_evaluation.memory import Curve, sampled
from djinn_evaluation.nvml import LinkCounter, counted
from djinn_evaluation.serving import SIDES_APART, engine_for, pids_of, reaches_over_a_line, sentence
from djinn_evaluation.streaming.sides import DrawnShape, subject
from djinn_evaluation.validation.opening import PAGES_SHARE, arrived, card_for, imposed, options_of, within
from djinn_jupyter.api.engine import RemoteEngine
from djinn_jupyter.api.session import RemoteSession
from djinn_jupyter.errors import UsageError
from djinn_jupyter.units import GIB, MIB, spell_bytes
from djinn_jupyter.wire.nouns import LayerCopy

WINDOW_SECONDS = 0.05  # of a window


@dataclass(frozen=True, slots=True, kw_only=True)
class MovedBytes:
    """One copy: `begun` in seconds since the epoch."""

    begun: float
    seconds: float
    nbytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeSpan:
    """A time in which passes ran, in seconds since the epoch."""

    begun: float
    ended: float

    @property
    def seconds(self) -> float:
        return self.ended - self.begun


def window_rates(
    copies: Iterable[MovedBytes], spans: Sequence[TimeSpan], seconds: float = WINDOW_SECONDS
) -> list[float]:
    """Return the bytes a second of each whole window of the spans, laid end to end, by copies one after the other."""
    edges = np.cumsum([0.0, *(span.seconds for span in spans)])
    moved = _moved_by(copies, spans, edges)
    count = int(edges[-1] / seconds + 1e-9)
    at = np.interp(np.arange(count + 1) * seconds, *moved)
    return [float(rate) for rate in np.diff(at) / seconds]


def sustained(rates: Sequence[float], ratio: float) -> float:
    """Return the rate that the share `ratio` of them reached."""
    count = max(1, math.ceil(ratio * len(rates) - 1e-9))
    return sorted(rates, reverse=True)[count - 1]


def _moved_by(
    copies: Iterable[MovedBytes], spans: Sequence[TimeSpan], edges: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return moments of the spans' own time, and the bytes that had moved in it by then."""
    times, totals = _whole(copies)
    moments, sums, before = [0.0], [0.0], 0.0
    for span, edge in zip(spans, edges, strict=False):
        inside = times[(times > span.begun) & (times < span.ended)]
        points = np.concatenate(([span.begun], inside, [span.ended]))
        moved = np.interp(points, times, totals)
        moments += list(edge + points - span.begun)
        sums += list(before + moved - moved[0])
        before = sums[-1]
    return np.array(moments), np.array(sums)


def _whole(copies: Iterable[MovedBytes]) -> tuple[np.ndarray, np.ndarray]:
    """Return the moments at which copies began and ended, and the bytes that had moved by then."""
    times, totals = [0.0], [0.0]
    for copy in sorted(copies, key=lambda copy: copy.begun):
        begun = max(times[-1], copy.begun)  # clocks may let two that follow each other overlap by a hair
        times += [begun, max(begun, copy.begun + copy.seconds)]
        totals += [totals[-1], totals[-1] + copy.nbytes]
    return np.array(times), np.array(totals)


PROMPT, NEW = 8, 16
ROUNDS_OF_OTHERS = 3


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
    with baseline("eager.ByHand") as offload:
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
    """Return each side's tokens a second and whether its tokens are ours; `allowed` is for weights and pages."""
    sides = {
        "djinn": _fields(ours, tokens, tokens),
        "manual_pinned_offload": _fields(hand.rates, hand.tokens, tokens),
    }
    budget = allowed - allowed // PAGES_SHARE
    loading = {"model": wanted.model_id, "dtype": wanted.dtype, "threads": 1, **course.setup.words()}
    for to in ("cpu", "disk"):
        asked = {**loading, "budget": budget, "to": to}
        sides[f"accelerate_{to}_offload"] = _asked(course, "offloads", asked, tokens)
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
            made = [side.ask("generate", tokens=prompt, new=NEW) for _ in range(ROUNDS_OF_OTHERS)]
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


OF_BOTH = 0.9  # of what plain PyTorch attains with both at once, as in `streaming`: least_of_both
HALF = 0.5  # between turns, in which nothing overlaps, and manual offload, which overlaps as the machine lets it
CARRIED = (0.5, 1.5)  # of the counted bytes, by the driver's counter, which samples; a copy made twice is 2
TURNS = "Copying and computing took turns: the next layer did not come while one was computed."
TOO_FEW = "Too few windows of wall time reached the required bandwidth."


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """The bandwidths that the windows are held against, in MiB a second."""

    required: float  # for a share of the windows
    fastest: float  # of all manual copies in the same run, also those while nothing was computed
    plain: tuple[float, ...]  # windows of manual offload, with copying and computing at once
    rounds: tuple[float, ...]  # the level reached by a share of the windows of each of its rounds
    together: float  # its overlap
    without_core: float | None  # the share of its time for which its threads had no core
    measured_here: bool


@dataclass(slots=True, kw_only=True)
class Flow:
    """The samples."""

    streamed: int  # bytes that each pass has to move
    curve: Curve  # of the memory
    copies: list[LayerCopy] = field(default_factory=list)
    spans: list[TimeSpan] = field(default_factory=list)  # of the runs
    passes: int = 0
    elapsed: float = 0.0  # seconds, with the time between runs
    computing: float = 0.0  # seconds of passes in which no copy was waited for
    runs: list[tuple[int, ...]] = field(default_factory=list)  # the new tokens of each run of the one prompt
    rates: list[float] = field(default_factory=list)  # tokens a second of each run
    without_core: float | None = 0.0  # seconds for which the engine's threads had no core
    cores_first: bool = False  # both sides had the cores before other programs

    @property
    def seconds(self) -> float:
        return sum(span.seconds for span in self.spans)

    @property
    def moved(self) -> int:
        return sum(copy.bytes_moved for copy in self.copies)

    def together(self, *, waits: bool) -> float:
        """Return the share of the time in which copying and computing could overlap and did; 0 where they take turns.
        With `waits` all of a copy counts that computing did not wait for: one by another thread may be over before the
        next layer has begun."""
        possible = min(sum(copy.seconds for copy in self.copies), self.computing)
        beside = sum(_beside_computing(copy, waits=waits) for copy in self.copies)
        return beside / possible if possible > 0 else 0.0


def _beside_computing(copy: LayerCopy, *, waits: bool) -> float:
    """Return the seconds of a copy beside computing, none of which was waited for."""
    if copy.stalled_seconds is None:
        return copy.overlapped_seconds
    not_waited_for = max(0.0, copy.seconds - copy.stalled_seconds)
    return not_waited_for if waits else min(copy.overlapped_seconds, not_waited_for)


def bar_of(wanted: PcieFlatline, hand: HandStreamed, *, gpu: bool) -> Bar:
    """Return the configured bar on a GPU; elsewhere what plain PyTorch attains, copying and computing on one bus."""
    plain = [rate / MIB for rate in window_rates(hand.copies, hand.spans)]
    here = OF_BOTH * sustained(plain, wanted.sustained_ratio) if plain else 0.0
    required = wanted.min_sustained_bandwidth_mb_per_s if gpu else here
    return Bar(
        required=required,
        fastest=hand.fastest() / MIB,
        plain=tuple(plain),
        rounds=tuple(sustained_in(hand.copies, hand.spans, wanted.sustained_ratio)),
        together=hand.together,
        without_core=_share(hand.without_core, hand.seconds),
        measured_here=not gpu,
    )


def sustained_in(copies: Sequence[MovedBytes], spans: Sequence[TimeSpan], ratio: float) -> list[float]:
    """Return the MiB a second that the share `ratio` of the windows of each span reached; 0 for one without windows."""
    return [sustained(rates, ratio) / MIB if (rates := window_rates(copies, [span])) else 0.0 for span in spans]


def _share(part: float | None, seconds: float) -> float | None:
    return None if part is None else part / seconds if seconds else 0.0


def rates_of(copies: Iterable[LayerCopy], spans: Sequence[TimeSpan]) -> list[float]:
    """Return MiB a second of each window."""
    return [rate / MIB for rate in window_rates(moved_by(copies), spans)]


def moved_by(copies: Iterable[LayerCopy]) -> list[MovedBytes]:
    return [MovedBytes(begun=copy.begun, seconds=copy.seconds, nbytes=copy.bytes_moved) for copy in copies]


def judge(
    wanted: PcieFlatline, bar: Bar, flow: Flow, *, limit_gb: float | None, carried: float | None = None
) -> dict[str, Any]:
    """Return the verdict, and the figures. `carried`: the bytes that the driver counted on the link."""
    rates = rates_of(flow.copies, flow.spans)
    copying = sum(copy.seconds for copy in flow.copies)
    above = sum(rate >= bar.required for rate in rates) / len(rates) if rates else 0.0
    peak = max(flow.curve.gigabytes(), default=None)
    mean = flow.moved / copying / MIB if copying else 0.0
    over = None if carried is None or not flow.moved else carried / flow.moved
    together = flow.together(waits=bar.measured_here)
    made = at_most_by_hand(mean, bar.fastest, without_core=bar.without_core)
    by_share = "holds" if above >= wanted.sustained_ratio else "refuted"  # of all windows, against a configured bar
    windows_of = _beside_plain(wanted, bar, flow) if bar.measured_here else {"verdict": by_share}
    failures = {
        "No layer was copied: nothing streams.": bool(flow.copies),
        TOO_FEW: windows_of["verdict"] != "refuted",
        "Passes were sampled for less than sample_duration_seconds.": flow.seconds >= wanted.sample_duration_seconds,
        TURNS: together > HALF * bar.together,
        "The passes moved other bytes than those that stream.": flow.moved == flow.passes * flow.streamed,
        "The link carried other bytes than the engine counted.": over is None or CARRIED[0] <= over <= CARRIED[1],
        "Runs of one prompt made different tokens: a layer was not copied.": len(set(flow.runs)) == 1,
        FASTER: made != "refuted",
        "The device held more than its limit.": peak is None or limit_gb is None or peak <= limit_gb,
    }
    undecided = [windows_of["reason"]] if windows_of["verdict"] == "undecided" else []
    undecided += [HAND_WAITED] if made == "undecided" else []
    said = [sentence for sentence, held in failures.items() if not held]
    return {
        "passed": Unmeasured(reason=undecided[0]) if undecided and not said else not said,
        "failures": said,
        "undecided": undecided,
        "bandwidth_mbps": statistics.median(rates) if rates else None,
        "required_mbps": bar.required,
        "required_is": f"{OF_BOTH} of what manual offload of the same layers sustained with copying and computing at "
        "once, in turns with ours in this run, on a machine without a GPU"
        if bar.measured_here
        else "pcie_flatline.min_sustained_bandwidth_mb_per_s",
        "fastest_by_hand_mbps": bar.fastest,
        "metrics": {
            "iterations": flow.passes,
            "elapsed_seconds": flow.seconds,
            "estimated_bytes_loaded": flow.moved,
            "estimated_mbps": flow.moved / flow.seconds / MIB if flow.seconds else 0.0,
            "gpu_mem_peak": Unmeasured(reason="nothing was sampled") if peak is None else peak,
        },
        "window_seconds": WINDOW_SECONDS,
        "samples_mbps": rates,
        "samples_by_hand_mbps": list(bar.plain),
        "samples_above_ratio": above,
        "windows": windows_of,
        "bytes_that_stream": flow.streamed,
        "overlap_ratio": together,
        "overlap_by_hand": bar.together,
        "carried_over_counted": Unmeasured(reason="no counter of the link") if over is None else over,
        "copy_mean_mbps": mean,
        "stalled_seconds": sum(copy.stalled_seconds or 0.0 for copy in flow.copies),
        "copies": [
            [c.layer, c.bytes_moved, c.seconds, c.begun, c.stalled_seconds, c.overlapped_seconds] for c in flow.copies
        ],
    }


def _beside_plain(wanted: PcieFlatline, bar: Bar, flow: Flow) -> dict[str, Any]:
    """Return the verdict on a bar that was measured here: what a share of the windows reached, over what the same share
    of manual offload's did, round by round. It may not be one that waiting for a core alone could have turned: had
    manual offload never waited it would be held against the lower end of the interval, had ours not, against the
    higher."""
    ours = sustained_in(moved_by(flow.copies), flow.spans, wanted.sustained_ratio)
    pairs, short = list(zip(ours, bar.rounds, strict=False)), any(span.seconds < WINDOW_SECONDS for span in flow.spans)
    if not pairs or short or any(plain == 0.0 for _, plain in pairs):
        reason = f"Rounds of passes are shorter than a window of {WINDOW_SECONDS} s; stream a larger model."
        return {"verdict": "undecided", "reason": reason}
    found = MedianInterval.of(ratios(*zip(*pairs, strict=True)))
    waited = {"djinn": _share(flow.without_core, flow.seconds), "manual_offload": bar.without_core}
    ours_ran, plain_ran = (max(0.0, 1 - (share or 0.0)) for share in waited.values())  # shares of the time, at least
    holds, refuted = found.low * plain_ran >= OF_BOTH, found.high < OF_BOTH * ours_ran
    fields = {**found.fields(), "bar": OF_BOTH, "without_core": waited, "cores_first": flow.cores_first}
    if found.confidence < CONFIDENCE:
        return {**fields, "verdict": "undecided", "reason": f"{found.count} rounds are too few for an interval."}
    if holds or refuted:
        return {**fields, "verdict": "holds" if holds else "refuted"}
    return {**fields, "verdict": "undecided", "reason": _open(found, waited)}


def _open(found: MedianInterval, waited: Mapping[str, float | None]) -> str:
    spelled = f"{found.median:.2f} of manual offload's bandwidth ({found.low:.2f} to {found.high:.2f}), bar {OF_BOTH}"
    lost = " and ".join(f"{100 * share:.0f} %" for share in waited.values() if share is not None)
    loaded = f"; threads of ours and of manual offload were without a core for {lost} of the time" if lost else ""
    return f"Windows of wall time cannot be judged here: {spelled}{loaded}."


FILE = "pcie_flatline_results.json"
FIELDS = """passed bandwidth_mbps required_mbps metrics gpu_info samples_mbps samples_above_ratio timestamp""".split()
ROUNDS = 15  # at least, of each side in turns: the interval of so many leaves out the three slowest and fastest
ROUNDS_ALONE = 3  # at least, of manual offload where it sets no bar


def run(course: Course, file: ValidationFile, wanted: PcieFlatline) -> dict[str, Any]:
    """Run the test; return the result's fields: over a line none, for windows are of one clock and one machine."""
    if reaches_over_a_line(course):
        course.tell(f"flatline: {SIDES_APART.reason}")
        unseen = {
            **dict.fromkeys(FIELDS, SIDES_APART),
            "failures": [],
            "undecided": [sentence(SIDES_APART)],
            "timestamp": now(),
        }
        return {"test": "pcie_flatline", "model": course.setup.named(wanted.model_id), **unseen}
    with _model(course, wanted) as (name, drawn):
        return {"test": "pcie_flatline", "model": name, **_measured(course, file, drawn, name)}


@contextmanager
def _model(course: Course, wanted: PcieFlatline) -> Iterator[tuple[str, PcieFlatline]]:
    """Yield the model's name, and the test on it; drawn weights lie in a folder that is deleted afterwards."""
    drawn = wanted.random_weights
    if drawn is None:
        yield course.setup.named(wanted.model_id), wanted
        return
    shape = DrawnShape(
        architecture=wanted.model_id, divide_widths=drawn.divide_widths, layers=drawn.layers, dtype=wanted.dtype
    )
    with baseline("eager.ByHand") as hand, subject(course, shape, hand) as found:
        yield found.name, msgspec.structs.replace(wanted, model_id=found.source)


def _measured(course: Course, file: ValidationFile, wanted: PcieFlatline, name: str) -> dict[str, Any]:
    assert file.ring_gb is not None
    with ExitStack() as manual:
        hand = manual.enter_context(by_hand(course, wanted))
        gpu = hand.device.startswith("cuda")
        card = card_for(file.ring_gb, imposed(file, file.limit_gb), hand.weights)
        if gpu:  # the bar is the configured one, and the card is free for the engine afterwards
            _stream_by_hand(course, hand, wanted.sample_duration_seconds / 2)
            manual.close()
        options = {"dtype": wanted.dtype, **card.options(), **options_of(course, file)}
        with engine_for(course, wanted.model_id, **options) as engine:
            description, reading = engine.description, engine.statistics()
            with counted(description.device) as counter:
                flow = _flow(course, engine, wanted, file.server.timeout_seconds, None if gpu else hand, name)
    sides = beside(course, wanted, card.allowed, hand, flow.rates, flow.runs[-1]) if wanted.baselines else None
    bar = bar_of(wanted, hand, gpu=gpu)
    carried = None if counter.mean is None else counter.mean * flow.elapsed
    fields = judge(wanted, bar, flow, limit_gb=file.limit_gb, carried=carried)
    course.tell(_sentence(fields, bar))
    windows = fields["windows"]
    course.tell(f"flatline: windows {windows['verdict']}. {windows.get('reason', '')}".rstrip())
    return {
        **fields,
        "capacity_gb": card.allowed / GIB,
        "capacity_imposed": True,
        "ring_shrunk_to_stream": card.shrunk,
        "gpu_info": _gpu(description.device, reading.device_bytes_total, counter, fields),
        "streaming_baselines": sides or Unmeasured(reason="pcie_flatline.baselines is false"),
        "timestamp": now(),
    }


def _sentence(fields: dict[str, Any], bar: Bar) -> str:
    reached = spell_bytes((fields["bandwidth_mbps"] or 0.0) * MIB)
    return (
        f"flatline: {reached}/s, required {spell_bytes(bar.required * MIB)}/s, "
        f"{100 * fields['samples_above_ratio']:.1f} % of {len(fields['samples_mbps'])} windows above"
    )


def _stream_by_hand(course: Course, hand: HandStreamed, seconds: float) -> None:
    hand.stream(None)
    begun = time.monotonic()
    while time.monotonic() - begun < seconds or len(hand.spans) < ROUNDS_ALONE:
        course.check_time()
        hand.round()


def _flow(
    course: Course, engine: RemoteEngine, wanted: PcieFlatline, timeout: float, hand: HandStreamed | None, name: str
) -> Flow:
    """Run the prompt again and again, in turns with `hand`, so that the machine's other work slows both."""
    weights = engine.wake().weights
    if weights.residency != "streamed":
        raise UsageError("The whole model stays on the device, so no layer is copied; make the ring smaller.")
    session = engine.session("flatline", fresh=True)
    session.run(list(range(1, PROMPT + 1)), max_new_tokens=2, ignore_eos=True)  # the ring learns the order
    there = arrived(engine, 0, timeout)
    last = max((copy.number for copy in there), default=0)
    if hand is not None:
        hand.stream(sorted({copy.layer for copy in there}))
    least = 1 if hand is None else ROUNDS
    begun, before = time.monotonic(), engine.wake().weights
    sides = [*pids_of(engine), *([] if hand is None else [hand.pid])]
    with cores_first(sides, asked=wanted.cores_first) as first, sampled(engine) as curve:
        flow = Flow(streamed=weights.bytes_streamed_per_pass, curve=curve, cores_first=first)
        while flow.seconds < wanted.sample_duration_seconds or len(flow.spans) < least:
            course.check_time()
            last = _run(engine, session, flow, last, timeout)
            if hand is not None:
                hand.round()
            named = {"test": "pcie_flatline", "model": name}
            course.write_partial(FILE, FIELDS, {**named, "samples_mbps": rates_of(flow.copies, flow.spans)})
            course.tell_more(f"pass {flow.passes}: {len(flow.copies)} copies")
        flow.copies += arrived(engine, last, timeout)
    after = engine.wake().weights
    flow.elapsed = time.monotonic() - begun
    flow.computing = after.pass_seconds - before.pass_seconds - (after.waited_seconds - before.waited_seconds)
    return flow


def _run(engine: RemoteEngine, session: RemoteSession, flow: Flow, last: int, timeout: float) -> int:
    """Run the prompt once; return the number of its last copy."""
    waited, prompt, begun = _without_core(engine), list(range(1, PROMPT + 1)), time.time()
    done, milliseconds = timed(
        lambda: within(timeout, lambda: session.run(prompt, max_new_tokens=NEW, ignore_eos=True))
    )
    flow.spans.append(TimeSpan(begun=begun, ended=begun + milliseconds / 1000))
    flow.without_core = added(flow.without_core, waited, _without_core(engine))
    flow.passes += done.passes
    flow.runs.append(tuple(done.tokens))
    flow.rates.append(1000 * NEW / milliseconds)
    copies: Sequence[LayerCopy] = engine.copies(last)
    flow.copies += copies
    return copies[-1].number if copies else last


def _without_core(engine: RemoteEngine) -> float | None:
    return None if engine.entry is None else seconds_without_core([engine.entry.pid])


def _gpu(device: str, total: int | None, counter: LinkCounter, fields: dict[str, Any]) -> dict[str, Any]:
    absent = Unmeasured(reason=counter.reason)
    return {
        "device": device,
        "memory_gb": Unmeasured(reason="no GPU") if total is None else total / GIB,
        "nvml_pcie_received_mbps": absent if counter.mean is None else counter.mean / MIB,
        "nvml_over_counted": absent if counter.mean is None else fields["carried_over_counted"],
    }
