"""The values of a feature over a collection, read shard by shard: how often it is active, how strongly, and where.

8 bytes of each position are in memory, and no more than a shard besides.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from djinn_jupyter import files
from djinn_jupyter.api import arrays
from djinn_jupyter.errors import UsageError
from djinn_jupyter.link.channel import Channel, ask_for
from djinn_jupyter.link.waiting import far
from djinn_jupyter.methods.datasets.api.activations import STARTS, Activations
from djinn_jupyter.methods.features.request import EncodeFeatures, FeatureRead
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.base import Frozen
from djinn_jupyter.wire.modules import ModuleIdentity
from djinn_jupyter.wire.provenance import DIGESTS
from djinn_jupyter.wire.sites import parse_site

BINS, INTERVALS = 20, 5  # of the histogram; of values with examples of their own, each of some bins
OF_INTERVAL: Final = 2  # examples
PER_PROMPT: Final = 2  # of the largest
BEFORE, BEHIND = 12, 6  # tokens around an example
SENT: Final = 2**23  # bytes of rows that the engine encodes at a time

Column = NDArray[np.float32]


class FeatureExample(Frozen, frozen=True):
    """A position of a collection where a feature has this `value`: the `tokens` around it, from position `first` on,
    their `texts`, and the feature's `values` there, None where the collection has none. `interval` is the number of the
    interval of values that it stands for; None for one of the largest."""

    prompt: int
    position: int
    value: float
    first: int
    tokens: tuple[int, ...]
    texts: tuple[str, ...]
    values: tuple[float | None, ...]
    interval: int | None = None

    @property
    def text(self) -> str:
        """The token itself."""
        return self.texts[self.position - self.first]


class FeatureValues(Frozen, frozen=True):
    """A feature's values at `site` of the collection in `folder`, whose shards have this `digest`: `positions` of
    `prompts`, of which it is `active` at those above zero, with their `mean` and the `largest`. `counts` are the
    numbers of these between `edges`. `correlations` are those with the features like it, None where one never changes
    or is not known here. The first examples are the largest, at most two of a prompt; those of each interval of values
    follow. `notes` are sentences on the values."""

    folder: str
    digest: str
    site: str
    prompts: int
    positions: int
    active: int
    mean: float
    largest: float
    edges: tuple[float, ...]
    counts: tuple[int, ...]
    correlations: tuple[float | None, ...]
    examples: tuple[FeatureExample, ...]
    notes: tuple[str, ...] = ()

    @property
    def density(self) -> float:
        """The share of the positions where the feature is active."""
        return self.active / self.positions

    def require_fit(self, like: int) -> None:
        """Raise ValueError where its parts do not fit each other, or are not of so many features like it."""
        counted = (len(self.edges), sum(self.counts)) == (len(self.counts) + 1, self.active)
        if not counted or not 0 <= self.active <= self.positions or not self.positions:
            raise ValueError("its histogram is not that of its positions")
        if not self.largest > 0 and (self.active or self.examples):
            raise ValueError("its largest value is none of a feature that is active")
        if len(self.correlations) != like:
            raise ValueError("its correlations are not those of the features like it")
        if not all(map(_fits, self.examples)):
            raise ValueError("an example is not in its tokens")


def _fits(one: FeatureExample) -> bool:
    inside = one.first <= one.position < one.first + len(one.tokens)
    return inside and len(one.tokens) == len(one.texts) == len(one.values) and (one.interval or 0) in range(INTERVALS)


def digest_of(acts: Activations) -> str:
    """Return the digest of all shards: of their notes, and of their tensors where they have any."""
    told = [[files.of_note(shard.note), shard.digests] for shard in acts.shards]
    return hashlib.sha256(repr(told).encode()).hexdigest()


def over_collection(channel: Channel, session: str, acts: Activations, read: FeatureRead, count: int) -> FeatureValues:
    """Return the values of a feature over a collection, with `count` examples of the largest. UsageError where it has
    no such values; StorageFailed."""
    source = _Source.in_collection(acts, read)
    sums, columns = _Correlations(len(source.units) - 1), list[Column]()
    for rows in source.rows(channel, session, acts):
        sums.add(rows)
        columns.append(rows[:, 0].copy())
        far(f"{len(columns):,} of {len(acts.shards):,} shards")
    values = np.concatenate(columns)
    if not len(values):
        raise UsageError(f"The collection in {acts.folder} has no positions: collect some.")
    return _described(channel, acts, source, values, sums.found(), count)


def require_same(acts: Activations, read: FeatureRead) -> None:
    """Raise UsageError where a collection is of another model, or of another module of the feature's name."""
    made, here = acts.shards[0].made, read.made.by
    if any(getattr(made.by, name) != getattr(here, name) for name in ("architecture", *DIGESTS)):
        raise UsageError(
            f"The collection in {acts.folder} is of another model ({made.by.model}, {made.by.architecture}) than this "
            f"engine's ({here.model}, {here.architecture}): collect it again here."
        )
    [own] = read.made.modules
    other = next((one for one in made.modules if _site(one) == _site(own)), own)
    if (other.at, other.digest) != (own.at, own.digest):
        raise UsageError(
            f"The collection in {acts.folder} is of another module {_site(own)}, of {other.folder} at {other.at}; the "
            f"one here is of {own.folder} at {own.at}: collect it again."
        )


def _site(module: ModuleIdentity) -> str:
    return f"{module.name}.{parse_site(module.at).layer}"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Source:
    """The values of a feature, the first of `units`, and of those like it: in the columns `at` of a collected `site`,
    None for those that it lacks; or encoded by the engine from a site that the module reads."""

    site: str
    module: str
    units: tuple[int, ...]
    at: tuple[int | None, ...] | None

    @classmethod
    def in_collection(cls, acts: Activations, read: FeatureRead) -> _Source:
        units = (read.unit, *(one.feature for one in read.like))
        module = str(parse_site(read.site).whole())
        for site in acts.sites:
            parsed = parse_site(site)
            known = parsed.selector or range(read.features)
            if str(parsed.whole()) == module and read.unit in known:
                at = tuple(known.index(unit) if unit in known else None for unit in units)
                return cls(site=site, module=module, units=units, at=at)
        if read.at in acts.sites:
            return cls(site=read.at, module=module, units=units, at=None)
        raise UsageError(
            f"The collection in {acts.folder} has {', '.join(acts.sites)}, and neither {module} nor {read.at}, which "
            "that reads: collect one of these."
        )

    def rows(self, channel: Channel, session: str, acts: Activations) -> Iterator[Column]:
        """Yield the features of each shard, float32 [positions, units]; NaN for those that the collection lacks."""
        for rows in acts[self.site].by_shard():
            if self.at is None:
                yield self._encoded(channel, session, rows)
                continue
            found = np.full((len(rows), len(self.at)), np.nan, dtype=np.float32)
            there = {number: column for number, column in enumerate(self.at) if column is not None}
            found[:, list(there)] = rows[:, list(there.values())]
            yield found

    def _encoded(self, channel: Channel, session: str, rows: NDArray[Any]) -> Column:
        step = max(1, SENT // max(1, rows.shape[1] * rows.itemsize))
        found = [np.empty((0, len(self.units)), dtype=np.float32)]
        for at in range(0, len(rows), step):
            given = arrays.from_numpy(rows[at : at + step])
            asked = EncodeFeatures(session=session, site=self.module, units=self.units, values=given)
            found.append(arrays.shared_numpy(ask_for(channel, asked).values))
        return np.concatenate(found)


class _Correlations:
    """The sums from which the correlations of the first column with the others follow; rows with a number that is not
    finite are left out."""

    def __init__(self, others: int) -> None:
        self._count = 0
        self._sums = np.zeros((3, others + 1))  # of x, of its squares, of its products with the first column

    def add(self, rows: Column) -> None:
        wide = rows.astype(np.float64)
        known = wide[np.isfinite(wide[:, 0])]
        self._count += len(known)
        self._sums += np.stack([known.sum(0), np.square(known).sum(0), (known * known[:, :1]).sum(0)])

    def found(self) -> tuple[float | None, ...]:
        sums, squares, products = self._sums
        spread = self._count * squares - np.square(sums)
        with np.errstate(all="ignore"):
            each = (self._count * products - sums * sums[0]) / np.sqrt(spread * spread[0])
        return tuple(float(one.clip(-1, 1)) if np.isfinite(one) else None for one in each[1:])


@dataclass(frozen=True)
class _Places:
    """The places of the rows of a collection's values."""

    acts: Activations

    @cached_property
    def lengths(self) -> NDArray[np.int64]:
        """The number of tokens of each prompt."""
        return np.concatenate([np.diff(shard.tensor(STARTS)) for shard in self.acts.shards])

    @cached_property
    def ends(self) -> NDArray[np.int64]:
        """The row behind the last one of each prompt."""
        kept = self.acts.positions
        return np.cumsum(self.lengths if kept is None else np.full(len(self.lengths), len(kept)))

    def of(self, row: int) -> tuple[int, int]:
        """Return the prompt and the position of a row."""
        prompt = int(np.searchsorted(self.ends, row, side="right"))
        at, kept = row - self._begin(prompt), self.acts.positions
        return prompt, int(at if kept is None else kept[at] % self.lengths[prompt])

    def rows(self, prompt: int, first: int, last: int) -> dict[int, int]:
        """Return the rows of those positions of a prompt from `first` to `last` that have one."""
        kept, begin = self.acts.positions, self._begin(prompt)
        every = range(self.lengths[prompt]) if kept is None else [at % self.lengths[prompt] for at in kept]
        return {int(at): begin + row for row, at in enumerate(every) if first <= at <= last}

    def _begin(self, prompt: int) -> int:
        return int(self.ends[prompt - 1]) if prompt else 0


def _described(
    channel: Channel,
    acts: Activations,
    source: _Source,
    values: Column,
    correlations: tuple[float | None, ...],
    count: int,
) -> FeatureValues:
    known = np.isfinite(values)
    rows = np.flatnonzero(known & (values > 0))
    active = values[rows].astype(np.float64)
    largest = float(active.max(initial=0.0))
    edges = np.linspace(0, largest or 1.0, BINS + 1)
    places, ordered = _Places(acts), rows[np.argsort(-active, kind="stable")]
    chosen: list[tuple[int, int | None]] = [(row, None) for row in _best(places, ordered, count)]
    for interval, of_interval in enumerate(_in_intervals(places, values, ordered, edges, {row for row, _ in chosen})):
        chosen += [(row, interval) for row in of_interval]
    return FeatureValues(
        folder=str(acts.folder),
        digest=digest_of(acts),
        site=source.site,
        prompts=len(acts),
        positions=len(values),
        active=len(rows),
        mean=float(active.mean()) if len(rows) else 0.0,
        largest=largest,
        edges=tuple(edges.tolist()),
        counts=tuple(np.histogram(active, edges)[0].tolist()),
        correlations=correlations,
        examples=tuple(_example(channel, acts, places, values, row, interval) for row, interval in chosen),
        notes=tuple(_notes(acts, source, int((~known).sum()))),
    )


def _best(places: _Places, ordered: NDArray[np.int64], count: int) -> list[int]:
    """Return the first rows in this order: at most two of a prompt, and none among the tokens around another."""
    found: list[int] = []
    taken: dict[int, list[int]] = {}
    for row in ordered.tolist():
        if len(found) >= count:
            break
        prompt, position = places.of(row)
        there = taken.setdefault(prompt, [])
        if len(there) < PER_PROMPT and all(not -BEHIND <= position - at <= BEFORE for at in there):
            there.append(position)
            found.append(row)
    return found


def _in_intervals(
    places: _Places, values: Column, ordered: NDArray[np.int64], edges: NDArray[np.float64], shown: set[int]
) -> Iterator[list[int]]:
    """Yield rows of each interval of values, evenly among those in it, the lowest interval first."""
    numbers = np.digitize(values[ordered].astype(np.float64), edges[:: BINS // INTERVALS]) - 1
    for interval in range(INTERVALS):
        there = [row for row in ordered[numbers.clip(0, INTERVALS - 1) == interval].tolist() if row not in shown]
        at = np.linspace(0, len(there) - 1, OF_INTERVAL + 2)[1:-1].round().astype(int) if there else ()
        yield [there[number] for number in sorted(set(at))]


def _example(
    channel: Channel, acts: Activations, places: _Places, values: Column, row: int, interval: int | None
) -> FeatureExample:
    prompt, position = places.of(row)
    first = max(0, position - BEFORE)
    tokens = tuple(acts.tokens[prompt][first : position + BEHIND + 1].tolist())
    rows = places.rows(prompt, first, position + BEHIND)
    return FeatureExample(
        prompt=prompt,
        position=position,
        value=float(values[row]),
        first=first,
        tokens=tokens,
        texts=ask_for(channel, ask.Detokenize(tokens=tokens)).texts,
        values=tuple(_number(values[rows[at]]) if at in rows else None for at in range(first, first + len(tokens))),
        interval=interval,
    )


def _number(value: np.float32) -> float | None:
    return float(value) if np.isfinite(value) else None


def _notes(acts: Activations, source: _Source, unknown: int) -> Iterator[str]:
    """Yield sentences on what the values are of."""
    dtype = acts[source.site].dtype.name
    if source.at is None:
        yield f"Computed by the module from {source.site}, stored as {dtype}."
    elif dtype != "float32":
        yield f"Stored as {dtype}."
    if not acts.complete:
        yield "The collection is not complete: shards are missing at its end."
    if acts.shards[0].made.adapter is not None:
        yield f"Collected with the adapter {acts.shards[0].made.adapter.name}."
    if unknown:
        yield f"{unknown:,} values are not finite, and are left out."
