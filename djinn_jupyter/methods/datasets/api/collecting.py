"""Collections, their shards on this machine, and shards received from a remote engine, written atomically and found
again.

The engine gets no path. The name of a file is this side's own, and data from the engine is kept only if it is the
requested shard.
"""

from __future__ import annotations

import bisect
import json
import re
import secrets
import shutil
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate, chain, islice, pairwise
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from djinn_jupyter import errors
from djinn_jupyter.api import arguments, interrupts, likeness, runs
from djinn_jupyter.api.engine import RemoteEngine
from djinn_jupyter.api.patches import Positions, no_ends, spell_positions
from djinn_jupyter.api.result_files import SHARED, BitComparison, Reproduction, naming_models, origin_lines
from djinn_jupyter.files import WRITTEN, require_writable, told_of_disk, written_alone
from djinn_jupyter.link.channel import Channel, followed
from djinn_jupyter.link.waiting import far
from djinn_jupyter.methods.common.api import Question, Tell, engines_of_one_model, require_all, spread
from djinn_jupyter.methods.datasets.api.activations import Activations, ShardFile
from djinn_jupyter.methods.datasets.request import (
    MOST_PROMPTS,
    STAYS,
    CheckCollect,
    Collect,
    Collected,
    CollectionProgressed,
    StoredDtype,
    shard_name,
)
from djinn_jupyter.wire import arrays, looks
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.nouns import Mode

NOT_ASKED_FOR: Final = "The engine did not hand over the shard that was asked for; nothing of it is written."


def handing_over(request: Collect, path: Path) -> Collect:
    """Return the request without a path, with the note of the shard that is at `path` already. Raises UsageError where
    that has other prompts, StorageFailed where it is unreadable or incomplete, or none can be written."""
    with _sentence(f"{path} could not be written"):
        require_writable(path)
    return msgspec.structs.replace(request, folder=None, there=_note_at(path, request))


def _note_at(path: Path, request: Collect) -> str | None:
    with _sentence(f"{path} could not be read"):
        if not path.exists():
            return None
        if not path.is_file():
            raise errors.UsageError(f"{path} is no shard of a collection; choose another folder.")
        there = ShardFile.at(path)
    if not _has_prompts(there, request):
        raise errors.UsageError(f"{path} has other prompts than these. Choose another folder, or delete that one.")
    return json.dumps({name: value for name, value in there.note.items() if name not in ("computed", WRITTEN)})


def keep(collected: Collected, path: Path, request: Collect) -> None:
    """Write the file of a shard atomically and durably, unless it is there. Raises WireError where it is not the
    requested shard, StorageFailed; either leaves nothing behind."""
    if collected.existed and request.there is not None:
        return
    if collected.content is None:
        raise errors.WireError(NOT_ASKED_FOR)
    _write(collected.content, path, request)


def _write(content: arrays.Array, path: Path, request: Collect) -> None:
    with _sentence(f"{path} could not be written"), written_alone(path) as (file, aside):
        file.write(content.data)
        file.flush()
        _require_asked(aside, request)


def _require_asked(aside: Path, request: Collect) -> None:
    try:
        found = ShardFile.at(aside)
        same = _has_prompts(found, request)
        place = tuple(found.note.get(name) for name in ("shard", "first", "last"))
    except errors.StorageFailed:
        same, place = False, ()
    if not same or place != (request.shard, request.first, request.last):
        raise errors.WireError(NOT_ASKED_FOR)


def _has_prompts(shard: ShardFile, request: Collect) -> bool:
    tokens, starts = shard.tensor("tokens").tolist(), shard.tensor("starts").tolist()
    begins = [0, *accumulate(map(len, request.prompts))]
    return bool(tokens == list(chain.from_iterable(request.prompts)) and starts == begins)


def _sentence(what: str) -> AbstractContextManager[None]:
    return told_of_disk(what, STAYS)


# Collect activations: prompts in, shards out, one request a shard. The engine computes them, and writes them if it is
# on this machine; a remote one sends them.

SHARD_BYTES: Final = 64 * 2**20  # about; a shard's values lie in memory until it is written
SHARD_TOKENS: Final = 2**18
SHARD_PROMPTS: Final = 4096
ENDS_DIFFER: Final = (
    "Prompts differ in length: name both ends of a range, both from the front or both from the end, as 1:5."
)
_COMMA: Final = re.compile(r",(?![^\[]*\])")  # outside a selector

OnCollected = Callable[[int], None]
Prompts = tuple[tuple[int, ...], ...]
RequestIn = Callable[[str], Collect]
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class Collection:
    """A collection to make. `shard_prompts` is the most prompts of a shard; only the same can continue it."""

    sites: tuple[str, ...]
    folder: Path
    positions: tuple[int, ...] | None
    dtype: StoredDtype | None
    shard_prompts: int | None
    mode: Mode
    seed: int
    adapter: str | None = None

    def shards(self, prompts: Iterable[tuple[int, ...]], width: int) -> Iterator[Prompts]:
        """Yield the prompts of each shard. Only the request decides the cuts, so that a continued collection has the
        same."""
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


@arguments.typed
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
    wherever the engine is, and return them, to be read lazily. Prompts are texts or token ids, or a pathlib.Path of a
    file with one a line, `.json` or `.jsonl`. `positions` are the positions to keep of each prompt, by default all;
    `dtype` is by default the computed one. `fast` runs many prompts in a pass and some of them, chosen by `seed`, again
    alone; `exact` runs each alone. With the named `adapter` each runs alone, too. If the folder has shards of the same
    collection, it is continued. Other engines of the model `beside` this one each take a shard at a time, after all
    have accepted the work. `on_progress` is called with the number of finished prompts. UsageError where the folder has
    another collection.

    >>> prompts = ["The capital of France is", "The capital of Italy is"]
    >>> acts = engine.collect(prompts, ["resid_post.4", "z.2"], to=folder, positions=-1)
    >>> acts["resid_post.4"].shape, acts["z.2"].shape
    ((2, 128), (2, 4, 32))
    """
    engines = engines_of_one_model(engine, beside)
    asked = Collection(
        sites=_spelled(sites, engine.description.layers),
        folder=arguments.given_path(to, "folder"),
        positions=spell_positions(positions, no_ends(errors.UsageError(ENDS_DIFFER))),
        dtype=dtype,
        shard_prompts=_checked(shard_prompts),
        mode=mode,
        seed=arguments.checked_seed(seed),
        adapter=adapter,
    )
    kept = f"Whole shards are kept in {asked.folder}; the same call goes on after them."
    quiet = on_progress is not None
    with interrupts.interruptible("The collection", lambda: (kept, None), quiet=quiet), _ended_with(kept):
        work = CollectionWork(asked, on_progress or (lambda done: None), runs.of_how_many(prompts))
        _collect(engines, work, runs.tokenized(engine.channel, runs.given_prompts(prompts)))
    return Activations(asked.folder)


def _collect(engines: Sequence[RemoteEngine], work: CollectionWork, prompts: Iterable[tuple[int, ...]]) -> None:
    """Have the shards of the prompts written; several engines, which are all asked first, each write one at a time."""
    channel = engines[0].channel
    requests = _requests(work.asked, work.asked.shards(prompts, channel.welcome.model.hidden_size))
    first = next(requests, None)
    if first is None:
        raise errors.UsageError("There are no prompts to collect from.")
    requests = chain([first], requests)
    if len(engines) > 1:
        _spread(engines, work, [*requests])
    else:
        _in_order(channel, work, requests)


@contextmanager
def _ended_with(kept: str) -> Iterator[None]:
    """Add to the error of an ended engine, a closed session or exhausted memory what is kept."""
    try:
        yield
    except (errors.EngineError, errors.IllegalMove, errors.SlabFull) as error:
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
    """Write one shard after the other."""
    waiting = deque(islice(requests, 1))

    def go_on(session: str) -> None:
        while waiting:
            work.collect(channel, waiting[0](session))
            waiting.popleft()
            waiting.extend(islice(requests, 1))

    _in_session(channel, work.asked.adapter, go_on)


def _in_session(channel: Channel, adapter: str | None, go_on: Callable[[str], Result]) -> Result:
    """Work in a temporary session. The next engine at an address does not know it, and opens another one."""
    while True:
        engine = channel.welcome.engine
        try:
            with likeness.temporary_session(channel, "collection", adapter) as session:
                return go_on(session)
        except errors.UnknownSession:
            if channel.welcome.engine == engine:
                raise  # another client closed it


def _spread(engines: Sequence[RemoteEngine], work: CollectionWork, requests: Sequence[RequestIn]) -> None:
    """Spread the shards over free engines. Raises the error of a failed one."""
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
    """A collection in progress: the number of finished prompts of each shard."""

    asked: Collection
    on_progress: OnCollected
    of: str = ""
    done: dict[int, int] = field(default_factory=dict)

    def collect(self, channel: Channel, request: Collect, tell: Tell = lambda show: show()) -> Path:
        """Compute and write one shard, or find it, and return its file."""
        request = self.asked_of(channel, request)
        with followed(channel, request.session, request) as shard:
            for event in shard.events():
                if isinstance(event, CollectionProgressed):
                    self._note(request.shard, event.done, tell)
            collected = shard.reply.result()
        path = self._path(request)
        if channel.is_afar:
            keep(collected, path, request)
        self._note(request.shard, len(request.prompts), tell)
        return path

    def asked_of(self, channel: Channel, request: Collect) -> Collect:
        """Return the request for this engine: without the folder for a remote one."""
        return handing_over(request, self._path(request)) if channel.is_afar else request

    def question(self, channel: Channel, request: Collect) -> Question:
        """Return the question whether this engine would begin the request."""
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
    """A shard that any free engine writes."""

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
    """Return sites by their names; `resid_post.*` is the site of every layer."""
    names = [name.strip() for name in (_COMMA.split(sites) if isinstance(sites, str) else map(str, sites))]
    found: list[str] = []
    for name in names:
        point, star, selector = name.partition(".*")
        found += [f"{point}.{layer}{selector}" for layer in range(layers)] if star else [name]
    if not found or "" in found:
        raise errors.UsageError("A collection needs sites, such as resid_post.4 or z.*.")
    return tuple(found)


def _checked(shard_prompts: int | None) -> int | None:
    if shard_prompts is not None and not 1 <= shard_prompts <= MOST_PROMPTS:
        raise errors.UsageError(f"A shard has 1 to {MOST_PROMPTS:,} prompts, not {shard_prompts}.")
    return shard_prompts


def reproduced_collection(
    engine: RemoteEngine, kept: Activations, on_progress: Callable[[None, int, int], None] | None
) -> Reproduction:
    """Collect again, one shard at a time, and compare. UsageError for an incomplete collection; errors as in
    `engine.collect`; StorageFailed."""
    if not kept.complete:
        raise errors.UsageError(
            "This collection is not whole, so it cannot be compared; finish it first, by the same call."
        )
    channel = engine.channel
    made, compared = [shard.made for shard in kept.shards], _Shards(kept=kept)

    def on_done(done: int) -> None:
        if on_progress is not None:
            on_progress(None, done, len(kept))

    with _folder_beside(kept) as folder, naming_models("collection", made[0].by, engine.description):
        asked = _asked_of(kept, folder)
        work = CollectionWork(asked, on_done, f" of {len(kept):,}")
        for number, before in enumerate(kept.shards):
            likeness.require_modules(channel, made[number].modules)
            with likeness.session_like(channel, "collection", made[number]) as session:
                last = number + 1 == len(kept.shards)
                first = before.note["first"]
                prompts = _prompts_of(before)
                request = shard_request(asked, session, prompts, shard=number, first=first, last=last)
                again = ShardFile.at(work.collect(channel, request))
            compared.add(before, again, made[number])
            again.path.unlink()
    return compared.result()


def _asked_of(kept: Activations, folder: Path) -> Collection:
    note = kept.shards[0].note
    return Collection(
        sites=kept.sites,
        folder=folder,
        positions=kept.positions,
        dtype=note["dtype"],
        shard_prompts=None,
        mode=note["mode"],
        seed=note["seed"],
    )


def _prompts_of(shard: ShardFile) -> tuple[tuple[int, ...], ...]:
    tokens, starts = shard.tensor("tokens").tolist(), shard.tensor("starts").tolist()
    return tuple(tuple(tokens[at:end]) for at, end in pairwise(starts))


@contextmanager
def _folder_beside(kept: Activations) -> Iterator[Path]:
    """Yield the path of a folder within the collection's, and delete its contents at the end."""
    folder = kept.folder.absolute() / f".again.{secrets.token_hex(4)}"
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@dataclass(slots=True, kw_only=True)
class _Shards:
    """The comparison of a collection's shards."""

    kept: Activations
    found: BitComparison = field(default_factory=BitComparison)
    origin: dict[tuple[str, str, str], None] = field(default_factory=dict)
    modes: set[tuple[str, str]] = field(default_factory=set)

    def add(self, before: ShardFile, again: ShardFile, made: looks.Circumstances) -> None:
        """Compare a shard with its recomputation."""
        for site in self.kept.sites:
            then, now = before.tensor(site), again.tensor(site)
            if (then.shape, then.dtype) != (now.shape, now.dtype):
                raise errors.UsageError(
                    f"{site} has {list(now.shape)} values of {now.dtype.name} here, and had {list(then.shape)} of "
                    f"{then.dtype.name}."
                )
            self.found.add(then, now, partial(self._place, site, before))
        by = again.made.by
        self.origin |= dict.fromkeys(origin_lines(made.by, by))
        self.modes.add((before.note["computed"]["mode"], again.note["computed"]["mode"]))

    def _place(self, site: str, shard: ShardFile, at: tuple[int, ...]) -> dict[str, Any]:
        """Return the site, the prompt and the position of a value of a shard."""
        first, positions = shard.note["first"], self.kept.positions
        if positions is not None:
            return {"site": site, "prompt": first + at[0], "position": positions[at[1] if len(positions) > 1 else 0]}
        starts = shard.tensor("starts").tolist()
        prompt = bisect.bisect_right(starts, at[0]) - 1
        return {"site": site, "prompt": first + prompt, "position": at[0] - starts[prompt]}

    def result(self) -> Reproduction:
        notes = [f"The mode was {then}, and is {now} now." for then, now in sorted(self.modes) if then != now]
        if self.found.different and not self.kept.exact:
            notes.append(SHARED)
        return self.found.told(self.kept, None, self.origin, notes)
