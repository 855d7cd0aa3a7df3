"""Collect activations: prompts in, shards out, one request a shard. The engine computes them, and writes them where it
is on this machine; one that is reached over a line hands them over."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Final, TypeVar

from djinn_jupyter.client.arguments import checked_seed, typed
from djinn_jupyter.client.connection.channel import Channel
from djinn_jupyter.client.connection.following import followed
from djinn_jupyter.client.engine import RemoteEngine
from djinn_jupyter.client.given_paths import given_path
from djinn_jupyter.client.interrupts import interruptible
from djinn_jupyter.client.positions import Positions, no_ends, spell_positions
from djinn_jupyter.client.prompts import given_prompts, of_how_many, tokenized
from djinn_jupyter.client.temporary import temporary_session
from djinn_jupyter.client.waiting import far
from djinn_jupyter.errors import EngineError, IllegalMove, SlabFull, UnknownSession, UsageError
from djinn_jupyter.methods.common.api.checking import CheckedEngine, Question, engines_of_one_model, require_all
from djinn_jupyter.methods.common.api.spreading import Tell, spread
from djinn_jupyter.methods.datasets.api import handed_over
from djinn_jupyter.methods.datasets.api.activations import Activations
from djinn_jupyter.methods.datasets.request.collecting import (
    MOST_PROMPTS,
    CheckCollect,
    Collect,
    CollectionProgressed,
    StoredDtype,
    shard_name,
)
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.nouns import Mode

SHARD_BYTES: Final = 64 * 2**20  # about; a shard's values lie in memory until it is written
SHARD_TOKENS: Final = 2**18
SHARD_PROMPTS: Final = 4096
ENDS_DIFFER: Final = (
    "Prompts differ in length: name both ends of a range, both from the front or both from the end, as 1:5."
)
_COMMA: Final = re.compile(r",(?![^\[]*\])")  # outside of a selector

OnCollected = Callable[[int], None]
Prompts = tuple[tuple[int, ...], ...]
RequestIn = Callable[[str], Collect]
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class Collection:
    """A collection to make. `shard_prompts` bounds the prompts of a shard; a finished collection is continued only with
    the same."""

    sites: tuple[str, ...]
    folder: Path
    positions: tuple[int, ...] | None
    dtype: StoredDtype | None
    shard_prompts: int | None
    mode: Mode
    seed: int
    adapter: str | None = None

    def shards(self, prompts: Iterable[tuple[int, ...]], width: int) -> Iterator[Prompts]:
        """Yield the prompts of each shard. The request alone decides the cuts, so that a collection that goes on has
        the same ones."""
        here: list[tuple[int, ...]] = []
        rows = tokens = 0
        for prompt in prompts:
            more = len(prompt) if self.positions is None else len(self.positions)
            if here and self._is_full(len(here), (rows + more) * width, tokens + len(prompt)):
                yield tuple(here)
                here, rows, tokens = [], 0, 0
            here.append(prompt)
            rows, tokens = rows + more, tokens + len(prompt)
        if here:
            yield tuple(here)

    def _is_full(self, prompts: int, values: int, tokens: int) -> bool:
        if self.shard_prompts is not None:
            return prompts >= self.shard_prompts
        return prompts >= SHARD_PROMPTS or tokens > SHARD_TOKENS or 4 * values * len(self.sites) > SHARD_BYTES


@typed
def collect(
    engine: RemoteEngine,
    /,
    prompts: object,
    sites: str | Sequence[str],
    *,
    to: str | Path,
    positions: Positions = None,
    dtype: StoredDtype | None = None,
    shard_prompts: int | None = None,
    mode: Mode = "fast",
    seed: int = 0,
    adapter: str | None = None,
    beside: Sequence[RemoteEngine] = (),
    on_progress: OnCollected | None = None,
) -> Activations:
    """Write the values at `sites` (as "resid_post.4" or "z.*") of all prompts to the folder `to` of this machine,
    wherever the engine is, and return them, to be read lazily. Prompts are texts or token ids, or a pathlib.Path of
    a file with one a line, `.json` or `.jsonl`. `positions` are those kept of each prompt, by default all; `dtype`
    is as computed. `fast` runs many prompts in a pass and some of them, chosen by `seed`, again alone; `exact` runs
    each alone, as do all with the `adapter` of this name. Where the folder has shards of this very collection, it
    goes on after them. Other engines of the model `beside` this one each take a shard at a time, once all have said
    that they would. `on_progress` is called with the prompts done. UsageError where the folder has another
    collection.

    >>> prompts = ["The capital of France is", "The capital of Italy is"]
    >>> acts = engine.collect(prompts, ["resid_post.4", "z.2"], to=folder, positions=-1)
    >>> acts["resid_post.4"].shape, acts["z.2"].shape
    ((2, 128), (2, 4, 32))
    """
    engines = engines_of_one_model(engine, beside)
    asked = Collection(
        sites=_spelled(sites, engine.description.layers),
        folder=given_path(to, "folder"),
        positions=spell_positions(positions, no_ends(UsageError(ENDS_DIFFER))),
        dtype=dtype,
        shard_prompts=_checked(shard_prompts),
        mode=mode,
        seed=checked_seed(seed),
        adapter=adapter,
    )
    kept = f"Whole shards are kept in {asked.folder}; the same call goes on after them."
    quiet = on_progress is not None
    with interruptible("The collection", lambda: (kept, None), quiet=quiet), _ended_with(kept):
        work = CollectionWork(asked, on_progress or (lambda done: None), of_how_many(prompts))
        _collect(engines, work, tokenized(engine.channel, given_prompts(prompts)))
    return Activations(asked.folder)


def _collect(engines: Sequence[RemoteEngine], work: CollectionWork, prompts: Iterable[tuple[int, ...]]) -> None:
    """Have the shards of the prompts written; several engines, which are all asked first, each write one at a time."""
    channel = engines[0].channel
    requests = _requests(work.asked, work.asked.shards(prompts, channel.welcome.model.hidden_size))
    first = next(requests, None)
    if first is None:
        raise UsageError("There are no prompts to collect from.")
    requests = chain([first], requests)
    if len(engines) > 1:
        _spread(engines, work, [*requests])
    else:
        _in_order(channel, work, requests)


@contextmanager
def _ended_with(kept: str) -> Iterator[None]:
    """Have an engine that ends, a session that is closed and memory that runs out say what is kept."""
    try:
        yield
    except (EngineError, IllegalMove, SlabFull) as error:
        ended = type(error)(f"{error} {kept}")
        ended.request = error.request
        raise ended from error


def _requests(asked: Collection, shards: Iterator[Prompts]) -> Iterator[RequestIn]:
    """Yield the request for each shard, in a session that is named later."""
    following, number, first = next(shards, None), 0, 0
    while following is not None:
        here, following = following, next(shards, None)
        yield partial(shard_request, asked, prompts=here, shard=number, first=first, last=following is None)
        number, first = number + 1, first + len(here)


def _in_order(channel: Channel, work: CollectionWork, requests: Iterator[RequestIn]) -> None:
    """Have one shard after the other written."""
    waiting = deque(islice(requests, 1))

    def go_on(session: str) -> None:
        while waiting:
            work.collect(channel, waiting[0](session))
            waiting.popleft()
            waiting.extend(islice(requests, 1))

    _in_session(channel, work.asked.adapter, go_on)


def _in_session(channel: Channel, adapter: str | None, go_on: Callable[[str], Result]) -> Result:
    """Go on in a temporary session. The next engine at an address, which does not know it, has another one opened."""
    while True:
        engine = channel.welcome.engine
        try:
            with temporary_session(channel, "collection", adapter) as session:
                return go_on(session)
        except UnknownSession:
            if channel.welcome.engine == engine:
                raise  # another closed it


def _spread(engines: Sequence[CheckedEngine], work: CollectionWork, requests: Sequence[RequestIn]) -> None:
    """Have each shard written by whichever engine is free. Raises the error of one that failed."""
    first = requests[0]("collection")
    require_all(engines, "collection", lambda engine: work.question(engine.channel, first))
    outcome = spread([one.channel for one in engines], [_ShardOfMany(work, request) for request in requests])
    if outcome.interrupted:
        raise KeyboardInterrupt
    if outcome.error is not None:
        raise outcome.error


def shard_request(asked: Collection, session: str, prompts: Prompts, *, shard: int, first: int, last: bool) -> Collect:
    """Return the request for one shard."""
    return Collect(
        session=session,
        folder=str(asked.folder),
        shard=shard,
        first=first,
        last=last,
        prompts=prompts,
        sites=asked.sites,
        positions=asked.positions,
        dtype=asked.dtype,
        mode=asked.mode,
        seed=asked.seed,
    )


@dataclass(slots=True)
class CollectionWork:
    """A collection under way: how many prompts of each shard are done."""

    asked: Collection
    on_progress: OnCollected
    of: str = ""
    done: dict[int, int] = field(default_factory=dict)

    def collect(self, channel: Channel, request: Collect, tell: Tell = lambda show: show()) -> Path:
        """Have one shard computed and written, or found to be there, and return its file."""
        request = self.asked_of(channel, request)
        with followed(channel, request.session, request) as shard:
            for event in shard.events():
                if isinstance(event, CollectionProgressed):
                    self._note(request.shard, event.done, tell)
            collected = shard.reply.result()
        path = self._path(request)
        if channel.is_afar:
            handed_over.keep(collected, path, request)
        self._note(request.shard, len(request.prompts), tell)
        return path

    def asked_of(self, channel: Channel, request: Collect) -> Collect:
        """Return the request as this engine is asked it: over a line without the folder."""
        return handed_over.handing_over(request, self._path(request)) if channel.is_afar else request

    def question(self, channel: Channel, request: Collect) -> Question:
        """Return the question whether this engine would begin with the request."""
        asked = self.asked_of(channel, request)
        return Question(request=asked, check=CheckCollect, adapter=self.asked.adapter)

    def _path(self, request: Collect) -> Path:
        return self.asked.folder / shard_name(request.shard)

    def _note(self, shard: int, done: int, tell: Tell) -> None:
        self.done[shard] = done
        total = sum(self.done.values())
        far(f"{total:,}{self.of} prompts")
        tell(lambda: self.on_progress(total))


@dataclass(slots=True, eq=False)
class _ShardOfMany:
    """A shard that is written by whichever engine is free."""

    work: CollectionWork
    request_in: RequestIn
    under_way: tuple[Channel, str] | None = None

    def run(self, engine: Channel, tell: Tell) -> Path:
        def go_on(session: str) -> Path:
            self.under_way = engine, session
            return self.work.collect(engine, self.request_in(session), tell)

        return _in_session(engine, self.work.asked.adapter, go_on)

    def end(self) -> None:
        if self.under_way is not None:
            channel, session = self.under_way
            channel.ask(ask.Close(session=session))


def _spelled(sites: str | Sequence[str], layers: int) -> tuple[str, ...]:
    """Return sites by their names; `resid_post.*` is that of every layer."""
    names = [name.strip() for name in (_COMMA.split(sites) if isinstance(sites, str) else map(str, sites))]
    found: list[str] = []
    for name in names:
        point, star, selector = name.partition(".*")
        found += [f"{point}.{layer}{selector}" for layer in range(layers)] if star else [name]
    if not found or "" in found:
        raise UsageError("A collection needs sites, such as resid_post.4 or z.*.")
    return tuple(found)


def _checked(shard_prompts: int | None) -> int | None:
    if shard_prompts is not None and not 1 <= shard_prompts <= MOST_PROMPTS:
        raise UsageError(f"A shard has 1 to {MOST_PROMPTS:,} prompts, not {shard_prompts}.")
    return shard_prompts
