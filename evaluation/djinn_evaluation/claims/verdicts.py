"""The verdict of each claim, on the values of the fields that it reads. Knows no file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from djinn_evaluation.claims.judging import (
    FEW,
    INSIDE,
    UNREAD,
    WAITED,
    Judgement,
    arithmetic,
    at_least,
    at_most,
    every,
    read_interval,
    together,
)
from djinn_evaluation.intervals import LEAST_REPETITIONS
from djinn_jupyter.units import GIB, spell_bytes

V = Mapping[str, Any]
RUNS: Final = 2  # with the same edit at the same stop
ALONE: Final = 0.95  # of a neighbour's speed without the copies: with less the copies block it
SAME_TIME: Final = 1.05  # of a restore without an edit: more is no longer "costs nothing"
ROUNDED: Final = 0.05  # milliseconds, which print as 0.0 up to here
NOTHING: Final = 0.05  # of the memory before: less is "about 0 GB"
NEAR: Final = 0.1  # of a figure of the original
PREALLOCATED: Final = 0.9  # 72 of 80 GB
PLATEAU: Final = 77 / 80  # of the capacity
FLATLINE: Final = 20_000, 0.8, 10  # MB/s; the share of samples above; seconds
GIGABYTE: Final = 1e9
NOT_COMPARED: Final = "agents that hint were not compared with lru: one of the two refused an agent, or did not run"
SIZE, OUT_SECONDS, IN_SECONDS = 1.3 * GIGABYTE, 0.080, 0.050  # of the original's swap


def on_a_gpu(v: V) -> bool:
    """True where the readings of each run were taken on a GPU."""
    devices = v["device"]
    return all(one.startswith("cuda") for one in ([devices] if isinstance(devices, str) else devices))


def run_by_run(v: V) -> Iterator[dict[str, Any]]:
    """Yield the values of each run, where every field has one of each."""
    return (dict(zip(v, values, strict=True)) for values in zip(*v.values(), strict=True))


def accuracy(v: V) -> Judgement:
    equal = every(v["equal"], "a resumed run is not bitwise equal to one that never stopped")
    tokens = every([share == 100 for share in v["accuracy"]], "a token differs")
    return together(equal, tokens).told_as(sum(v["accuracy"]) / len(v["accuracy"]))


def large_models(v: V) -> bool:
    return "llama-2-13b" in v["model"].lower() and "mistral-7b" in v["other_model"].lower()


def large_accuracy(v: V) -> Judgement:
    return together(accuracy(v), accuracy({name: v[f"other_{name}"] for name in ("equal", "accuracy")}))


def capture(v: V) -> Judgement:
    hooked = every(v["equal"], "a hidden state is not the one that a plain hook sees")
    shapes = every([len(shape) == 3 and shape[0] == 1 for shape in v["shapes"]], "a shape is not [1, T, D]")
    return together(hooked, shapes).told_as(v["shapes"][0])


def steering(v: V) -> Judgement:
    twice = every([v["repeats"]] * RUNS, "the same edit at the same stop gave two results")
    some = every([v["percent"] > 0 and v["changed"]] * RUNS, "the edit changed no token")
    return together(twice, some).told_as(v["percent"])


def steering_cost(v: V) -> Judgement:
    ratios = [steered / plain for plain, steered in v["pairs"]]
    return at_most(ratios, SAME_TIME, "the times with an edit over those without")


def dispatch(v: V) -> Judgement:
    """Judge the wait of a request beyond its own time, which an idle engine takes too."""
    longer = [leaving - still for leaving, still in zip(v["leaving"], v["still"], strict=False)]
    return at_most(longer, ROUNDED, "the milliseconds that another request waits longer")


def background_copy(v: V) -> Judgement:
    rates = zip(v["stopped"], v["copied"], strict=False)  # turn by turn; a run may be broken off in the midst of one
    ratios = [copied / stopped for stopped, copied in rates]
    quick = at_most(v["copies"], 10.0, "the milliseconds of a copy")
    return together(quick, at_least(ratios, ALONE, "a neighbour's speed with the copies over that without"))


def restore(v: V) -> Judgement:
    return at_most(v["times"], 5.0, "the milliseconds until the pass goes on")


def overhead(v: V) -> Judgement:
    """Judge the overhead of a stop; waiting for a core, which other programs cause, refutes nothing."""
    percents = [100 * (stopped - plain) / plain for plain, stopped in v["pairs"]]
    found = at_most(percents, 1.0, "the additional time with a stop, in percent,")
    low = found.interval.low if found.interval is not None else 0.0
    least = (100 + low) * (1 - v["waited"]) - 100  # where all waiting for a core was that of the stops
    if found.verdict == "refuted" and least <= 1.0:
        return replace(found, verdict="undecided", reason=WAITED)
    return found


def wire(v: V) -> Judgement:
    return every([count == 0 for count in v["bytes"]], "bytes of keys and values crossed").told_as(sum(v["bytes"]))


def upload(v: V) -> Judgement:
    times = [1000 * GIGABYTE / (rate * GIB) for rate in v["rates"]]
    named = "the milliseconds of 1 GB"
    return together(at_most(times, 62.5 * (1 + NEAR), named), at_least(times, 62.5 * (1 - NEAR), named))


def other_request(v: V) -> Judgement:
    ended = every(v["ended"], "request B did not end while A was stopped")
    return together(ended, every(v["equal"], "request B is not what it is alone"))


def eager_holds(v: V) -> Judgement:
    all_of_it = [held >= 0.99 * stopped for held, stopped in zip(v["held"], v["stopped"], strict=True)]
    constant = [moved <= 0.01 * held for held, moved in zip(v["held"], v["moved"], strict=True)]
    found = together(every(all_of_it, "eager let memory go"), every(constant, "what eager holds is not constant"))
    return found.told_as(max(v["held"]))


def djinn_drops(v: V) -> Judgement:
    pairs = list(zip(v["asleep"], v["before"], strict=True))
    found = every([asleep <= NOTHING * before for asleep, before in pairs], "memory stays on the device")
    return together(found, every(v["released"], "stopped sessions stayed")).told_as(max(v["asleep"]))


def demand(v: V) -> Judgement:
    """Weights and fifty sessions of 2,048 tokens in 16 bits, from the shape of Llama-2-13B."""
    width, layers = v["width"], v["layers"]
    in_layers = layers * (4 * width * width + 3 * width * v["inner"] + 2 * width)
    parameters = in_layers + 2 * v["vocabulary"] * width + width
    total = (2 * parameters + 50 * 2048 * 2 * layers * width * 2) / GIB
    return arithmetic(abs(total - 92) <= 0.05 * 92, total, f"it is {spell_bytes(int(total * GIB))} and not 92")


def all_alive(v: V) -> Judgement:
    """Judge the runs, each of all its sessions. Missing outputs refute nothing: a run that was cut short has none."""
    runs = list(run_by_run(v))
    firsts, fits = [first_evicted(run) for run in runs], [fit_on_the_card(run) for run in runs]
    alive = [run["asked"] <= min(run["spawned"], run["alive"]) for run in runs]
    due = [(1 - NEAR) * (fit + 1) <= first <= fit + 1 for first, fit in zip(firsts, fits, strict=True)]
    found = together(
        every(alive, "not all were alive together"),
        every(due, f"{fits[0]} fit, and the first eviction came with session {min(firsts)}"),
        every([cycled(run) for run in runs], "a session that left did not come back"),
        every(v["equal"], "an output differs from that of the session alone"),
    )
    return found.told_as(min(firsts))


def fit_on_the_card(run: V) -> int:
    """Return the number of sessions that fit beside the weights."""
    weights = run["demand"] - run["asked"] * run["session"]
    return int((run["capacity"] - weights) / run["session"])


def first_evicted(run: V) -> int:
    """Return the number of the session with which the first eviction came; 0 without one."""
    moments = [event["timestamp"] for event in run["events"] if event["direction"] == "out"]
    if not moments:
        return 0
    return 1 + sum(bool(spawned["timestamp"] < min(moments)) for spawned in run["progression"])


def cycled(run: V) -> bool:
    """True where sessions left without a request, and each of them came back."""
    untold = [event for event in run["events"] if event.get("cause") != "asked"]
    out, back = ({e["session"] for e in untold if e["direction"] == way} for way in ("out", "in"))
    return bool(out) and out <= back


def counted_by_a_driver(v: V) -> bool:
    """True where each run has samples of the device's driver."""
    return all(v["samples"])


def plateau(v: V) -> Judgement:
    """Judge the runs, each by all samples of its memory; too few of them refute nothing."""
    runs = list(run_by_run(v))
    peaks = [max(sample[1] for sample in run["samples"]) / run["capacity"] for run in runs]
    seen = every([run["hertz"] >= 10 for run in runs], "memory was sampled at less than 10 Hz")
    found = together(
        every([peak <= 1 for peak in peaks], "memory was above the capacity"),
        every([peak >= PLATEAU for peak in peaks], f"memory stayed at {100 * min(peaks):.0f} % of the capacity"),
        every([run["plateau"] for run in runs], "no plateau"),
        replace(seen, verdict="undecided") if seen.verdict == "refuted" else seen,
    )
    return found.told_as(100 * max(peaks))


def swap_speed(v: V) -> Judgement:
    copied = [event for event in v["events"] if event["gb_per_s"] is not None]
    out, back = ([e["gb_per_s"] * GIB for e in copied if e["direction"] == way] for way in ("out", "in"))
    leaving = at_least(out, SIZE / OUT_SECONDS, "the rates of swaps out, in bytes/s,")
    return together(leaving, at_least(back, SIZE / IN_SECONDS, "the rates of restores, in bytes/s,"))


def refusal(v: V) -> Judgement:
    refused = [
        status == "error" and demand <= capacity
        for status, demand, capacity in zip(v["status"], v["demand"], v["capacity"], strict=True)
    ]
    return every(refused, "a run whose sessions all fit was not refused")


def ring_logits(v: V) -> Judgement:
    """Judge the runs, each by the worst of its samples."""
    held = [run["bitwise"] if run["same_device"] else run["norm"] < 0.1 or run["likeliest"] for run in run_by_run(v)]
    return every(held, "logits through the ring are others than plain ones").told_as(max(v["norm"]))


def flatline(v: V) -> Judgement:
    """Judge the runs, each by the share of its samples."""
    rate, least, seconds = FLATLINE
    runs = list(run_by_run(v))
    if not all(run["rates"] for run in runs):
        return replace(UNREAD, reason="there is no window")
    shares = [sum(one >= rate for one in run["rates"]) / len(run["rates"]) for run in runs]
    found = together(
        every([share > least for share in shares], f"{100 * min(shares):.0f} % of the samples were above"),
        every([run["seconds"] >= seconds for run in runs], f"it was sampled for less than {seconds} s"),
        every([not run["failures"] for run in runs], "a run failed, so that its copies prove nothing"),
    )
    return found.told_as(100 * min(shares))


def pinned(v: V) -> Judgement:
    return at_least([rate * GIB / GIGABYTE for rate in v["rates"]], 22.0, "the rates in GB/s")


def sleeper(v: V) -> Judgement:
    moved = [out > 0 and back > 0 for out, back in zip(v["out"], v["back"], strict=True)]
    return together(
        every(v["equal"], "the text differs from the one without sleep"), every(moved, "it did not leave or come back")
    )


def streaming(v: V) -> Judgement:
    """Judge all models, with the value of the slowest; each repetition has a speed and an answer."""
    models = sorted(v["tokens"], key=lambda found: float(found["low"]))
    fast = together(*(read_interval(one, v["bar"], "a model's speed over that of both at once") for one in models))
    return together(fast, every(v["logits"], "logits of a streamed model are others"))


def agents(v: V) -> Judgement:
    """Judge the ways that keep their agents' states; what an agent that is computed again has is not bit for bit."""
    kept = [agent for agent in v["agents"] if agent["way"] not in ("never", "recompute")]
    count = len({agent["repetition"] for agent in kept})
    ratios = [found["first_token"]["p99"] for found in v["comparisons"] if found["way"] == "hinted"]
    texts = every([agent["bits_equal_alone"] for agent in kept], "an agent's text is not that of the agent alone")
    if not ratios:
        return together(texts, Judgement(verdict="undecided", value=None, repetitions=count, reason=NOT_COMPARED))
    return together(*(of_ratio(one, count) for one in ratios), texts)


def of_ratio(found: Mapping[str, Any], count: int) -> Judgement:
    """Return the verdict that a ratio of two ways is below one, as its file has it."""
    if count < LEAST_REPETITIONS:
        return Judgement(verdict="undecided", value=found["value"], repetitions=count, reason=FEW)
    reason = {"holds": "", "refuted": "agents that hint wait longer", "undecided": INSIDE}[found["lower"]]
    return Judgement(verdict=found["lower"], value=found["value"], repetitions=count, reason=reason)


def slow_line(v: V) -> Judgement:
    """Judge whether a stop takes less than a second over a line as a phone has it."""
    return at_most(v["seconds"], 1.0, "the seconds of a stop")


def both_cards(v: V) -> Judgement:
    """Judge one machine, which refutes the claim and does not settle it."""
    found = every(v["equal"], "a resumed run is not bitwise equal to one that never stopped")
    return replace(found, verdict="undecided", reason="one machine is not both") if found.verdict == "holds" else found


def preallocated(v: V) -> Judgement:
    shares = [slab / limit for slab, limit in zip(v["slab"], v["limit"], strict=True)]
    return every(
        [share >= PREALLOCATED for share in shares], "the slab grows on demand and nothing is taken beforehand"
    ).told_as(100 * max(shares))


def vllm(v: V) -> Judgement:
    return every([not stops for stops in v["stops"]], "vLLM stopped inside a pass")


def vllm_ran(v: V) -> bool:
    return all(v["initialized"])
