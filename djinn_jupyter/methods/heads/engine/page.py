"""Answers ReadHead: what one head attends to over sequences, a pass for each, and its OV circuit.

Shapes: T positions, H heads, K keys (as many as positions), D features; P pairs of positions, U different pairs of
tokens.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import Final

import torch
from torch import Tensor

from djinn_jupyter.engine.loop.mailbox import Holder
from djinn_jupyter.engine.model.hooks.taps import Tap
from djinn_jupyter.engine.passes.controller import Unmarked
from djinn_jupyter.engine.passes.forward import device_memory_for
from djinn_jupyter.engine.passes.site_value import SiteValue
from djinn_jupyter.engine.passes.weight_reader import WeightReader
from djinn_jupyter.engine.requests.bounds import prompts_of, require_empty
from djinn_jupyter.engine.requests.handlers import MethodParts, handles
from djinn_jupyter.engine.residency.workspace import Reservation
from djinn_jupyter.engine.session import queries, residence, run
from djinn_jupyter.engine.session.runtime import Runtime
from djinn_jupyter.engine.session.session import Session
from djinn_jupyter.errors import SlabFull, UnknownSite, UsageError
from djinn_jupyter.methods.heads.engine.circuit import PROBES, HeadCircuit
from djinn_jupyter.methods.heads.request import HeadExample, HeadRead, OVCircuit, ReadHead, TokenPair
from djinn_jupyter.wire import looks
from djinn_jupyter.wire.sites import Site
from djinn_jupyter.wire.weights import WeightName

WINDOW: Final = 48  # positions of an example, up to its query
LOOKED_AT: Final = 512  # of the largest weights of a line, for its strongest pairs of tokens
MOST_KINDS: Final = 4 << 20  # different pairs of tokens; each takes 24 bytes, and as many while they are summed
TWICE: Final = 2  # a mean is of this many weights at least

FULL: Final = "The first {lines:,} lines are read: they have more than {most:,} different pairs of tokens."

Lines = Sequence[tuple[int, ...]]


@dataclass(slots=True, kw_only=True)
class HeadWeights(Unmarked):
    """Keeps the weights of one head, float64 [T, K] on the host."""

    tap: Tap
    head: int
    weights_TK: Tensor | None = None

    def observe(self, site_value: SiteValue) -> None:
        pattern_TK = site_value.value[:, self.head, : site_value.rows].detach()
        self.weights_TK = pattern_TK.to("cpu").double()


@dataclass(slots=True, kw_only=True)
class RowsSeen(Unmarked):
    """Keeps what enters the first layer at the first positions, [T, D]."""

    tap: Tap
    value_TD: Tensor | None = None

    def observe(self, site_value: SiteValue) -> None:
        self.value_TD = site_value.value[:PROBES].detach().to("cpu", copy=True)


@dataclass(slots=True)
class PairSums:
    """The sums of weights by pair of tokens: `codes` [U], sorted, the query's token times the vocabulary plus the
    key's, with `counts` and `sums`. Pairs of new lines wait until they are as many, so that each is sorted few
    times."""

    vocabulary: int
    codes: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.long))
    counts: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.long))
    sums: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.float64))
    _waiting: list[tuple[Tensor, Tensor, Tensor]] = field(default_factory=list)

    def add(self, codes_P: Tensor, weights_P: Tensor) -> None:
        """Add the weights at pairs of positions."""
        self._waiting.append(_summed([(codes_P, torch.ones_like(codes_P), weights_P)]))
        if sum(len(codes) for codes, *_ in self._waiting) > max(len(self.codes), 1 << 18):
            self.settle()

    def settle(self) -> None:
        """Add those that wait."""
        parts = [(self.codes, self.counts, self.sums), *self._waiting]
        self.codes, self.counts, self.sums = _summed(parts)
        self._waiting.clear()

    @property
    def kinds(self) -> int:
        """The number of different pairs that are held, those that wait counted by themselves."""
        return len(self.codes) + sum(len(codes) for codes, *_ in self._waiting)

    def top(self, top: int, *, mean: bool) -> tuple[TokenPair, ...]:
        """Return the pairs with the largest sums, or the largest means of those met at least twice."""
        numbers = torch.where(self.counts >= TWICE, self.sums / self.counts, -1.0) if mean else self.sums
        order = numbers.nan_to_num(-1.0).argsort(descending=True, stable=True)[:top].tolist()
        return tuple(self._pair(at) for at in order if numbers[at] > 0)

    def _pair(self, at: int) -> TokenPair:
        query, key = divmod(int(self.codes[at]), self.vocabulary)
        return TokenPair(query=query, key=key, count=int(self.counts[at]), summed=float(self.sums[at]))


def _summed(parts: Sequence[tuple[Tensor, Tensor, Tensor]]) -> tuple[Tensor, Tensor, Tensor]:
    codes, counts, sums = (torch.cat(each) for each in zip(*parts, strict=True))
    found, places = codes.unique(return_inverse=True)
    return (
        found,
        torch.zeros_like(found).index_add_(0, places, counts),
        torch.zeros(len(found), dtype=torch.float64).index_add_(0, places, sums),
    )


class HeadAttention:
    """The attention of a head, line by line."""

    def __init__(self, weights: HeadWeights, vocabulary: int, examples: int) -> None:
        self.weights, self.pairs, self._most = weights, PairSums(vocabulary), examples
        self.queries, self._first = 0, 0.0
        self._strongest: dict[int, HeadExample] = {}

    def add(self, number: int, tokens: tuple[int, ...]) -> None:
        """Add the weights of a line that has just run."""
        weights_TK = self.weights.weights_TK
        assert weights_TK is not None
        self.queries += len(tokens) - 1
        self._first += float(weights_TK[1:, 0].sum())
        query_P, key_P = torch.ones_like(weights_TK, dtype=torch.bool).tril().nonzero().unbind(1)
        behind = key_P > 0
        query_P, key_P = query_P[behind], key_P[behind]
        ids = torch.tensor(tokens)
        codes_P, weights_P = ids[query_P] * self.pairs.vocabulary + ids[key_P], weights_TK[query_P, key_P]
        self.pairs.add(codes_P, weights_P)
        for at in weights_P.nan_to_num(-1.0).argsort(descending=True, stable=True)[:LOOKED_AT].tolist():
            self._keep_strongest(number, int(codes_P[at]), int(query_P[at]), int(key_P[at]))
        kept = heapq.nlargest(self._most, self._strongest.items(), key=lambda one: one[1].weight)
        self._strongest = dict(kept)

    def _keep_strongest(self, number: int, code: int, query: int, key: int) -> None:
        """Keep a weight that is a number and the strongest of its pair of tokens so far."""
        assert self.weights.weights_TK is not None
        weight, known = float(self.weights.weights_TK[query, key]), self._strongest.get(code)
        if math.isnan(weight) or (known is not None and known.weight >= weight):
            return
        first = max(0, query + 1 - WINDOW)
        weights = tuple(self.weights.weights_TK[query, first : query + 1].tolist())
        self._strongest[code] = HeadExample(
            line=number, query=query, key=key, weight=weight, first=first, weights=weights
        )

    @property
    def first_share(self) -> float | None:
        return self._first / self.queries if self.queries else None

    @property
    def examples(self) -> tuple[HeadExample, ...]:
        """The strongest first; of equal ones the earliest."""
        return tuple(sorted(self._strongest.values(), key=lambda one: (-one.weight, one.line, one.query, one.key)))


class HeadPageRequests:
    def __init__(self, parts: MethodParts) -> None:
        self._parts, self._runtime, self._workspace = parts, parts.runtime, parts.workspace("head")

    @handles(ReadHead)
    def read_head(self, request: ReadHead, session: Session, holder: Holder) -> residence.Steps[HeadRead]:
        require_empty(session, "read a head", "engine.head")
        lines = prompts_of(self._parts.sessions, self._runtime.description, request.lines)
        runtime = self._runtime.of(session)
        tap = runtime.resolve(Site(point="pattern", layer=request.layer))
        require_head(tap, request.head)
        return self._steps(request, runtime, session, lines, HeadWeights(tap=tap, head=request.head))

    def _steps(
        self, request: ReadHead, runtime: Runtime, session: Session, lines: Lines, weights: HeadWeights
    ) -> residence.Steps[HeadRead]:
        attention = HeadAttention(weights, runtime.description.vocab_size, request.examples)
        made = self._parts.circumstances(session)
        notes: tuple[str, ...] = ()
        with (
            device_memory_for("the attention patterns of a line", "Close sessions, or give shorter lines."),
            self._workspace.opened(session) as room,
        ):
            for number, tokens in enumerate(lines):
                run.publish_progress(runtime, session, "reading the head", number, len(lines), "lines")
                if attention.pairs.kinds > MOST_KINDS:
                    notes = (FULL.format(lines=number, most=MOST_KINDS),)
                if notes or (number and session.progress.can_end()):
                    lines = lines[:number]
                    break
                yield from room.take(len(tokens) ** 2 * (2 * (weights.tap.heads or 1) * 4 + 40))
                yield from queries.run_line(runtime, session, tokens, observers=[weights])
                attention.add(number, tokens)
                room.give_back(room.held)
                yield None
            attention.pairs.settle()
            circuit, unread = yield from self._circuit(request, runtime, session, room)
        return _reply(request, runtime, lines, attention, circuit, unread, made, notes)

    def _circuit(
        self, request: ReadHead, runtime: Runtime, session: Session, room: Reservation
    ) -> Generator[residence.Blocked | None, None, tuple[OVCircuit | None, str]]:
        """Return the head's OV circuit, or None with the reason."""
        reading = HeadCircuit(runtime.forward, request.layer, request.head, runtime.description.vocab_size)

        def publish() -> None:
            run.publish_progress(runtime, session, "reading the OV circuit", reading.done, reading.total, "blocks")

        try:
            yield from room.take(reading.nbytes)
            steps = reading.read(request.top, (yield from _entered(runtime, session)))
            publish()
            return (yield from residence.counted(steps, publish)), ""
        except (UnknownSite, UsageError, SlabFull) as error:
            return None, str(error)


def require_head(tap: Tap, head: int) -> None:
    """Raise UnknownSite where a layer has no head of this number; `tap` is a point of its heads."""
    layer, heads = tap.site.layer, tap.heads or 1
    if head >= heads:
        raise UnknownSite(f"There is no head {layer}.{head}: layer {layer} has heads 0 to {heads - 1}.")


def _entered(runtime: Runtime, session: Session) -> Generator[residence.Blocked | None, None, list[tuple[int, Tensor]]]:
    """Return a few tokens, each with what it is before the first layer, the row of its position subtracted."""
    tokens = tuple(range(min(PROBES, runtime.description.vocab_size)))
    seen = RowsSeen(tap=runtime.resolve(Site(point="resid_pre", layer=0)))
    yield from queries.run_line(runtime, session, tokens, observers=[seen])
    assert seen.value_TD is not None
    if not isinstance(runtime.forward.anatomy.positions, str):
        rows = WeightReader(runtime.forward).read(WeightName(name="W_pos"), range(len(tokens)), None, fold_norm=False)
        seen.value_TD = seen.value_TD - rows.cpu()
    return list(zip(tokens, seen.value_TD, strict=True))


def _reply(
    request: ReadHead,
    runtime: Runtime,
    lines: Lines,
    attention: HeadAttention,
    circuit: OVCircuit | None,
    unread: str,
    made: looks.Circumstances,
    notes: tuple[str, ...],
) -> HeadRead:
    summed, mean = (attention.pairs.top(request.top, mean=mean) for mean in (False, True))
    named = [token for one in (*summed, *mean) for token in (one.query, one.key)]
    for one in attention.examples:
        line = lines[one.line]
        named += [line[one.key], *line[one.first : one.query + 1]]
    named += [token for pair in (circuit.pairs if circuit else ()) for token in (pair.given, pair.made)]
    return HeadRead(
        layer=request.layer,
        head=request.head,
        lines=tuple(lines),
        queries=attention.queries,
        first_share=attention.first_share,
        summed=summed,
        mean=mean,
        examples=attention.examples,
        circuit=circuit,
        unread=unread,
        spelled=tuple((token, runtime.tokenizer.text_of(token)) for token in dict.fromkeys(named)),
        made=made,
        notes=notes,
    )
