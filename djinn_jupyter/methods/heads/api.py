"""The attention of heads: scores of all heads of a model, and all patterns of a token sequence."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, Literal, Self

import msgspec
import numpy as np

from djinn_jupyter.api import arguments, arrays, likeness, result, runs, tables
from djinn_jupyter.api.engine import RemoteEngine
from djinn_jupyter.api.session import RemoteSession
from djinn_jupyter.errors import UnknownSite, UsageError
from djinn_jupyter.link.channel import Channel
from djinn_jupyter.methods.heads.request import (
    KINDS,
    MOST_LINES,
    HeadRead,
    HeadsRead,
    Kind,
    ReadHead,
    ReadHeads,
    TokenPair,
)
from djinn_jupyter.wire.readings import spans
from djinn_jupyter.wire.texts import in_quotes

WORK: Final = "The reading of heads"
ANY_SESSION: Final = "heads"
LONGEST: Final = 20  # characters of a head


def head_of(spelled: object) -> tuple[int, int]:
    """Return the layer and the number of a head that is spelled as 5.1. UsageError."""
    layer, dot, head = str(spelled).partition(".")
    if not (dot and layer.isdecimal() and head.isdecimal() and len(str(spelled)) <= LONGEST):
        raise UsageError(f"A head is spelled by its layer and number, such as 5.1; {in_quotes(str(spelled))} is none.")
    return int(layer), int(head)


class _OfHeads(result.Result):
    """A reading of heads, with its token sequences in words (`over`)."""

    read_heads: HeadsRead = msgspec.field(name="read")
    over: str = msgspec.field(name="of")

    def check(self) -> None:
        """Raise ValueError where the scores or the patterns do not match the named layers and heads."""
        read, shape = self.read_heads, self.read_heads.scores.shape
        if read.scores.dtype != "float64" or len(shape) != 3 or shape[:2] != (len(read.counted), len(read.layers)):
            raise ValueError("its scores are not those of its layers")
        if not read.lines:
            raise ValueError("its scores are of no lines")
        if read.patterns is not None and (read.patterns.dtype != "float32" or read.patterns.shape[:2] != shape[1:]):
            raise ValueError("its patterns are not those of its heads")

    def _request_of(self, reply: HeadsRead) -> ReadHeads:
        return ReadHeads(session=ANY_SESSION, lines=reply.lines, patterns=reply.patterns is not None)


class HeadScores(_OfHeads):
    """The mean attention of a position to the one before it (`previous`), to earlier positions with the same token
    (`duplicate`), and to those that follow these (`induction`): float64 [layers, heads], NaN where no position has such
    a target. `counted` are the numbers of positions with one."""

    _view = "scores_view"
    ending = ".heads.djinn"
    named = "file of head scores"

    def __post_init__(self) -> None:
        read = self.read_heads
        self.layers = read.layers
        self.tokens = self._lines = read.lines
        self.counted = dict(zip(KINDS, read.counted, strict=True))
        self.values = arrays.to_numpy(read.scores)
        self.previous, self.duplicate, self.induction = self.values

    def place_of(self, index: tuple[int, ...]) -> dict[str, Any]:
        """Return the kind, the layer and the head of a score."""
        kind, layer, head = index
        return {"kind": KINDS[kind], "layer": self.layers[layer], "head": head}

    @property
    def heads(self) -> int:
        """The number of heads of the layer with the most."""
        return int(self.previous.shape[1])

    def best(self, kind: Kind, count: int = 5) -> list[tuple[int, int, float]]:
        """Return `top(count, kind)`: the old name, which warns."""
        warnings.warn("scores.best(kind, count) is scores.top(count, kind) now.", FutureWarning, stacklevel=2)
        return self.top(count, kind)

    @arguments.typed
    def top(self, count: int = result.STRONGEST, kind: Kind | str = "induction") -> list[tuple[int, int, float]]:
        """Return (layer, head, score) of the heads with the highest scores of a kind, the highest first. UsageError.

        >>> scores = engine.head_scores()
        >>> sorted((layer, head) for layer, head, score in scores.top(3, "induction") if score > 0.9)
        [(2, 0), (2, 2), (2, 3)]
        """
        if kind not in KINDS:
            raise UsageError(f"Heads are scored as {', '.join(KINDS)}; {kind!r} is none of them.")
        return [
            (self.layers[layer], head, score) for (layer, head), score in arrays.largest(getattr(self, kind), count)
        ]

    def columns(self) -> dict[str, list[Any]]:
        """Return the scores as lists by column: layer, head, and one for each kind."""
        places = list(itertools.product(self.layers, range(self.heads)))
        scores: dict[str, list[Any]] = {kind: getattr(self, kind).reshape(-1).tolist() for kind in KINDS}
        return {"layer": [layer for layer, _ in places], "head": [head for _, head in places], **scores}

    def __repr__(self) -> str:
        return f"Scores of {len(self.layers)} layers x {self.heads} heads: {self.over}"


class HeadPatterns(_OfHeads):
    """The attention patterns of all heads for a token sequence, fp32 [layers, heads, queries, keys]; blocks of `pooled`
    positions have their largest weight. `texts` are the tokens, and `scores` the heads' scores on it. `chosen` are the
    heads, (layer, head), that the card shows token by token."""

    _view = "patterns_view"
    ending = ".patterns.djinn"
    named = "file of attention patterns"
    chosen: tuple[tuple[int, int], ...] = ()

    def __post_init__(self) -> None:
        read = self.read_heads
        if read.patterns is None:
            raise UsageError("The file has head scores, and no patterns; read it as dj.HeadScores.")
        self.layers, self.texts, self.pooled = read.layers, read.texts, read.pooled
        self.tokens = self._lines = read.lines
        self.values = arrays.to_numpy(read.patterns)
        self.scores = HeadScores(read, self.over)

    def choose(self, *heads: str) -> Self:
        """Return the same patterns, whose card shows where each token looks, by these heads, such as "5.1" (layer and
        head). UsageError.

        >>> done = session.run("The capital of France is", max_new_tokens=1, free=True)
        >>> session.patterns().choose("5.1", "6.0").chosen
        ((5, 1), (6, 0))
        """
        return msgspec.structs.replace(self, chosen=tuple(map(self._head, heads)))

    def _head(self, spelled: object) -> tuple[int, int]:
        layer, head = head_of(spelled)
        if layer not in self.layers or head >= self.heads:
            raise UsageError(
                f"There is no head {spelled}: layers {spans(self.layers)} have patterns, of {self.heads} heads each."
            )
        return layer, head

    def place_of(self, index: tuple[int, ...]) -> dict[str, Any]:
        """Return the layer, the head, the query's position and the key's (for blocks the first)."""
        layer, head, query, key = index
        return {"layer": self.layers[layer], "head": head, "query": query * self.pooled, "key": key * self.pooled}

    @property
    def heads(self) -> int:
        """The number of heads of the layer with the most."""
        return int(self.values.shape[1])

    def columns(self) -> dict[str, list[Any]]:
        """Return the weights as lists by column: layer, head, the query's position, the key's (for blocks the first),
        and the weight. Keys after their query are left out."""
        sizes = self.values.shape
        layer, head, query, key = np.indices(sizes).reshape(4, -1)
        kept = (key <= query) & ~np.isnan(self.values.reshape(-1))  # a layer may have fewer heads
        layers = np.array(self.layers)[layer[kept]].tolist()
        places = {"query": query[kept] * self.pooled, "key": key[kept] * self.pooled}
        weights = self.values.reshape(-1)[kept].tolist()
        found = {name: at.tolist() for name, at in places.items()}
        return {"layer": layers, "head": head[kept].tolist(), **found, "weight": weights}

    def __repr__(self) -> str:
        return f"Patterns of {len(self.layers)} layers x {self.heads} heads over {len(self.texts)} tokens"


@arguments.typed
def head_scores(
    engine: RemoteEngine,
    /,
    prompts: object = None,
    *,
    length: int | None = None,
    samples: int | None = None,
    seed: int | None = None,
    adapter: str | None = None,
) -> HeadScores:
    """Return how much every head attends to the previous token, to earlier positions with the same token, and to the
    tokens after those (induction): means over the prompts (as in `collect`), or by default over `samples` (8) sequences
    of `length` (50) random tokens, repeated once. `adapter` names an adapter to use. UsageError; UnknownSite where no
    layer has patterns.

    >>> scores = engine.head_scores()
    >>> scores.previous.shape, scores.top(2, "previous")[0][:2]  # layer and head
    ((8, 4), (1, 3))
    """
    if prompts is not None:
        if any(one is not None for one in (length, samples, seed)):
            raise UsageError("length, samples and seed are of random tokens; leave them out beside prompts.")
        lines = tuple(runs.tokenized(engine.channel, runs.given_prompts(prompts)))
        if not lines:
            raise UsageError("There are no prompts to score heads on.")
        return _scored(engine.channel, lines, f"over {len(lines)} prompts", adapter)
    length, samples, seed = 50 if length is None else length, 8 if samples is None else samples, seed or 0
    said = f"over {samples} lines of {length} random tokens, repeated once, seed {seed}"
    lines = _repeated(engine.channel.welcome.model.vocab_size, length, samples, seed)
    return _scored(engine.channel, lines, said, adapter)


def patterns(session: RemoteSession, /) -> HeadPatterns:
    """Return the attention patterns of all heads over the session's tokens, from one pass on the side under its
    steering rules. UsageError where edits were made at its stops, because that pass would not include them.

    >>> done = session.run("The capital of France is", max_new_tokens=1, free=True)
    >>> session.patterns().values.shape  # layers, heads, queries, keys
    (8, 4, 5, 5)
    """
    return HeadPatterns(_read(session.channel, [session.name], patterns=True, rules_of=session.name), "on this line")


def _scored(channel: Channel, lines: Sequence[tuple[int, ...]], over: str, adapter: str | None) -> HeadScores:
    def first(read: HeadsRead) -> HeadScores:
        return HeadScores(read, f"{over}, of which the first {len(read.lines)} were read")

    return HeadScores(_read(channel, lines, adapter=adapter, kept=first), over)


def _repeated(vocabulary: int, length: int, samples: int, seed: int) -> tuple[tuple[int, ...], ...]:
    if length < 2 or not 1 <= samples <= MOST_LINES or seed < 0:
        raise UsageError(
            f"Heads are scored on 1 to {MOST_LINES:,} lines of two or more tokens, drawn by a seed from 0 on."
        )
    if length > vocabulary:
        raise UsageError(f"A line of {length} different tokens needs a larger vocabulary than {vocabulary:,}.")
    draw = np.random.default_rng(seed)
    return tuple(tuple(draw.choice(vocabulary, length, replace=False).tolist()) * 2 for _ in range(samples))


def _read(
    channel: Channel,
    lines: Sequence[tuple[int, ...] | str],
    *,
    patterns: bool = False,
    rules_of: str | None = None,
    adapter: str | None = None,
    kept: Callable[[HeadsRead], object] = lambda read: None,
) -> HeadsRead:
    request = ReadHeads(session=ANY_SESSION, lines=tuple(lines), patterns=patterns, rules_of=rules_of)
    return likeness.answered(channel, "heads", request, WORK, kept, adapter=adapter)


# A head's page: its scores among those of all heads, what it attends to over prompts, and its OV circuit.

PAGE: Final = "The reading of the head"
MOST_HEADS: Final = 1 << 20  # where layers differ in theirs
SUMMED: Final = "summed"
MEAN: Final = "mean"
CIRCUIT: Final = "circuit"
PairKind = Literal["summed", "mean", "circuit"]
PAIR_KINDS: Final[tuple[PairKind, ...]] = (SUMMED, MEAN, CIRCUIT)
PAIR: Final = ("of", "from_token", "from", "to_token", "to", "count", "value")


class HeadPage(result.Result):
    """One head: its `scores` among those of all heads, with its `ranks`; what it attends to over the prompts: the pairs
    of tokens with the largest `summed` weights and the largest `mean` ones, from the query's token to the key's, the
    strongest single `examples`, and the mean weight at the first position (`first_share`), which no pair includes; and
    the largest entries of its OV `circuit`, from the token attended to to the token whose logit it raises. `values`,
    float64, are those of all pairs, in the order of `columns()`."""

    _view = "page_view"
    ending = ".head.djinn"
    named = "file of a head's page"
    _tabled = True
    reply: HeadRead
    scores: HeadScores
    request: ReadHead

    def __post_init__(self) -> None:
        reply = self.reply
        self.layer, self.number, self.head = reply.layer, reply.head, f"{reply.layer}.{reply.head}"
        self.tokens = self._lines = reply.lines
        self.spelled = dict(reply.spelled)
        self.first_share, self.examples, self.circuit = reply.first_share, reply.examples, reply.circuit
        self.values = np.array([row[-1] for row in self._rows()], dtype=np.float64)

    @property
    def ranks(self) -> dict[Kind, tuple[float, int, int] | None]:
        """For each kind of score the head's own, its rank among all heads, from 1 on, and their number; None where no
        position has such a target."""
        return {kind: self._rank(getattr(self.scores, kind)) for kind in KINDS}

    def _rank(self, scores: np.ndarray[Any, Any]) -> tuple[float, int, int] | None:
        own = float(scores[self.scores.layers.index(self.layer), self.number])
        known = scores[~np.isnan(scores)]
        return None if np.isnan(own) else (own, 1 + int((known > own).sum()), len(known))

    def _rows(self) -> Iterator[tuple[Any, ...]]:
        for of, pairs in ((SUMMED, self.reply.summed), (MEAN, self.reply.mean)):
            for one in pairs:
                yield of, *self._named(one.query), *self._named(one.key), one.count, attention_of(one, of)
        for pair in () if self.circuit is None else self.circuit.pairs:
            yield CIRCUIT, *self._named(pair.given), *self._named(pair.made), None, pair.value

    def _named(self, token: int) -> tuple[int, str]:
        return token, self.spelled[token]

    def columns(self) -> dict[str, list[Any]]:
        """Return the pairs as lists by column: what they are pairs of (summed or mean attention, or the OV circuit),
        the ids and texts of both tokens, how often they were met (None in the circuit), and the value."""
        return tables.in_columns(PAIR, list(self._rows()))

    def place_of(self, index: tuple[int, ...]) -> dict[str, Any]:
        """Return the kind of the pair at this index, and its tokens."""
        of, _, given, _, made, *_ = list(self._rows())[index[0]]
        return {"of": of, "from": given, "to": made}

    @arguments.typed
    def top(self, count: int = result.STRONGEST, of: PairKind | str = SUMMED) -> list[tuple[str, str, float]]:
        """Return (from, to, value) of the pairs of tokens with the largest `summed` attention, `mean` attention, or
        entry of the OV `circuit`. UsageError.

        >>> page = engine.head("5.1", over=["The capital of France is", "The capital of Italy is"])
        >>> len(page.top(3)), page.ranks["previous"][2]  # of all heads
        (3, 32)
        """
        if of not in PAIR_KINDS:
            raise UsageError(f"Pairs of tokens are {', '.join(PAIR_KINDS)}; {in_quotes(str(of))} is none of them.")
        found = ((given, made, value) for kind, _, given, _, made, _, value in self._rows() if kind == of)
        return tables.strongest(found, count)

    def check(self) -> None:
        """Raise ValueError where a token has no text, or an example is not in its line."""
        reply = self.reply
        pairs = [(one.query, one.key) for one in (*reply.summed, *reply.mean)]
        pairs += [] if reply.circuit is None else [(one.given, one.made) for one in reply.circuit.pairs]
        named = {token for pair in pairs for token in pair}
        for one in reply.examples:
            line = reply.lines[one.line] if 0 <= one.line < len(reply.lines) else ()
            if not (0 <= one.key <= one.query < len(line) and len(one.weights) == one.query + 1 - one.first):
                raise ValueError("its examples are not those of its lines")
            named |= {line[one.key], *line[one.first : one.query + 1]}
        if not named <= self.spelled.keys():
            raise ValueError("its tokens have no texts")
        if reply.layer not in self.scores.layers or not 0 <= reply.head < self.scores.previous.shape[1]:
            raise ValueError("its scores are not those of its head")
        if not np.isfinite([weight for one in reply.examples for weight in one.weights]).all():
            raise ValueError("its weights are not numbers")

    @property
    def recipe(self) -> dict[str, Any]:
        """All that the page follows from: the lines, the circumstances of the passes, and the head."""
        asked = {"head": self.head, "top": self.request.top, "examples": self.request.examples}
        return {**super().recipe, **asked, "scores": self.scores.recipe}

    def _request_of(self, reply: HeadRead) -> ReadHead:
        return msgspec.structs.replace(self.request, lines=reply.lines)

    def __repr__(self) -> str:
        return f"Head {self.head} over {len(self.tokens)} prompts; scores {self.scores.over}"


def attention_of(pair: TokenPair, of: str) -> float:
    """Return the summed weights of a pair, or their mean."""
    return pair.summed if of == SUMMED else pair.summed / pair.count


@arguments.typed
def head(
    engine: RemoteEngine,
    name: str,
    /,
    over: object = None,
    *,
    top: int = result.STRONGEST,
    examples: int = 6,
    adapter: str | None = None,
) -> HeadPage:
    """Return the page of a head such as "5.1" (layer and head): its scores as `head_scores` has them by default, with
    its rank among all heads; what it attends to `over` prompts (as in `collect`); and its OV circuit. It has
    `top` pairs of tokens of each kind, and `examples`. `adapter` names an adapter to use. UsageError; UnknownSite where
    the layer has no attention patterns.

    >>> page = engine.head("5.1", over=["The capital of France is"])
    >>> page.head, len(page.circuit.pairs)
    ('5.1', 10)
    """
    layer, number = head_of(name)
    lines = () if over is None else tuple(runs.tokenized(engine.channel, runs.given_prompts(over)))
    request = ReadHead(session=ANY_SESSION, layer=layer, head=number, lines=lines, top=top, examples=examples)
    _require_head(engine, layer, number)
    scores = head_scores(engine, adapter=adapter)

    def first(read: HeadRead) -> HeadPage:
        return HeadPage(read, scores, msgspec.structs.replace(request, lines=read.lines))

    return first(likeness.answered(engine.channel, "head", request, PAGE, first, adapter=adapter))


def _require_head(engine: RemoteEngine, layer: int, head: int) -> None:
    """Raise UnknownSite for a head without patterns, before others are scored."""
    there = next((one for one in engine.description.points if one.point == "pattern" and one.layers), None)
    if there is None:
        raise UnknownSite("No layer of this model has attention patterns to read, so that no head has a page.")
    if layer not in (there.layers or ()) or head >= (there.heads or MOST_HEADS):
        raise UnknownSite(
            f"There is no head {layer}.{head}: layers {spans(there.layers or ())} have patterns, of {there.heads} "
            "heads each."
        )
