"""A reading of edges between writers and readers of the residual: their names, their sites, and what they are of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from djinn_jupyter.client.result import Result
from djinn_jupyter.methods.circuits.request import CircuitsRun, EdgesAttributed
from djinn_jupyter.methods.sweep.api.pair_metrics import spelled


class EdgeResult(Result, kw_only=True):
    """`engine` is the engine's name in views, None where it is no process of its own; `stop` the one at which the
    session stood that gave the corrupted line, None of other lines and of pairs."""

    replies: Sequence[EdgesAttributed] | Sequence[CircuitsRun]
    engine: str | None = None
    _parts: ClassVar[str] = "pairs"

    def __post_init__(self) -> None:
        replies: Sequence[Any] = tuple(self.replies)
        first, *_ = self.replies = replies
        asked = [one.made.asked for one in self.replies if one.made is not None]
        self.tokens = self._lines = tuple(
            line for one in asked for line in (one.corrupted, one.clean) if not isinstance(line, str)
        )
        self.metrics = tuple(one.metric for one in self.replies)
        self.notes = tuple(dict.fromkeys(note for one in self.replies for note in one.notes))
        self.writers, self.readers = first.writers, first.readers

    @property
    def metric(self) -> str:
        """The metric, or that of the first pair where each has its own."""
        return spelled(self.metrics)

    @property
    def model(self) -> str | None:
        """The name of the model, None where the reading has no recipe."""
        return self.made[0].by.model if self.made else None

    def site(self, name: str) -> str:
        """Return the site of a writer or reader, at which a breakpoint stops it: the embedding's is resid_pre.0, that
        of the logits the last resid_post.

        >>> found = dj.edges(engine, clean=[1, 2, 3], corrupted=[1, 2, 4], metric="logit(5)")
        >>> found.site("logits"), found.site("q.3[2]")
        ('resid_post.7', 'q.3[2]')
        """
        last = max(layers_of(self.readers), default=0)
        return {"embed": "resid_pre.0", "logits": f"resid_post.{last}"}.get(name, name)

    @property
    def shared(self) -> frozenset[int]:
        """The layers in which several heads read one head of keys and values."""
        heads, keys = layers_of(self.writers, "z"), layers_of(self.readers, "k")
        return frozenset(layer for layer in set(heads) if keys.count(layer) < heads.count(layer))


def layers_of(names: Sequence[str], point: str | None = None) -> list[int]:
    """Return the layer of each of the writers or readers that have one, or of those at one point."""
    placed = (name.split(".") for name in names if "." in name)
    return [int(rest.split("[")[0]) for at, rest in placed if point in (None, at)]
