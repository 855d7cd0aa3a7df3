"""The parts of one attention score by the outputs of earlier layers, heads and features."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import msgspec
import numpy as np

from djinn_jupyter.api import arguments, likeness, result, tables
from djinn_jupyter.api.patches import Positions
from djinn_jupyter.api.session import RemoteSession
from djinn_jupyter.errors import UsageError
from djinn_jupyter.methods.heads.api import head_of
from djinn_jupyter.methods.why.request import ExplainScore, ScoreExplained
from djinn_jupyter.wire.readings import ScoreSide
from djinn_jupyter.wire.texts import in_quotes

WORK: Final = "The explanation of the score"
CONSTANT, REST = "constant", "rest"
ROW: Final = ("at", "position", "part", "point", "layer", "unit", "value")


class ScoreParts(result.Result):
    """The parts of a head's score for a query and a key: `by_key` with the query held, `by_query` with the key held,
    both with the scales of norms held. In each the parts of all earlier outputs at that position, the `constant`
    (biases of norm and map) and the `rest` (rules, rounding) sum to `score`: the product of query and key times
    `scale`, before a soft-cap, a bias of positions and a mask. `given` is what the softmax gets, and `weight` what it
    returns. `values`, float64, are all of them, in the order of `columns()`."""

    _view = "score_view"
    ending = ".why.djinn"
    named = "file of the parts of a score"
    _tabled = True
    reply: ScoreExplained
    request: ExplainScore

    def __post_init__(self) -> None:
        reply = self.reply
        self.head = f"{self.request.layer}.{self.request.head}"
        self.tokens = self._lines = (reply.tokens,)
        self.texts, self.query, self.key, self.notes = reply.texts, reply.query, reply.key, reply.notes
        self.score, self.scale, self.given, self.weight = reply.score, reply.scale, reply.given, reply.weight
        self.by_key, self.by_query = reply.by_key, reply.by_query
        self.values = np.array([row[-1] for row in self._rows()], dtype=np.float64)

    def _rows(self) -> Iterator[tuple[Any, ...]]:
        for at, position, side in (("key", self.key, self.by_key), ("query", self.query, self.by_query)):
            for one in side.parts:
                name = part_name(one.point, one.layer, one.unit)
                yield at, position, name, one.point, one.layer, one.unit, one.value
            yield at, position, CONSTANT, CONSTANT, None, None, side.constant
            yield at, position, REST, REST, None, None, side.rest

    @arguments.typed
    def side(self, at: str) -> ScoreSide:
        """Return the parts at the "key" or the "query". UsageError."""
        if at not in ("key", "query"):
            raise UsageError(f'A score has parts at its "key" and at its "query"; {in_quotes(at)} is none.')
        return self.by_key if at == "key" else self.by_query

    def check(self) -> None:
        """Raise ValueError where the positions are not those of the tokens."""
        length = len(self.reply.tokens)
        if len(self.reply.texts) != length or not (0 <= self.key <= self.query < length):
            raise ValueError("its positions are not those of its tokens")

    def columns(self) -> dict[str, list[Any]]:
        """Return all parts as lists by column: at the key or the query, the position, the name of the part, its point,
        layer and head or feature (None where not applicable), and the value. The values of each side sum to the
        score; its last two are the constant and the rest."""
        return tables.in_columns(ROW, list(self._rows()))

    def place_of(self, index: tuple[int, ...]) -> dict[str, Any]:
        """Return the side and the name of the part at this index."""
        table = self.columns()
        return {name: table[name][index[0]] for name in ("at", "part")}

    @arguments.typed
    def top(self, count: int = result.STRONGEST, at: str | None = None) -> list[tuple[str, str, float]]:
        """Return (side, part, value) of the parts of largest magnitude, on both sides or `at` one: "key" or "query".
        UsageError.

        >>> session.run("The capital of France is", max_new_tokens=1, free=True).text
        ' Paris'
        >>> [part for at, part, value in session.why("5.1", query=-1, key=3).top(2)]
        ['mlp_out.4', 'z.2[1]']
        """
        if at is not None:
            self.side(at)
        rows = ((side, name, row[-1]) for side, _, name, *row in self._rows() if name not in (CONSTANT, REST))
        return tables.strongest((row for row in rows if at in (None, row[0])), count)

    @property
    def recipe(self) -> dict[str, Any]:
        """All that the parts follow from: the circumstances of the pass, and the head, the positions and the SAE."""
        asked = {"head": self.head, "query": self.query, "key": self.key, "features": self.request.features}
        return {**super().recipe, **asked}

    def _request_of(self, reply: ScoreExplained) -> ExplainScore:
        return msgspec.structs.replace(self.request, line=reply.tokens)

    def __repr__(self) -> str:
        pair = f"{self.query} {self.texts[self.query]!r} to {self.key} {self.texts[self.key]!r}"
        return f"Score of head {self.head} from position {pair}: {self.score:+.4f}, weight {self.weight:.4f}"


def part_name(point: str, layer: int | None, unit: int | None) -> str:
    """Return the name of a part: z.5[3], mlp_out.2, embed, sae.4[17] or sae.4 error."""
    module, _, kind = point.partition(" ")
    name = module if layer is None else f"{module}.{layer}"
    return f"{name}{'' if unit is None else f'[{unit}]'}{f' {kind}' if kind else ''}"


@arguments.typed
def why(
    session: RemoteSession,
    /,
    head: str,
    *,
    key: Positions,
    query: Positions = -1,
    features: str | None = None,
) -> ScoreParts:
    """Return why a head, such as "5.1" (layer and head), attends from a `query` position of the session's line to a
    `key` position: the parts of that score by what each earlier head, MLP and embedding wrote at the key, and at the
    query. They are exact sums, with the scales of the norms in between held. `features` names an SAE of the residual
    stream, such as "sae.4", whose features replace all outputs before it. The pass runs on the side, under the
    session's steering rules. UsageError where edits were made at its stops; UnknownSite where a score is no such sum.

    >>> done = session.run("The capital of France is", max_new_tokens=1, free=True)
    >>> parts = session.why("5.1", query=-1, key=3)
    >>> table = parts.columns()
    >>> at_key = [v for at, v in zip(table["at"], table["value"]) if at == "key"]
    >>> abs(sum(at_key) - parts.score) < 1e-9
    True
    """
    layer, number = head_of(head)
    at = {name: _one(session, name, given) for name, given in (("query", query), ("key", key))}
    request = ExplainScore(
        session="why", line=session.name, layer=layer, head=number, rules_of=session.name, features=features, **at
    )
    reply = likeness.answered(session.channel, "why", request, WORK)
    kept = {"query": reply.query, "key": reply.key, "line": reply.tokens, "rules_of": None}
    return ScoreParts(reply, msgspec.structs.replace(request, **kept))


def _one(session: RemoteSession, name: str, given: Positions) -> int:
    found = session.spelled(given)
    if found is None or len(found) != 1:
        raise UsageError(f"A score has one {name} position, such as {name}=-1.")
    return found[0]
