"""A collection computed again from its recipe, shard by shard into a folder beside its own, and compared bit for
bit."""

from __future__ import annotations

import bisect
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from djinn_jupyter.client.engine import RemoteEngine
from djinn_jupyter.client.likeness import require_modules, session_like
from djinn_jupyter.client.reproduction import SHARED, Reproduction, most_different, naming_models, origin_of
from djinn_jupyter.errors import UsageError
from djinn_jupyter.methods.datasets.api.activations import Activations
from djinn_jupyter.methods.datasets.api.collecting import Collection, CollectionWork, shard_request
from djinn_jupyter.methods.datasets.api.shard_files import ShardFile
from djinn_jupyter.wire.circumstances import Circumstances

if TYPE_CHECKING:
    import numpy as np


def reproduced_collection(
    engine: RemoteEngine, kept: Activations, on_progress: Callable[[None, int, int], None] | None
) -> Reproduction:
    """Collect again, one shard at a time, and compare. UsageError for a collection that is not whole; errors as of
    `engine.collect`; StorageFailed."""
    if not kept.complete:
        raise UsageError("This collection is not whole, so it cannot be compared; finish it first, by the same call.")
    channel = engine.channel
    made, compared = [shard.made for shard in kept.shards], _Compared(kept)

    def on_done(done: int) -> None:
        if on_progress is not None:
            on_progress(None, done, len(kept))

    with _folder_beside(kept) as folder, naming_models("collection", made[0].by, engine.description):
        asked = _asked_of(kept, folder)
        work = CollectionWork(asked, on_done, f" of {len(kept):,}")
        for number, before in enumerate(kept.shards):
            require_modules(channel, made[number].modules)
            with session_like(channel, "collection", made[number]) as session:
                last = number + 1 == len(kept.shards)
                first = before.note["first"]
                prompts = _prompts_of(before)
                request = shard_request(asked, session, prompts, shard=number, first=first, last=last)
                again = ShardFile.at(work.collect(channel, request))
            compared.add(before, again, made[number])
            again.path.unlink()
    return compared.told()


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
    """Yield the path of a folder within the collection's, and delete what is there at the end."""
    folder = kept.folder.absolute() / f".again.{secrets.token_hex(4)}"
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@dataclass(slots=True)
class _Compared:
    """The shards that were compared so far: how many values have other bits, and where they differ most."""

    kept: Activations
    count: int = 0
    different: int = 0
    most: float = 0.0
    place: dict[str, Any] = field(default_factory=dict)
    origin: dict[tuple[str, str, str], None] = field(default_factory=dict)
    modes: set[tuple[str, str]] = field(default_factory=set)

    def add(self, before: ShardFile, again: ShardFile, made: Circumstances) -> None:
        """Compare a shard with the same computed again."""
        for site in self.kept.sites:
            then, now = before.tensor(site), again.tensor(site)
            if (then.shape, then.dtype) != (now.shape, now.dtype):
                raise UsageError(
                    f"{site} has {list(now.shape)} values of {now.dtype.name} here, and had {list(then.shape)} of "
                    f"{then.dtype.name}."
                )
            self._compare(site, before, then, now)
        by = again.made.by
        self.origin |= dict.fromkeys(origin_of(made.by, by))
        self.modes.add((before.note["computed"]["mode"], again.note["computed"]["mode"]))

    def _compare(self, site: str, shard: ShardFile, then: np.ndarray[Any, Any], now: np.ndarray[Any, Any]) -> None:
        other, most, at = most_different(then, now)
        self.count += other.size
        self.different += int(other.sum())
        if at is not None and (most > self.most or not self.place):
            self.most, self.place = most, {"site": site, **self._place(shard, at)}

    def _place(self, shard: ShardFile, at: tuple[int, ...]) -> dict[str, Any]:
        """Return the prompt and the position of a value of a shard."""
        first, positions = shard.note["first"], self.kept.positions
        if positions is not None:
            return {"prompt": first + at[0], "position": positions[at[1] if len(positions) > 1 else 0]}
        starts = shard.tensor("starts").tolist()
        prompt = bisect.bisect_right(starts, at[0]) - 1
        return {"prompt": first + prompt, "position": at[0] - starts[prompt]}

    def told(self) -> Reproduction:
        notes = [f"The mode was {then}, and is {now} now." for then, now in sorted(self.modes) if then != now]
        if self.different and not self.kept.exact:
            notes.append(SHARED)
        return Reproduction(
            before=self.kept,
            again=None,
            same=not self.different,
            count=self.count,
            different=self.different,
            largest_difference=self.most,
            place=self.place,
            origin=tuple(self.origin),
            notes=tuple(notes),
        )
