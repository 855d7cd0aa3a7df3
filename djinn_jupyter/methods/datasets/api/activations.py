"""Collections and the files of their shards, read where they lie. A file's head is checked against its note and its
size at opening, so that a damaged or foreign one is refused by name before a value is used. Each tensor is checked at
its first read."""

from __future__ import annotations

import bisect
import json
import math
import operator
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from itertools import accumulate
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import msgspec
import numpy as np
from msgspec import Meta

from djinn_jupyter import files, tensor_files
from djinn_jupyter.api.arguments import given_path, typed
from djinn_jupyter.api.arrays import largest
from djinn_jupyter.api.result import STRONGEST
from djinn_jupyter.api.result_files import FOLDER, FolderResult, Reproducible
from djinn_jupyter.api.tables import Tabular, in_columns, strongest
from djinn_jupyter.errors import MissingDependency, StorageFailed, UsageError
from djinn_jupyter.files import open_plain
from djinn_jupyter.units import spell_bytes
from djinn_jupyter.wire.arrays import ITEM_BYTES
from djinn_jupyter.wire.looks import Circumstances
from djinn_jupyter.wire.texts import natural_order

_PIECE: Final = 2**20
TOKENS: Final = "tokens"
STARTS: Final = "starts"
Count = Annotated[int, Meta(ge=0, le=2**53)]


class _Model(msgspec.Struct):
    name: str


class _Computed(msgspec.Struct):
    mode: str
    largest_difference: float | None
    notes: tuple[str, ...]


class _Written(msgspec.Struct):
    """The digests; without those of the `tensors` these are not compared."""

    tensors: dict[str, str] | None
    note: str


class _Note(msgspec.Struct):
    """The entries of a note that are read; it has more."""

    shard: Count
    first: Count
    prompts: Count
    last: bool
    sites: tuple[str, ...]
    positions: tuple[int, ...] | None
    dtype: str | None
    mode: str
    seed: Count
    model: _Model
    computed: _Computed
    written: _Written


class _Entry(msgspec.Struct):
    dtype: Literal["F64", "F32", "F16", "BF16", "I64"]
    shape: Annotated[tuple[Count, ...], Meta(min_length=1, max_length=16)]
    data_offsets: tuple[Count, Count]


@dataclass(frozen=True, slots=True)
class ShardFile:
    """A file in the safetensors format, whose tensors are mapped on demand. `checked` are the names of those whose
    bytes were compared with their `digests`, which files may lack."""

    path: Path
    note: dict[str, Any]
    entries: dict[str, Any]
    begin: int
    digests: dict[str, str] | None
    checked: set[str] = field(default_factory=set, repr=False, compare=False)

    @classmethod
    def at(cls, path: Path) -> ShardFile:
        """Read the head of a shard. Raises StorageFailed for an unreadable, invalid or incomplete file."""
        try:
            with files.told_of_disk(f"{path} could not be read"), open_plain(path) as file:
                head, size = tensor_files.read_head(file), os.fstat(file.fileno()).st_size
            note = json.loads(head.metadata["djinn"])
            written = files.digests_in(note)
            _check({**note, files.WRITTEN: written}, head.entries)
            wanted = head.end
        except tensor_files.FAULTS:
            raise StorageFailed(f"{path} is no shard of a collection.") from None
        if size != wanted:
            raise StorageFailed(f"{path} has {size} bytes and should have {wanted}; delete it and collect again.")
        if written[files.NOTE] != files.of_note(note):
            raise _damaged(path)
        return cls(path=path, note=note, entries=head.entries, begin=head.begin, digests=written["tensors"])

    @property
    def made(self) -> Circumstances:
        """The circumstances of its values. StorageFailed where they are not in Djinn's form."""
        try:
            return msgspec.convert(self.note["computed"].get("made"), Circumstances)
        except msgspec.ValidationError as error:
            raise StorageFailed(f"{self.path} is not as Djinn wrote it: {error}.") from None

    def tensor(self, name: str) -> np.ndarray[Any, Any]:
        """Return the values of a tensor, mapped. Raises StorageFailed where they differ from the written ones."""
        self._require_as_written(name)
        entry = self.entries[name]
        return np.memmap(
            self.path,
            dtype=dtype_of(entry["dtype"]),
            mode="r",
            offset=self.begin + entry["data_offsets"][0],
            shape=tuple(entry["shape"]),
        )

    def _require_as_written(self, name: str) -> None:
        """Raise StorageFailed where a tensor's bytes do not have the digest in its note."""
        if name in self.checked or self.digests is None:
            return
        entry = self.entries[name]
        begin, end = entry["data_offsets"]
        with files.told_of_disk(f"{self.path} could not be read"), open_plain(self.path) as file:
            file.seek(self.begin + begin)
            pieces = (file.read(min(_PIECE, end - at)) for at in range(begin, end, _PIECE))
            found = files.of_tensor(entry["dtype"], entry["shape"], pieces)
        if found != self.digests.get(name):
            raise _damaged(self.path)
        self.checked.add(name)


def _damaged(path: Path) -> StorageFailed:
    return StorageFailed(f"{path} is damaged: its bytes are not those that were written; delete it and collect again.")


def dtype_of(name: str) -> np.dtype[Any]:
    """Return the dtype of an entry."""
    if name == "BF16":
        import ml_dtypes

        bfloat16: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
        return bfloat16
    return np.dtype(tensor_files.DTYPES[name]).newbyteorder("<")


def _check(note: dict[str, Any], entries: dict[str, Any]) -> None:
    """Raise ValueError and others where note and tensors do not fit."""
    said, found = msgspec.convert(note, _Note), msgspec.convert(entries, dict[str, _Entry])
    if not all(map(_fits, found.values())):
        raise ValueError
    tokens, starts = found[TOKENS].shape, found[STARTS].shape
    rows = said.prompts if said.positions is not None else math.prod(tokens)
    if starts != (said.prompts + 1,) or any(found[site].shape[0] != rows for site in said.sites):
        raise ValueError


def _fits(entry: _Entry) -> bool:
    begin, end = entry.data_offsets
    return end - begin == math.prod(entry.shape) * ITEM_BYTES[tensor_files.DTYPES[entry.dtype]]


# Collected activations, read where they lie: shards are mapped into memory, and only the requested values are read.

SAME: Final = ("format", "model", "adapter", "modules", "sites", "positions", "dtype", "mode", "seed")
PLACES: Final = ("prompt", "position", "token")
ASKED: Final = ("sites", "positions", "dtype", "mode", "seed")


class Activations(FolderResult, Tabular, Reproducible):
    """The collection in a folder. `complete` is False while further shards are missing. Where prompts shared passes,
    some of each shard were computed again alone, and `largest_difference` is their difference; `exact` is True where
    every prompt was computed alone."""

    ending = FOLDER
    reproduced_by = "djinn_jupyter.methods.datasets.api.collecting:reproduced_collection"

    @classmethod
    def read(cls, path: str | Path) -> Activations:
        """Read the collection in a folder, as `Activations(folder)` does. UsageError; StorageFailed."""
        return cls(path)

    def __init__(self, folder: str | Path) -> None:
        self.folder = given_path(folder, "folder")
        paths = sorted(self.folder.glob("shard-*.safetensors"), key=lambda path: natural_order(path.name))
        self.shards = [ShardFile.at(path) for path in paths]
        if not self.shards:
            raise UsageError(f"There is no collection in {self.folder}.")
        self._check()
        note = self.shards[0].note
        self.sites: tuple[str, ...] = tuple(note["sites"])
        self.positions: tuple[int, ...] | None = None if note["positions"] is None else tuple(note["positions"])
        self.model: str = note["model"]["name"]
        self.complete = bool(self.shards[-1].note["last"])
        made = [shard.note["computed"] for shard in self.shards]
        differences = [one["largest_difference"] for one in made if one["largest_difference"] is not None]
        self.exact = all(one["mode"] == "exact" for one in made)
        self.largest_difference: float | None = max(differences, default=None)
        self.notes: tuple[str, ...] = tuple(dict.fromkeys(note for one in made for note in one["notes"]))
        self.tokens = Values(self, "tokens", by_token=True)

    def _check(self) -> None:
        """Raise StorageFailed where a shard is missing, repeated, or of another collection."""
        first = 0
        for number, shard in enumerate(self.shards):
            follows = (shard.note["shard"], shard.note["first"]) == (number, first)
            if not follows or any(shard.note.get(name) != self.shards[0].note.get(name) for name in SAME):
                raise StorageFailed(
                    f"{shard.path} is not shard {number} of this collection: one is missing or foreign."
                )
            first += shard.note["prompts"]
            if _forms(shard) != _forms(self.shards[0]):
                raise StorageFailed(f"{shard.path} has values of another form than the shards before it.")

    @property
    def recipe(self) -> dict[str, Any]:
        """All that the values follow from: the prompts' tokens, the sites, the arguments of `engine.collect`, the
        attention, the adapter, the model and the machine."""
        asked = {name: self.shards[0].note[name] for name in ASKED}
        first = self.shards[0].made
        adapter = None if first.adapter is None else msgspec.structs.asdict(first.adapter)
        lines = [tuple(tokens.tolist()) for tokens in self.tokens]
        by = msgspec.structs.asdict(first.by)
        return {"lines": lines, **asked, "attention": first.attention, "adapter": adapter, "by": by}

    def __len__(self) -> int:
        """Return the number of prompts."""
        count: int = sum(shard.note["prompts"] for shard in self.shards)
        return count

    def __getitem__(self, site: str) -> Values:
        if site not in self.sites:
            raise UsageError(f"{site!r} was not collected; there are: {', '.join(self.sites)}.")
        return Values(self, site, by_token=self.positions is None)

    def __iter__(self) -> Iterator[str]:
        return iter(self.sites)

    def told(self) -> dict[str, list[Any]]:
        """Return the shape and dtype of each site's values by column, without reading them."""
        values = [self[site] for site in self.sites]
        return {
            "site": list(self.sites),
            "shape": [list(v.shape) for v in values],
            "dtype": [v.dtype.name for v in values],
        }

    def positions_kept(self) -> Iterator[tuple[int, int]]:
        """Yield the prompt and the position of each row of a site's values, in order."""
        for prompt, tokens in enumerate(self.tokens):
            kept = range(len(tokens)) if self.positions is None else self.positions
            yield from ((prompt, at % len(tokens)) for at in kept)

    def dataset(self) -> Any:
        """Return a `datasets.Dataset` with a row for each prompt: its tokens, and its values at each site, read on
        demand."""
        try:
            made = import_module("datasets").Dataset.from_dict({"prompt": list(range(len(self)))})
        except ImportError:
            raise MissingDependency("dataset() needs Hugging Face's datasets: pip install datasets.") from None
        made.set_transform(self._rows)
        return made

    def columns(self) -> dict[str, list[Any]]:
        """Return all sites as lists by column, with a row for each position of each prompt: the prompt, the position,
        the token there, and each site's value; for several features a column each, named by the site and its number."""
        tables = {site: self[site].columns() for site in self.sites}
        places = {name: column for name, column in tables[self.sites[0]].items() if name in PLACES}
        return places | {
            f"{site}{name.removeprefix('value')}": column
            for site, table in tables.items()
            for name, column in table.items()
            if name not in PLACES
        }

    @typed
    def top(self, count: int = STRONGEST) -> list[tuple[Any, ...]]:
        """Return the `count` values of largest magnitude of all sites, the largest first: the site, the place as in
        `Values.top`, and the value. UsageError."""
        each = ((site, *found) for site in self.sites for found in self[site].top(count))
        return strongest(each, count)

    def _rows(self, batch: dict[str, list[int]]) -> dict[str, list[Any]]:
        numbers = batch["prompt"]
        columns = {"tokens": self.tokens, **{site: self[site] for site in self.sites}}
        return {"prompt": numbers, **{name: [values[n] for n in numbers] for name, values in columns.items()}}

    def __repr__(self) -> str:
        size = sum(shard.path.stat().st_size for shard in self.shards)
        whole = "" if self.complete else ", not complete"
        shards = f"{len(self.shards):,} shard{'s' * (len(self.shards) != 1)}"
        return (
            f"Activations of {len(self):,} prompt{'s' * (len(self) != 1)} at {', '.join(self.sites)} of {self.model}: "
            f"{shards}, {spell_bytes(size)} in {self.folder}{whole}"
        )


def _forms(shard: ShardFile) -> list[tuple[str, list[int]]]:
    """Return the dtype and the shape of a row of each site's values."""
    entries = (shard.entries[site] for site in shard.note["sites"])
    return [(entry["dtype"], entry["shape"][1:]) for entry in entries]


class Values(Tabular):
    """A site's values, one item a prompt. numpy.asarray(values) reads all of them: [prompt, ...], or [row, ...] where
    prompts have a row for each token."""

    def __init__(self, of: Activations, name: str, *, by_token: bool) -> None:
        self._of, self.name, self.by_token = of, name, by_token
        self._first = [0, *accumulate(shard.note["prompts"] for shard in of.shards)]
        entries = [shard.entries[name] for shard in of.shards]
        rest = entries[0]["shape"][1:]
        self.shape: tuple[int, ...] = (sum(entry["shape"][0] for entry in entries), *rest)
        self.dtype: np.dtype[Any] = dtype_of(entries[0]["dtype"])
        self._mapped: dict[int, tuple[Any, Any]] = {}

    def __len__(self) -> int:
        return len(self._of)

    def __getitem__(self, chosen: Any) -> Any:
        """Return the values of a prompt, or of a slice or list of prompts: an array, or where prompts have a row for
        each token a list of arrays."""
        if isinstance(chosen, slice):
            chosen = range(*chosen.indices(len(self)))
        elif not isinstance(chosen, list | range | np.ndarray):
            return self._of_prompt(operator.index(chosen))
        found = [self._of_prompt(operator.index(number)) for number in chosen]
        if self.by_token:
            return found
        return np.stack(found) if found else np.empty((0, *self.shape[1:]), self.dtype)

    def __iter__(self) -> Iterator[np.ndarray[Any, Any]]:
        return (self._of_prompt(number) for number in range(len(self)))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        whole = np.concatenate([self._shard(number)[0] for number in range(len(self._of.shards))])
        return whole if dtype is None else whole.astype(dtype, copy=False)

    def torch(self) -> TorchValues:
        """Return the same values as tensors, for example for a torch DataLoader."""
        return TorchValues(self)

    def columns(self) -> dict[str, list[Any]]:
        """Return the values as lists by column, with a row for each position of each prompt: the prompt, the position,
        the token there, and `value`; for several features (heads and features flattened) `value 0`, ..."""
        rows = np.asarray(self)
        places = [(prompt, at, int(self._of.tokens[prompt][at])) for prompt, at in self._of.positions_kept()]
        wide = rows.reshape(len(places), -1).astype(np.float64)
        names = ["value"] if wide.shape[1] == 1 else [f"value {number}" for number in range(wide.shape[1])]
        return in_columns(PLACES, places) | {name: column.tolist() for name, column in zip(names, wide.T, strict=True)}

    @typed
    def top(self, count: int = STRONGEST) -> list[tuple[Any, ...]]:
        """Return the `count` values of largest magnitude, the largest first: prompt, position, token, feature (heads
        and features flattened) and value. The shards are read one by one. UsageError."""
        found, first = list[tuple[int, int, float]](), 0
        for rows in self.by_shard():
            here = ((first + row, feature, value) for (row, feature), value in largest(rows, count))
            found, first = strongest([*found, *here], count), first + len(rows)
        wanted = {row for row, _, _ in found}
        places = {row: place for row, place in enumerate(self._of.positions_kept()) if row in wanted}
        return [(*places[row], int(self._of.tokens[places[row][0]][places[row][1]]), *of) for row, *of in found]

    def by_shard(self) -> Iterator[np.ndarray[Any, Any]]:
        """Yield the values shard by shard, read where they lie: [positions of its prompts, features]."""
        kept = self._of.positions or ()
        wide = math.prod(self.shape[1:] if self.by_token or len(kept) == 1 else self.shape[2:])
        for number in range(len(self._of.shards)):
            yield self._shard(number)[0].reshape(-1, wide)

    def told(self) -> dict[str, list[Any]]:
        """Return no table: a display reads no values."""
        return {}

    def _of_prompt(self, number: int) -> Any:
        at = number + len(self) if number < 0 else number
        if not 0 <= at < len(self):
            raise IndexError(f"There are {len(self)} prompts, and none is number {number}.")
        shard = bisect.bisect_right(self._first, at) - 1
        values, starts = self._shard(shard)
        here = at - self._first[shard]
        return values[starts[here] : starts[here + 1]] if self.by_token else values[here]

    def _shard(self, number: int) -> tuple[Any, Any]:
        if number not in self._mapped:
            shard = self._of.shards[number]
            self._mapped[number] = (shard.tensor(self.name), shard.tensor("starts") if self.by_token else None)
        return self._mapped[number]

    def __repr__(self) -> str:
        return f"Values of {len(self)} prompts at {self.name}: {list(self.shape)}, {self.dtype.name}"


class TorchValues(Sequence[Any]):
    """Values as torch tensors, each a copy."""

    def __init__(self, values: Values) -> None:
        self.values = values
        try:
            import_module("torch")  # only on demand
        except ImportError:
            raise MissingDependency("Tensors need torch: pip install torch.") from None

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, chosen: Any) -> Any:
        found = self.values[chosen]
        return [self._tensor(one) for one in found] if isinstance(found, list) else self._tensor(found)

    def _tensor(self, array: Any) -> Any:
        own, torch = np.array(array), import_module("torch")
        if own.dtype.name == "bfloat16":
            return torch.from_numpy(own.view(np.int16)).view(torch.bfloat16)
        return torch.from_numpy(own)

    def __repr__(self) -> str:
        return f"{self.values!r}, as torch tensors"
