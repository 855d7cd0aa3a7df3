"""Circuits: their runs, their faithfulness over pairs and its interval, and curves of several sizes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Final

import msgspec
import numpy as np

from djinn_jupyter.api import interrupts, likeness, result, tables
from djinn_jupyter.api.arguments import checked_seed, shown, typed
from djinn_jupyter.api.engine import RemoteEngine
from djinn_jupyter.errors import UsageError
from djinn_jupyter.link.waiting import far
from djinn_jupyter.methods.circuits.api.edges import EdgeResult, Edges, name_of
from djinn_jupyter.methods.circuits.request import CircuitsRun, EdgeRecipe, RunCircuits
from djinn_jupyter.methods.sweep.api.grid import FEWEST, NO_INTERVAL
from djinn_jupyter.wire.nouns import StopIdentity

Row = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A percentile bootstrap over pairs (Efron and Tibshirani 1993), drawn by a seed."""

    confidence: float
    resamples: int
    seed: int

    def __post_init__(self) -> None:
        if not 0 < self.confidence < 1 or self.resamples < 100:
            raise UsageError("An interval has a confidence between 0 and 1, such as 0.95, and at least 100 resamples.")


def faithfulness_of(
    values: Row, corrupted: Row, clean: Row, interval: Interval
) -> tuple[float, tuple[float, float] | None]:
    """Return the mean of `values` as a share of the distance between the mean metrics of the prompts, and its bounds
    for at least `FEWEST` pairs. A resample whose prompts have equal mean metrics has no share, and is left out; NaN
    where all are."""
    made, way = (values - corrupted).mean(), (clean - corrupted).mean()
    share = float(made / way) if way else float("nan")
    if len(values) < FEWEST:
        return share, None
    drawn = np.random.default_rng(interval.seed).integers(0, len(values), (interval.resamples, len(values)))
    ways = (clean - corrupted)[drawn].mean(axis=1)
    shares = (values - corrupted)[drawn].mean(axis=1)[ways != 0] / ways[ways != 0]
    if not len(shares):
        return share, (float("nan"), float("nan"))
    outside = (1 - interval.confidence) / 2
    low, high = np.quantile(shares, [outside, 1 - outside])
    return share, (float(low), float(high))


# `dj.circuit`: edges that do a task, with all others patched from the corrupted prompt, and their faithfulness.

NamedEdge = tuple[str, str]
Numbers = tuple[tuple[int, int], ...]
LARGEST: Final = "the largest scores"
WORK: Final = "The run of a circuit"
MOST_ASKED: Final = 2**18  # edges in one request


class Circuit(EdgeResult):
    """`edges` carry their writers' values on the clean prompt, all others the values on the corrupted one. `values` has
    the metric of each pair, `corrupted` and `clean` those of its prompts. `faithfulness` is the mean metric as a share
    of the distance from the corrupted prompts to the clean ones: 1 where the circuit does everything that the model
    does. `interval` bounds it, None for fewer than five pairs. `of` is the number of all edges, and `scores` are those
    of its own; `how` describes their choice."""

    _view = "circuit_view"
    ending = ".circuit.djinn"
    named = "file of a circuit"
    _tabled = True
    replies: Sequence[CircuitsRun]
    scores: list[float]
    of: int = msgspec.field(name="edges")
    confidence: float
    resamples: int
    seed: int
    how: str = ""
    stop: StopIdentity | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        replies, first = self.replies, self.replies[0]
        if first.made is None:
            raise ValueError("its runs have no recipe")
        self.edges = [(self.writers[writer], self.readers[at]) for writer, at in first.made.asked.circuits[0]]
        self.values: np.ndarray[Any, Any] = np.array([one.values[0] for one in replies])
        self.corrupted: np.ndarray[Any, Any] = np.array([one.corrupted for one in replies])
        self.clean: np.ndarray[Any, Any] = np.array([one.clean for one in replies])
        drawn = Interval(confidence=self.confidence, resamples=self.resamples, seed=self.seed)
        self.drawn = drawn
        self.faithfulness, self.interval = faithfulness_of(self.values, self.corrupted, self.clean, drawn)

    def check(self) -> None:
        """Raise ValueError where the runs belong to several circuits, or its edges not to its model."""
        made = [one.made for one in self.replies if one.made is not None]
        if any(len(one.values) != 1 for one in self.replies) or len({one.asked.circuits for one in made}) > 1:
            raise ValueError("its runs are of several circuits")
        if len(made[0].asked.circuits[0]) != len(self.scores):
            raise ValueError("its scores are not those of its edges")

    def place_of(self, index: tuple[int, ...]) -> dict[str, Any]:
        """Return the pair of the metric at this index."""
        return {"pair": index[0]}

    def __len__(self) -> int:
        return len(self.edges)

    @typed
    def top(self, count: int = result.STRONGEST) -> list[tuple[str, str, float]]:
        """Return (writer, reader, score) of its edges with the scores of largest magnitude."""
        each = ((writer, reader, score) for (writer, reader), score in zip(self.edges, self.scores, strict=True))
        return tables.strongest(each, count)

    def columns(self) -> dict[str, list[Any]]:
        """Return the edges as lists by column: writer, reader and score."""
        rows = [(*edge, score) for edge, score in zip(self.edges, self.scores, strict=True)]
        return tables.in_columns(("writer", "reader", "score"), rows)

    def __repr__(self) -> str:
        low_high = "" if self.interval is None else " ({:z.1%} to {:z.1%})".format(*self.interval)
        pairs = f", {len(self.replies)} pairs" if len(self.replies) > 1 else ""
        pairs += f" ({NO_INTERVAL})" if pairs and self.interval is None else ""
        return f"{len(self):,} of {self.of:,} edges: faithfulness {self.faithfulness:z.1%}{low_high}{pairs}"


@interrupts.waits(WORK)
@typed
def circuit(
    engine: RemoteEngine,
    found: Edges,
    edges: int | Sequence[object] | None = None,
    *,
    threshold: float | None = None,
    faithfulness: float | None = None,
    absolute: bool = True,
    confidence: float = 0.95,
    resamples: int = 10_000,
    seed: int = 0,
) -> Circuit:
    """Return the circuit of the first `edges` by the scores in `found`, of the edges with a score of at least
    `threshold`, or of the named edges; or with `faithfulness` the fewest first edges that are as faithful, found by
    bisection. The model runs on the clean prompts of `found`, with all other edges patched from the corrupted ones.

    Scores are ranked by magnitude; without `absolute` by value, the largest first. The interval is a percentile
    bootstrap over pairs. WorkInterrupted has the circuit on the finished pairs as `kept`, or the smallest faithful one
    so far. UsageError; SlabFull.

    >>> found = dj.edges(
    ...     engine,
    ...     clean="The capital of France is",
    ...     corrupted="The capital of Italy is",
    ...     metric="logit(' Paris') - logit(' Rome')",
    ... )
    >>> small, whole = dj.circuit(engine, found, 200), dj.circuit(engine, found, len(found))
    >>> len(small), whole.faithfulness
    (200, 1.0)
    """
    given = [one for one in (edges, threshold, faithfulness) if one is not None]
    if len(given) != 1:
        raise UsageError("Tell a circuit once: by its edges (a number, or their names), a threshold, or faithfulness.")
    if not absolute and not (edges is None or isinstance(edges, int)):
        raise UsageError("absolute says how scores choose edges, and these are named: leave it out.")
    if any(one is not None and not math.isfinite(one) for one in (threshold, faithfulness)):
        raise UsageError("A threshold and a faithfulness are finite numbers, such as 0.8.")
    drawn = Interval(confidence=confidence, resamples=resamples, seed=checked_seed(seed))
    order = ordered(found, absolute=absolute)
    with CircuitRuns(engine, found, drawn) as runs:
        if faithfulness is not None:
            return _fewest(runs, order, faithfulness)
        chosen, how = _chosen(found, order, edges, threshold, absolute=absolute)
        return runs.of([chosen], how)[0]


def _chosen(
    found: Edges, order: Numbers, edges: int | Sequence[object] | None, threshold: float | None, *, absolute: bool
) -> tuple[Numbers, str]:
    """Return the edges of a circuit, and how they were chosen."""
    if threshold is not None:
        sizes = [abs(float(found.values[edge])) if absolute else float(found.values[edge]) for edge in order]
        large = tuple(edge for edge, size in zip(order, sizes, strict=True) if size >= threshold)
        return large, f"scores from {threshold:g} on"
    if isinstance(edges, int):
        require_count(found, edges)
        return order[:edges], LARGEST
    assert edges is not None
    return tuple(dict.fromkeys(found.numbers(_named(edges)))), "edges by name"


def ordered(found: Edges, *, absolute: bool = True) -> Numbers:
    """Return all edges by the numbers of their writers and readers, those with the largest scores first."""
    flat = found.values.reshape(-1)
    ranks = np.argsort(-(np.abs(flat) if absolute else flat), kind="stable")  # NaN go last
    return tuple((int(row), int(at)) for row, at in (divmod(int(n), len(found.readers)) for n in ranks[: len(found)]))


def _named(edges: Sequence[object]) -> Iterator[NamedEdge]:
    for edge in edges:
        if not (isinstance(edge, tuple | list) and len(edge) == 2):
            raise UsageError(
                f"An edge is named by its writer and its reader, as ('z.0[1]', 'q.1[2]'); {shown(edge)} is not."
            )
        yield str(edge[0]), str(edge[1])


def require_count(found: Edges, edges: int) -> None:
    if not 0 <= edges <= len(found):
        raise UsageError(f"A circuit here has from 0 to {len(found):,} edges, not {edges:,}.")


def _fewest(runs: CircuitRuns, order: Numbers, faithfulness: float) -> Circuit:
    """Return the smallest faithful circuit that the bisection meets."""
    low, high, how = 0, len(order), f"the fewest for {faithfulness:z.1%}"
    [best] = runs.of([order], how)
    if best.faithfulness < faithfulness:
        raise UsageError(
            f"All {len(order):,} edges together have a faithfulness of {best.faithfulness:z.1%}, less than the "
            f"{faithfulness:z.1%} asked for."
        )

    def smallest(done: list[Circuit]) -> Circuit:
        return best

    tries = 0
    while high - low > 1:
        middle, tries = (low + high) // 2, tries + 1
        far(f"circuit {tries} of about {math.ceil(math.log2(len(order)))}, of {middle:,} edges")
        [tried] = runs.of([order[:middle]], how, kept=smallest)
        if tried.faithfulness >= faithfulness:
            best, high = tried, middle
        else:
            low = middle
    return best


class CircuitRuns:
    """Runs circuits on every pair of prompts on which edges were scored. Inside its block the prompts are recorded
    once, in sessions that close with it."""

    def __init__(self, engine: RemoteEngine, found: Edges, interval: Interval) -> None:
        self.engine, self.found, self.interval = engine, found, interval
        self._open = ExitStack()
        self._sessions: dict[object, str] = {}

    def __enter__(self) -> CircuitRuns:
        return self

    def __exit__(self, *raised: object) -> None:
        self._open.close()

    def of(
        self,
        circuits: Sequence[Numbers],
        how: str,
        kept: Callable[[list[Circuit]], object] = lambda done: done[0] if done else None,
    ) -> list[Circuit]:
        """Return each circuit, run on all pairs; `how` describes the choice of its edges. An interrupt keeps `kept` of
        the circuits run by then, on all pairs or the first ones."""
        done: list[Circuit] = []
        part: list[Numbers] = []

        def left(runs: list[CircuitsRun]) -> object:
            return kept(done or (self._circuits(part, runs, how) if runs else []))

        for part in _in_parts(circuits):
            requests = tuple(self._requests(part))

            def asked(one: RunCircuits, first: RunCircuits = requests[0]) -> CircuitsRun:
                return self._asked(one, lambda run: left([run]) if one is first else None)

            done += self._circuits(part, interrupts.in_parts(WORK, "pairs", requests, asked, left), how)
        return done

    def _circuits(self, circuits: Sequence[Numbers], runs: Sequence[CircuitsRun], how: str) -> list[Circuit]:
        """Return the circuits of one request, run on each pair; the first ones where it was ended early."""
        name = name_of(self.engine)
        return [
            Circuit(
                [_alone(one, at) for one in runs],
                scores=[float(self.found.values[edge]) for edge in numbers],
                of=len(self.found),
                **asdict(self.interval),
                how=how,
                stop=self.found.stop if self.found.engine == name else None,
                engine=name,
            )
            for at, numbers in enumerate(circuits[: len(runs[0].values)])
        ]

    def made(self, circuits: Sequence[Numbers]) -> list[CircuitsRun]:
        """Return the runs of all circuits on each pair."""
        return [self._asked(one) for one in self._requests(circuits)]

    def _asked(self, request: RunCircuits, kept: Callable[[CircuitsRun], object] = lambda run: None) -> CircuitsRun:
        return interrupts.replied_in_parts(self.engine.channel, request, WORK, kept)

    def _requests(self, circuits: Sequence[Numbers]) -> Iterator[RunCircuits]:
        for reply in self.found.replies:
            if reply.made is None:
                raise UsageError("These edges do not say of which lines they are; score them anew with dj.edges.")
            asked = reply.made.asked
            yield RunCircuits(
                session=self._session(reply.made),
                corrupted=asked.corrupted,
                clean=asked.clean,
                metric=asked.metric,
                circuits=tuple(circuits),
            )

    def _session(self, made: EdgeRecipe) -> str:
        """Return the session with the settings of these edges' scores, opened if needed."""
        how = made.attention, made.adapter
        if how not in self._sessions:
            self._sessions[how] = self._open.enter_context(likeness.session_like(self.engine.channel, "circuit", made))
        return self._sessions[how]


def _in_parts(circuits: Sequence[Numbers]) -> Iterator[list[Numbers]]:
    """Yield the circuits in parts of at most MOST_ASKED edges; a larger circuit is a part of its own."""
    part: list[Numbers] = []
    for one in circuits:
        if part and sum(map(len, (*part, one))) > MOST_ASKED:
            yield part
            part = []
        part.append(one)
    if part:
        yield part


def _alone(run: CircuitsRun, at: int) -> CircuitsRun:
    """Return the part of a run for one circuit."""
    assert run.made is not None
    asked = msgspec.structs.replace(run.made.asked, circuits=(run.made.asked.circuits[at],))
    made = msgspec.structs.replace(run.made, asked=asked)
    return msgspec.structs.replace(run, values=(run.values[at],), made=made)


@typed
def auroc(found: Edges, known: Iterable[object]) -> float:
    """Return how often an edge of the circuit `known` has a score of larger magnitude than another edge, with ties
    counted half: the area under the ROC curve. UsageError.

    >>> found = dj.edges(engine, clean=[1, 2, 3], corrupted=[1, 2, 4], metric="logit(5)")
    >>> dj.auroc(found, [(writer, reader) for writer, reader, _ in found.top(5)])
    1.0
    """
    there = np.zeros(found.values.shape, dtype=bool)
    for edge in found.numbers(_named(tuple(known))):
        there[edge] = True
    scored = ~np.isnan(found.values)
    inside, outside = (np.abs(found.values[scored & part]) for part in (there, ~there))
    if not len(inside) or not len(outside):
        raise UsageError("An AUROC is of a circuit that has some of the edges, and neither none nor all.")
    below = np.searchsorted(np.sort(outside), inside, side="left")
    upto = np.searchsorted(np.sort(outside), inside, side="right")
    return float((below + upto).mean() / 2 / len(outside))


# `dj.circuit_curve`: circuits of more and more edges, and MIB's areas under their faithfulness.

SIZES: Final = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)  # those of MIB


class CircuitCurve(result.Result):
    """The circuits of the first edges by score, at each of the `sizes`, which are shares of all edges. `cpr` and `cmd`
    are the metrics of MIB (Mueller et al. 2025): the area under the faithfulness, and between it and 1, over the sizes
    from the smallest on. `values` [sizes, pairs] are the metric of each circuit on each pair of prompts."""

    _view = "curve_view"
    ending = ".curve.djinn"
    named = "file of a curve of circuits"
    _parts: ClassVar[str] = "circuits"
    circuits: list[Circuit]
    sizes: tuple[float, ...]

    def __post_init__(self) -> None:
        self.faithfulness = [one.faithfulness for one in self.circuits]
        self.tokens = self._lines = self.circuits[0].tokens
        self.values: np.ndarray[Any, Any] = np.stack([one.values for one in self.circuits])

    @property
    def _replies(self) -> tuple[Any, ...]:
        return self.circuits[0]._replies

    def check(self) -> None:
        """Raise ValueError where the circuits do not match the sizes, or have different prompts or models."""
        if len(self.circuits) != len(self.sizes):
            raise ValueError("its circuits are not those of its sizes")
        if len({(one.tokens, one.of) for one in self.circuits}) > 1:
            raise ValueError("its circuits are of different lines or models")

    def place_of(self, index: tuple[int, ...]) -> dict[str, Any]:
        """Return the size of the circuit, and the pair, of the metric at this index."""
        return {"size": self.sizes[index[0]], "pair": index[1]}

    @property
    def cpr(self) -> float:
        """The integrated circuit performance ratio: larger is better."""
        return self._area(lambda value: value)

    @property
    def cmd(self) -> float:
        """The integrated circuit-model distance: smaller is better."""
        return self._area(lambda value: abs(1.0 - value))

    def _area(self, of: Callable[[float], float]) -> float:
        """Return the area by trapezoids."""
        heights = [of(value) for value in self.faithfulness]
        steps = zip(self.sizes, self.sizes[1:], heights, heights[1:], strict=False)
        return sum((to - at) * (low + high) / 2 for at, to, low, high in steps)

    def columns(self) -> dict[str, list[Any]]:
        """Return the circuits as lists by column: size, edges, faithfulness and the bounds of its interval."""
        rows = [
            (size, len(one), one.faithfulness, *(one.interval or (None, None)))
            for size, one in zip(self.sizes, self.circuits, strict=True)
        ]
        return tables.in_columns(("size", "edges", "faithfulness", "low", "high"), rows)

    def __repr__(self) -> str:
        points = ", ".join(f"{len(one):,}: {one.faithfulness:z.1%}" for one in self.circuits)
        return f"CPR {self.cpr:.3f}, CMD {self.cmd:.3f}; faithfulness of the first edges: {points}"


@interrupts.waits("The run of circuits")
@typed
def circuit_curve(
    engine: RemoteEngine,
    found: Edges,
    sizes: Sequence[float] = SIZES,
    *,
    absolute: bool = True,
    confidence: float = 0.95,
    resamples: int = 10_000,
    seed: int = 0,
) -> CircuitCurve:
    """Return the circuits of the first edges by the scores in `found`, at each of the `sizes`, rising shares of all
    edges (those of MIB by default), with MIB's areas `cpr` and `cmd`. Other arguments are as in `dj.circuit`; MIB ranks
    scores by value for CPR, and by magnitude for CMD. WorkInterrupted has the curve of the finished circuits as `kept`.

    >>> found = dj.edges(
    ...     engine, clean="The capital of France is", corrupted="The capital of Italy is", metric="logit(' Paris')"
    ... )
    >>> curve = dj.circuit_curve(engine, found, sizes=(0.1, 0.5, 1.0))
    >>> len(curve.circuits), curve.faithfulness[-1]
    (3, 1.0)
    """
    shares = tuple(float(size) for size in sizes)
    if not shares or shares != tuple(sorted(set(shares))) or not 0 <= shares[0] <= shares[-1] <= 1:
        raise UsageError("The sizes of circuits are rising shares of all edges, from 0 to 1, such as (0.01, 0.1, 1).")
    drawn = Interval(confidence=confidence, resamples=resamples, seed=checked_seed(seed))
    order = ordered(found, absolute=absolute)

    def so_far(done: list[Circuit]) -> CircuitCurve | None:
        return CircuitCurve(done, shares[: len(done)]) if done else None

    with CircuitRuns(engine, found, drawn) as runs:
        sized = [order[: round(size * len(order))] for size in shares]
        return CircuitCurve(runs.of(sized, LARGEST, kept=so_far), shares)
