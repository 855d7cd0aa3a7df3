"""`dj.circuit_curve`: circuits of more and more edges, and MIB's areas under their faithfulness."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final

from djinn_jupyter.client.arguments import checked_seed, typed
from djinn_jupyter.client.engine import RemoteEngine
from djinn_jupyter.client.frames import in_columns
from djinn_jupyter.client.result import Result
from djinn_jupyter.client.waits import waits
from djinn_jupyter.errors import UsageError
from djinn_jupyter.methods.circuits.api.circuits import LARGEST, Circuit, CircuitRuns, ordered
from djinn_jupyter.methods.circuits.api.edges import Edges
from djinn_jupyter.methods.circuits.api.faithfulness import Interval

if TYPE_CHECKING:
    import numpy as np

SIZES: Final = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)  # those of MIB


class CircuitCurve(Result):
    """The circuits of the first edges by score, at each of the `sizes`, which are shares of all edges. `cpr` and `cmd`
    are the metrics of MIB (Mueller et al. 2025): the area under the faithfulness, and that between it and 1, over the
    sizes from the smallest on. `values` [sizes, pairs] are the metric of each circuit on each pair of lines."""

    _view = "curve_view"
    ending = ".curve.djinn"
    named = "file of a curve of circuits"
    _parts: ClassVar[str] = "circuits"
    circuits: list[Circuit]
    sizes: tuple[float, ...]

    def __post_init__(self) -> None:
        import numpy as np

        self.faithfulness = [one.faithfulness for one in self.circuits]
        self.tokens = self._lines = self.circuits[0].tokens
        self.values: np.ndarray[Any, Any] = np.stack([one.values for one in self.circuits])

    @property
    def _replies(self) -> tuple[Any, ...]:
        return self.circuits[0]._replies

    def check(self) -> None:
        """Raise ValueError where the circuits are not those of the sizes, or of different lines or models."""
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
        return in_columns(("size", "edges", "faithfulness", "low", "high"), rows)

    def __repr__(self) -> str:
        points = ", ".join(f"{len(one):,}: {one.faithfulness:z.1%}" for one in self.circuits)
        return f"CPR {self.cpr:.3f}, CMD {self.cmd:.3f}; faithfulness of the first edges: {points}"


@waits("The run of circuits")
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
    edges (those of MIB by default), with MIB's areas `cpr` and `cmd`. Other arguments are as in `dj.circuit`; MIB takes
    the scores as they are for CPR, and by size for CMD. WorkInterrupted has the curve of what was run as `kept`.

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
