"""`dj.edges`: what each edge between a writer and a reader of the residual carries, estimated by gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from djinn_jupyter.client.arguments import typed
from djinn_jupyter.client.arrays import to_numpy, token_ids
from djinn_jupyter.client.connection.channel import ask_for
from djinn_jupyter.client.engine import RemoteEngine
from djinn_jupyter.client.engines.attachments import engine_id
from djinn_jupyter.client.frames import Tabular, in_columns
from djinn_jupyter.client.interrupts import interruptible
from djinn_jupyter.client.session import RemoteSession
from djinn_jupyter.client.sweep_arguments import are_lines, pairs_of
from djinn_jupyter.client.temporary import temporary_session
from djinn_jupyter.errors import UsageError
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.nouns import StopIdentity
from djinn_jupyter.wire.replies import EdgesAttributed
from djinn_jupyter.wire.sweeps import MOST_STEPS, LineSource

if TYPE_CHECKING:
    import numpy as np

STRONGEST: Final = 10


class Edges(Tabular):
    """`values` are float64 [writers, readers], NaN where a writer is not before a reader: by how much the metric would
    change, to first order, if that reader got what that writer writes in the clean line. `corrupted` and `clean` are
    the metrics of the two lines. Of several pairs all are means, and `by_pair` has the scores of each. `engine` is the
    engine's name in views, None where it is no process of its own."""

    def __init__(self, replies: Sequence[EdgesAttributed], *, paired: bool = False, engine: str | None = None) -> None:
        import numpy as np

        first = replies[0]
        self.replies, self.paired, self.engine = tuple(replies), paired, engine
        self.writers, self.readers, self.steps = first.writers, first.readers, first.steps
        self.metrics = tuple(one.metric for one in replies)
        self.notes = tuple(dict.fromkeys(note for one in replies for note in one.notes))
        self.corrupted = float(np.mean([one.corrupted for one in replies]))
        self.clean = float(np.mean([one.clean for one in replies]))
        self.by_pair: np.ndarray[Any, Any] = np.stack([to_numpy(one.scores) for one in replies])
        self.values: np.ndarray[Any, Any] = self.by_pair.mean(axis=0)

    @property
    def metric(self) -> str:
        """The metric, or that of the first pair where each has its own."""
        return self.metrics[0] if len(set(self.metrics)) == 1 else f"{self.metrics[0]} and each pair's own"

    @property
    def stop(self) -> StopIdentity | None:
        """The stop at which the session stood that gave the corrupted line; None of other lines and of pairs."""
        return None if self.paired else self.replies[0].stop

    def site(self, name: str) -> str:
        """Return the site of a writer or reader, at which a breakpoint stops it: the embedding's is resid_pre.0, that
        of the logits the last resid_post.

        >>> found = dj.edges(engine, clean=[1, 2, 3], corrupted=[1, 2, 4], metric="logit(5)")
        >>> found.site("logits"), found.site("q.3[2]")
        ('resid_post.7', 'q.3[2]')
        """
        last = max(int(one.split(".")[1].split("[")[0]) for one in self.readers if one != "logits")
        return {"embed": "resid_pre.0", "logits": f"resid_post.{last}"}.get(name, name)

    def __len__(self) -> int:
        import numpy as np

        return int(np.count_nonzero(~np.isnan(self.values)))

    def top(self, count: int = STRONGEST) -> list[tuple[str, str, float]]:
        """Return (writer, reader, score) of the edges with the largest scores by size."""
        import numpy as np

        sizes = np.abs(np.nan_to_num(self.values)).reshape(-1)
        order = np.argsort(-sizes, kind="stable")[: min(max(count, 0), len(self))]
        places = (divmod(int(number), len(self.readers)) for number in order)
        return [(self.writers[row], self.readers[at], float(self.values[row, at])) for row, at in places]

    def columns(self) -> dict[str, list[Any]]:
        """Return the edges as lists by column: writer, reader and score."""
        import numpy as np

        rows = [
            (self.writers[row], self.readers[at], float(self.values[row, at]))
            for row, at in np.argwhere(~np.isnan(self.values)).tolist()
        ]
        return in_columns(("writer", "reader", "score"), rows)

    def __repr__(self) -> str:
        steps = "" if self.steps == 1 else f", {self.steps} steps"
        pairs = f", {len(self.replies)} pairs" if self.paired else ""
        size = f"{len(self.writers)} writers x {len(self.readers)} readers"
        head = f"{len(self):,} edges of {self.metric}, {size}{steps}{pairs}"
        return "\n".join([head, *(f"{writer} -> {reader}: {score:+.3f}" for writer, reader, score in self.top())])


@interruptible("The attribution of edges")
@typed
def edges(
    engine: RemoteEngine, *, clean: object, corrupted: object, metric: str | Sequence[str], steps: int = 1
) -> Edges:
    """Return the score of every edge (edge attribution patching; Syed et al. 2023) from a writer of the residual (the
    embedding, a head z.3[2], an MLP mlp_out.3) to a reader (queries, keys and values of a head, as q.3[2], an MLP
    mlp_in.3, the logits): (clean - corrupted) output of the writer x gradient of the metric by what that reader alone
    reads.

    With `steps` the gradient is the mean over as many points of the way between the lines' embeddings (EAP-IG; Hanna et
    al. 2024). A line is a text, token ids or a session, both of equally many tokens; two lists of equally many lines
    are pairs, whose scores are averaged, with one metric for all or a list of one for each. A model whose heads and
    MLPs do not sum to its residual is refused with the reason. UsageError; UnknownSite; InvalidCondition; SlabFull.

    >>> found = dj.edges(
    ...     engine,
    ...     clean="The capital of France is",
    ...     corrupted="The capital of Italy is",
    ...     metric="logit(' Paris') - logit(' Rome')",
    ... )
    >>> found.values.shape, len(found.top(3))
    ((41, 105), 3)
    """
    if not 1 <= steps <= MOST_STEPS:
        raise UsageError(f"Integrated gradients take from 1 to {MOST_STEPS:,} steps, not {steps:,}.")
    paired = are_lines(corrupted) or are_lines(clean)
    pairs = pairs_of(corrupted, clean) if paired else [(corrupted, clean)]
    found = [
        _scored(engine, *pair, each, steps) for pair, each in zip(pairs, metrics_of(metric, len(pairs)), strict=True)
    ]
    return Edges(found, paired=paired, engine=None if engine.entry is None else engine_id(engine.entry))


def metrics_of(metric: str | Sequence[str], pairs: int) -> tuple[str, ...]:
    """Return a metric for each pair. Raises UsageError."""
    if isinstance(metric, str):
        return (metric,) * pairs
    if len(metric) != pairs or not pairs:
        raise UsageError(f"Give one metric, or one for each pair: there are {len(metric)} metrics and {pairs} pairs.")
    return tuple(metric)


def _scored(engine: RemoteEngine, corrupted: object, clean: object, metric: str, steps: int) -> EdgesAttributed:
    lines = [line_source(engine, one) for one in (corrupted, clean)]
    with temporary_session(engine.channel, "edges") as name:
        request = ask.AttributeEdges(session=name, corrupted=lines[0], clean=lines[1], metric=metric, steps=steps)
        return ask_for(engine.channel, request, EdgesAttributed)


def line_source(engine: RemoteEngine, given: object) -> LineSource:
    """Return a line as a request has it: a session's name, or token ids."""
    if isinstance(given, RemoteSession):
        return given.name
    return engine.tokenize(given).tokens if isinstance(given, str) else token_ids(given)
