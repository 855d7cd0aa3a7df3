"""The scores of edges between writers and readers of the residual: their names and sites, and `dj.edges`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Final

import msgspec
import numpy as np

from djinn_jupyter.api import arrays, interrupts, likeness, result, tables
from djinn_jupyter.api.arguments import typed
from djinn_jupyter.api.engine import RemoteEngine
from djinn_jupyter.errors import UsageError
from djinn_jupyter.link.channel import Channel
from djinn_jupyter.methods.circuits.request import AttributeEdges, CircuitsRun, EdgeMethod, EdgeRecipe, EdgesAttributed
from djinn_jupyter.methods.common.api import line_source
from djinn_jupyter.methods.sweep.api.arguments import are_lines, lines_given, metrics_of, pairs_of, require_texts
from djinn_jupyter.methods.sweep.api.pair_metrics import GivenMetric, PerPair, spelled
from djinn_jupyter.methods.sweep.request import MOST_STEPS


class EdgeResult(result.Result, kw_only=True):
    """`engine` is the engine's name in views, None where it is not a process of its own; `stop` is the stop of the
    session with the corrupted prompt, None for other prompts and for pairs."""

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
        """The metric, or the first pair's where each pair has its own."""
        return spelled(self.metrics)

    @property
    def model(self) -> str | None:
        """The name of the model, None where the reading has no recipe."""
        return self.made[0].by.model if self.made else None

    def site(self, name: str) -> str:
        """Return the site of a writer or reader, at which a breakpoint stops it: resid_pre.0 for the embedding, the
        last resid_post for the logits.

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
    """Return the layer of each writer or reader that has one, or of those at one point."""
    placed = (name.split(".") for name in names if "." in name)
    return [int(rest.split("[")[0]) for at, rest in placed if point in (None, at)]


# `dj.edges`: the effect of each edge between a writer and a reader of the residual, estimated by gradients.

ANY_SESSION: Final = "edges"
WORK: Final = "The attribution of edges"


class Edges(EdgeResult):
    """`values` are float64 [writers, readers], NaN where a writer is not before a reader: the first-order change of the
    metric if that reader got that writer's value on the clean prompt. `corrupted` and `clean` are the metrics of the
    two prompts. For several pairs all are means, and `by_pair` has the scores of each. `engine` is the engine's name in
    views, None where it is not a process of its own. `exact` is NaN except at the edges that were also `patched`
    exactly, None where none was. `tokens` are the corrupted and the clean tokens of each pair."""

    _view = "edges_view"
    ending = ".edges.djinn"
    named = "file of edges"
    _words: ClassVar[Mapping[str, str]] = {"patched": "exact"}
    replies: Sequence[EdgesAttributed]
    paired: bool = False
    patched: Sequence[EdgesAttributed] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        replies, self.patched, first = self.replies, tuple(self.patched), self.replies[0]
        self.stop = None if self.paired else first.stop
        self.steps, self.method = first.steps, first.method
        self.corrupted = float(np.mean([one.corrupted for one in replies]))
        self.clean = float(np.mean([one.clean for one in replies]))
        self.by_pair: np.ndarray[Any, Any] = np.stack([arrays.to_numpy(one.scores) for one in replies])
        self.values: np.ndarray[Any, Any] = self.by_pair.mean(axis=0)
        each = [arrays.to_numpy(one.scores) for one in self.patched]
        self.exact: np.ndarray[Any, Any] | None = np.stack(each).mean(axis=0) if each else None

    def check(self) -> None:
        """Raise ValueError where the scores do not match the writers and readers, or one model."""
        each = (*self.replies, *self.patched)
        if any(one.scores.shape != (len(one.writers), len(one.readers)) for one in each):
            raise ValueError("its scores are not those of its writers and readers")
        if len({(one.writers, one.readers) for one in each}) > 1 or any(one.scores.dtype != "float64" for one in each):
            raise ValueError("its pairs are of several models, or its scores are not float64")
        if any(one.made is None for one in each) or (self.patched and len(self.patched) != len(self.replies)):
            raise ValueError("its pairs have no recipe")

    def place_of(self, index: tuple[int, ...]) -> dict[str, Any]:
        """Return the writer and the reader of the score at this index."""
        return {"writer": self.writers[index[0]], "reader": self.readers[index[1]]}

    def __len__(self) -> int:
        return int(np.count_nonzero(~np.isnan(self.values)))

    def numbers(self, edges: Iterable[tuple[str, str]]) -> Iterator[tuple[int, int]]:
        """Yield edges by the numbers of their writers and readers. Raises UsageError for an unknown edge."""
        writers, readers = ({name: at for at, name in enumerate(names)} for names in (self.writers, self.readers))
        for writer, reader in edges:
            row, at = writers.get(writer, -1), readers.get(reader, -1)
            if row < 0 or at < 0 or np.isnan(self.values[row, at]):
                raise UsageError(
                    f"There is no edge from {writer} to {reader}; found.writers and found.readers have the names, and "
                    "a writer comes before its reader."
                )
            yield row, at

    def columns(self) -> dict[str, list[Any]]:
        """Return the edges as lists by column: writer, reader and score, and exact changes if any."""
        places = [tuple(at) for at in np.argwhere(~np.isnan(self.values)).tolist()]
        table = tables.in_columns(
            ("writer", "reader", "score"),
            [(self.writers[row], self.readers[at], float(self.values[row, at])) for row, at in places],
        )
        return table if self.exact is None else table | {"exact": [float(self.exact[at]) for at in places]}

    def __repr__(self) -> str:
        steps = ", patched exactly" if self.method == "exact" else "" if self.steps == 1 else f", {self.steps} steps"
        pairs = f", {len(self.replies)} pairs" if self.paired else ""
        size = f"{len(self.writers)} writers x {len(self.readers)} readers"
        head = f"{len(self):,} edges of {self.metric}, {size}{steps}{pairs}"
        return "\n".join([head, *(f"{writer} -> {reader}: {score:+.3f}" for writer, reader, score in self.top())])


@interrupts.waits(WORK)
@typed
def edges(
    engine: RemoteEngine,
    *,
    clean: object = None,
    corrupted: object = None,
    metric: GivenMetric = None,
    pairs: object = None,
    steps: int = 1,
    method: EdgeMethod = "gradients",
    top: int | None = None,
    adapter: str | None = None,
) -> Edges:
    """Return the score of every edge (edge attribution patching; Syed et al. 2023) from a writer of the residual (the
    embedding, a head z.3[2], an MLP mlp_out.3) to a reader (queries, keys and values of a head, as q.3[2], an MLP
    mlp_in.3, the logits): (clean - corrupted) output of the writer x gradient of the metric with respect to that
    reader's input alone.

    With `steps` the gradient is the mean over as many points on the path between the prompts' embeddings (EAP-IG; Hanna
    et al. 2024). A prompt is a text, token ids or a session; both have equally many tokens. Two equally long lists of
    prompts, or `pairs` as in `dj.sweep`, are pairs, whose scores are averaged, with one metric for all,
    `dj.per_pair([...])`, or the answers of the pairs.

    `method="exact"` patches every edge by itself, a pass for each: the score is the change of the metric where that
    reader gets that writer's value on the clean prompt, with all its consequences. `top` also patches so many edges
    with the largest gradient scores, and `found.exact` has their changes. A named `adapter` applies to prompts that are
    not sessions. A model whose heads and MLPs do not sum to its residual is refused with the reason. WorkInterrupted
    has the Edges of the finished pairs as `kept`, or the patched edges of the first one. UsageError; UnknownSite;
    InvalidCondition; SlabFull.

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
    clean, corrupted, metric = lines_given(clean, corrupted, pairs, metric)
    if clean is None or corrupted is None:
        raise UsageError("Edges are scored between two lines: give clean=... and corrupted=..., or pairs.")
    paired = are_lines(corrupted) or are_lines(clean)
    lines = pairs_of(corrupted, clean) if paired else [(corrupted, clean)]
    if top is not None and (method == "exact" or top < 1):
        raise UsageError("The edges of the largest scores of gradients are patched too with top, from 1 on.")
    require_texts(adapter, corrupted, clean)
    metrics = _metric_of_each(metric, len(lines))
    asked = [_asked(engine, *pair, each, steps, method) for pair, each in zip(lines, metrics, strict=True)]

    def edges_of(replies: list[EdgesAttributed]) -> Edges | None:
        return Edges(replies, paired=paired, engine=name_of(engine)) if replies else None

    def first_scored(one: AttributeEdges) -> EdgesAttributed:
        with likeness.temporary_session(engine.channel, "edges", adapter) as name:
            request = msgspec.structs.replace(one, session=name)
            first = one is asked[0]  # for a later pair the earlier pairs are kept
            return interrupts.replied_in_parts(
                engine.channel, request, WORK, lambda reply: edges_of([reply]) if first else None
            )

    replies = interrupts.in_parts(WORK, "pairs", asked, first_scored, edges_of)
    found = Edges(replies, paired=paired, engine=name_of(engine))
    if top is None:
        return found

    def with_patched(done: list[EdgesAttributed]) -> Edges:
        return Edges(found.replies, paired=paired, engine=found.engine, patched=done)

    def patched_alone(reply: EdgesAttributed) -> Edges | None:
        return None if paired else with_patched([reply])

    patching = tuple(_patching(found, top))
    patched = interrupts.in_parts(
        WORK, "pairs, patched", patching, lambda one: scored(engine.channel, *one, patched_alone), lambda done: found
    )
    return with_patched(patched)


def _metric_of_each(metric: GivenMetric, pairs: int) -> tuple[str, ...]:
    """Return a metric for each pair. Raises UsageError."""
    if isinstance(metric, PerPair):
        metric.require(pairs)
        return metric.metrics
    found = metrics_of(metric)
    if not isinstance(metric, str):
        raise UsageError(
            "Edges have no axis for a list of metrics; write metric=dj.per_pair([...]) for one of each pair."
        )
    return found * pairs


def _asked(
    engine: RemoteEngine, corrupted: object, clean: object, metric: str, steps: int, method: EdgeMethod
) -> AttributeEdges:
    return AttributeEdges(
        session=ANY_SESSION,
        corrupted=line_source(engine, corrupted),
        clean=line_source(engine, clean),
        metric=metric,
        steps=steps,
        method=method,
    )


def _patching(found: Edges, top: int) -> Iterator[tuple[AttributeEdges, EdgeRecipe]]:
    """Yield the requests that patch the edges with the largest mean scores exactly, in every pair, with their
    recipes."""
    edges = tuple(found.numbers((writer, reader) for writer, reader, _ in found.top(top)))
    for reply in found.replies:
        assert reply.made is not None
        yield msgspec.structs.replace(reply.made.asked, method="exact", steps=1, chosen=edges), reply.made


def scored(
    channel: Channel,
    request: AttributeEdges,
    made: EdgeRecipe,
    kept: Callable[[EdgesAttributed], object] = lambda reply: None,
) -> EdgesAttributed:
    """Return the scores of a request, with the settings of this recipe. An interrupt has `kept` of the patched
    edges."""
    with likeness.session_like(channel, "edges", made) as name:
        request = msgspec.structs.replace(request, session=name)
        return interrupts.replied_in_parts(channel, request, WORK, kept)


def name_of(engine: RemoteEngine) -> str | None:
    """Return the name of an engine in views, None where it is not a process of its own."""
    return None if engine.entry is None else engine.entry.id
