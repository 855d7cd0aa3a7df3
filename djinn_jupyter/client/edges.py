"""`dj.edges`: what each edge between a writer and a reader of the residual carries, estimated by gradients."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from djinn_jupyter.client.arguments import typed
from djinn_jupyter.client.arrays import to_numpy, token_ids
from djinn_jupyter.client.connection.channel import ask_for
from djinn_jupyter.client.engine import RemoteEngine
from djinn_jupyter.client.frames import Tabular, in_columns
from djinn_jupyter.client.interrupts import interruptible
from djinn_jupyter.client.session import RemoteSession
from djinn_jupyter.client.temporary import temporary_session
from djinn_jupyter.errors import UsageError
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.replies import EdgesAttributed
from djinn_jupyter.wire.sweeps import MOST_STEPS

if TYPE_CHECKING:
    import numpy as np

STRONGEST: Final = 10


class Edges(Tabular):
    """`values` are float64 [writers, readers], NaN where a writer is not before a reader: by how much the metric would
    change, to first order, if that reader got what that writer writes in the clean line. `corrupted` and `clean` are
    the metrics of the two lines."""

    def __init__(self, reply: EdgesAttributed) -> None:
        self.reply = reply
        self.metric, self.writers, self.readers = reply.metric, reply.writers, reply.readers
        self.corrupted, self.clean, self.steps, self.notes = reply.corrupted, reply.clean, reply.steps, reply.notes
        self.values: np.ndarray[Any, Any] = to_numpy(reply.scores)

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
        head = f"{len(self):,} edges of {self.metric}, {len(self.writers)} writers x {len(self.readers)} readers{steps}"
        return "\n".join([head, *(f"{writer} -> {reader}: {score:+.3f}" for writer, reader, score in self.top())])


@interruptible("The attribution of edges")
@typed
def edges(engine: RemoteEngine, *, clean: object, corrupted: object, metric: str, steps: int = 1) -> Edges:
    """Return the score of every edge (edge attribution patching; Syed et al. 2023) from a writer of the residual (the
    embedding, a head z.3[2], an MLP mlp_out.3) to a reader (queries, keys and values of a head, as q.3[2], an MLP
    mlp_in.3, the logits): (clean - corrupted) output of the writer x gradient of the metric by what that reader alone
    reads.

    With `steps` the gradient is the mean over as many points of the way between the lines' embeddings (EAP-IG; Hanna et
    al. 2024). A line is a text, token ids or a session, both of equally many tokens. A model whose heads and MLPs do
    not sum to its residual is refused with the reason. UsageError; UnknownSite; InvalidCondition; SlabFull.

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
    lines = [_line(engine, one) for one in (corrupted, clean)]
    with temporary_session(engine.channel, "edges") as name:
        request = ask.AttributeEdges(session=name, corrupted=lines[0], clean=lines[1], metric=metric, steps=steps)
        return Edges(ask_for(engine.channel, request, EdgesAttributed))


def _line(engine: RemoteEngine, given: object) -> Any:
    if isinstance(given, RemoteSession):
        return given.name
    return engine.tokenize(given).tokens if isinstance(given, str) else token_ids(given)
