"""The file of a result: the safetensors format, which other programs can read, with the engine's replies as JSON in its
metadata. Written atomically; checked when read. Knows no kind of result.

[length of the head, 8 bytes] [head, JSON] [values, one tensor or several] [arrays of edits]

The head (`tensor_files`) has the tensors by name, arrays of edits as `edit 0`, ..., and two texts in `__metadata__`:
`djinn`, in which an array is `{tensor, part}`, and `digest`, the digest of this text and of all bytes after the head.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, Self, TypeVar

import msgspec

from djinn_jupyter import tensor_files
from djinn_jupyter._version import __version__
from djinn_jupyter.api.arguments import given_path, shown
from djinn_jupyter.api.tables import Displayed, is_told_as_table
from djinn_jupyter.errors import DjinnError, UsageError, WireError
from djinn_jupyter.files import contents_of, told_of_disk
from djinn_jupyter.wire.arrays import ITEM_BYTES, Array
from djinn_jupyter.wire.nouns import ModelDescription
from djinn_jupyter.wire.provenance import DIGESTS, Provenance, differences
from djinn_jupyter.wire.texts import in_quotes

if TYPE_CHECKING:
    import numpy as np


FORMAT: Final = 1
FAULTS: Final = (*tensor_files.FAULTS, WireError)  # for an invalid text


class FileContent(msgspec.Struct, frozen=False, kw_only=True, forbid_unknown_fields=True):
    """The content of a file: its fields, as in the text. `ending` is the files' ending, `named` their noun."""

    ending: ClassVar[str]
    named: ClassVar[str]
    _format: int = msgspec.field(default=FORMAT, name="format")
    _version: str = msgspec.field(default=__version__, name="version")

    def require_fit(self) -> None:
        """Raise ValueError where the parts of the content do not fit each other."""

    def require_recipe(self) -> None:
        """Raise ValueError where nothing computes the content again."""


KeptHere = TypeVar("KeptHere", bound=FileContent)
Tensors = Mapping[str, tuple[Sequence[int], Sequence[Array]]]
"""Tensors of a file by name: each has a shape, and consists of these arrays, one after the other, of equal size."""


class _Place(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An array that is one `part` of this shape of a tensor, counted along its bytes."""

    tensor: str
    shape: tuple[int, ...]
    part: int = 0


def encoded(content: object, tensors: Tensors) -> bytes:
    """Return the bytes of a file with these `tensors`. They are arrays of the content; its others are edits."""
    places = {
        id(array): {"tensor": name, "shape": array.shape, "part": part}
        for name, (_, arrays) in tensors.items()
        for part, array in enumerate(arrays)
    }
    edits: dict[Array, str] = {}

    def place(value: Any) -> dict[str, Any]:
        if not isinstance(value, Array):
            raise NotImplementedError(f"{type(value)} is in no file")
        if id(value) in places:
            return places[id(value)]
        return {"tensor": edits.setdefault(value, f"edit {len(edits)}"), "shape": value.shape}

    text = json.dumps(msgspec.to_builtins(content, enc_hook=place))
    written = {name: (shape, arrays) for name, (shape, arrays) in tensors.items()}
    written |= {name: (array.shape, [array]) for array, name in edits.items()}
    body = b"".join(bytes(array.data) for _, arrays in written.values() for array in arrays)
    sizes = {
        name: (arrays[0].dtype, shape, sum(array.data.nbytes for array in arrays))
        for name, (shape, arrays) in written.items()
    }
    return tensor_files.head_of(sizes, {"djinn": text, "digest": _digest(text, body)}) + body


def decoded(data: bytes, name: str, kind: type[KeptHere], *, recipe: bool = True) -> KeptHere:
    """Return the content in the bytes of the file `name`. Raises UsageError, with the reason, where there is none, or
    where a required `recipe` is missing."""
    try:
        head = tensor_files.read_head(BytesIO(data))
        text, digest = head.metadata["djinn"], head.metadata["digest"]
        told = json.loads(text)
        number = told["format"]
    except tensor_files.CutShort:
        raise UsageError(f"{name} is truncated: its end is missing.") from None
    except FAULTS:
        raise UsageError(f"{name} is no {kind.named}.") from None
    if number != FORMAT:
        raise UsageError(
            f"{name} has format {shown(number)}, and Djinn {__version__} reads format {FORMAT}: it was written by "
            f"another version, {shown(told.get('version'))}."
        )
    try:
        if len(data) < head.end:
            raise UsageError(f"{name} is truncated: its end is missing.")
        body = memoryview(data)[head.begin :]
        if digest != _digest(text, body):
            raise UsageError(f"{name} is damaged: its bytes are not those that were written.")
        return _converted(told, kind, _arrays_in(head.entries, body), recipe=recipe)
    except FAULTS as error:
        raise UsageError(f"{name} is no {kind.named} that Djinn {__version__} wrote: {_said(error)}.") from None


def _converted(told: Any, kind: type[KeptHere], arrays: Callable[[type, Any], Array], *, recipe: bool) -> KeptHere:
    """Return the content of a text. Raises ValueError and others for an invalid text."""
    try:
        kept = msgspec.convert(told, kind, dec_hook=arrays, str_keys=True)
        kept.require_fit()
        if recipe:
            kept.require_recipe()
    except UsageError as error:
        raise ValueError(str(error)) from None
    return kept


def _said(error: Exception) -> str:
    return (" ".join(str(error).split()) or type(error).__name__).rstrip(".")


def _arrays_in(entries: dict[str, Any], body: memoryview) -> Callable[[type, Any], Array]:
    """Return a function that makes the arrays of the replies from the tensors in a file."""

    def array(kind: type, value: Any) -> Array:
        if kind is not Array:
            raise NotImplementedError(f"{kind} is in no file")
        place = msgspec.convert(value, _Place)
        entry = entries[place.tensor]
        dtype, (begin, end) = tensor_files.DTYPES[entry["dtype"]], entry["data_offsets"]
        size = math.prod(place.shape) * ITEM_BYTES[dtype]
        first = begin + place.part * size
        return Array(dtype=dtype, shape=place.shape, data=body[max(first, 0) : min(first + size, end)])

    return array


def _digest(text: str, body: bytes | memoryview) -> str:
    digest = hashlib.sha256(text.encode())
    digest.update(body)
    return digest.hexdigest()


def read(path: str | Path, kind: type[KeptHere]) -> KeptHere:
    """Return the content of a file. Raises UsageError where the file is of another kind, or damaged."""
    source, data = bytes_of(path)
    return decoded(data, source.name, kind)


def bytes_of(path: str | Path) -> tuple[Path, bytes]:
    """Return the full path of a file, and its bytes. Raises UsageError."""
    source = given_path(path, "file")
    try:
        return source, contents_of(source)
    except OSError as error:
        raise UsageError(f"{source} could not be read: {error.strerror or error}.") from None


def named(path: str | Path, kind: type[KeptHere]) -> Path:
    """Return the full path. Raises UsageError where no file of this kind has its ending, or none can have the name."""
    target = given_path(path, "file")
    if not target.name.endswith(kind.ending):
        raise UsageError(f"A {kind.named} is kept in a file that ends in {kind.ending}; {target.name} does not.")
    return target


def put(path: Path, data: bytes, *, replace: bool) -> None:
    """Write a file atomically. Raises UsageError where other content exists that may not be replaced, StorageFailed
    where the disk refuses."""
    with told_of_disk(f"{path} could not be written"):
        there = contents_of(path) if path.exists() else None
        if there == data:
            return
        if there is not None and not replace:
            raise UsageError(
                f"There is another {in_quotes(path.name)} already; choose another name, or replace it (replace=True)."
            )
        aside = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
        try:
            with aside.open("xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            aside.replace(path)
        finally:
            aside.unlink(missing_ok=True)


# A result and the same computed again, compared bit for bit.

FOLDER: Final = "/"
STUDY: Final = ".study.zip"  # several results in one file, `studies`
SHARED: Final = (
    'Prompts that shared passes may have other last bits where other ones shared them; those of mode="exact" have not.'
)


class Reproducible:
    """A result that `dj.reproduce` computes again, by the function `reproduced_by` (its module and its name), which
    gets the engine, the result and `on_progress`. `ending` is the ending of its file's name; FOLDER for a folder."""

    ending: ClassVar[str]
    reproduced_by: ClassVar[str]

    @classmethod
    def found_at(cls, path: Path) -> Self:
        """Return the result in a file or a folder. UsageError where there is none."""
        found: Self = cls.read(path)  # type: ignore[attr-defined]
        return found

    def in_file(self) -> bytes:
        """Return the bytes of its file. Raises UsageError where it is no file."""
        raise UsageError(f"A {type(self).__name__} is in no file of its own.")

    @classmethod
    def from_file(cls, data: bytes, name: str) -> Self:
        """Return the result in the bytes of the file `name`, which may have no recipe. Raises UsageError."""
        raise UsageError(f"{name}: a {cls.__name__} is in no file of its own.")

    @property
    def computed_by(self) -> Provenance | None:
        """The model and the machine that computed it; None where no recipe computes it again."""
        return None

    @property
    def compared_values(self) -> np.ndarray[Any, Any]:
        """All values that are compared with the repeated computation, as one array."""
        values: np.ndarray[Any, Any] = self.values  # type: ignore[attr-defined]
        return values


class FolderResult:
    """A result in a `folder`, which was written as it was made."""

    __slots__ = ()
    folder: Path

    def save(self, path: str | Path) -> Path:
        """Copy the folder, and return the path of the copy, which is there whole or not at all. UsageError where
        something is there already; StorageFailed."""
        target = given_path(path, "folder")
        if target.exists() or self.folder.absolute() in target.parents:
            raise UsageError(f"{in_quotes(target.name)} is there already, or inside the folder: choose another name.")
        aside = target.with_name(f".{target.name}.{secrets.token_hex(4)}.part")
        try:
            with told_of_disk(f"{target} could not be written"):
                shutil.copytree(self.folder, aside, symlinks=True)
                aside.replace(target)
        finally:
            shutil.rmtree(aside, ignore_errors=True)
        return target


@dataclass(frozen=True, slots=True, kw_only=True)
class Reproduction(Displayed):
    """A result as it was `before`, and the same computed `again`; both None for a collection or a trained module, which
    is not kept after the comparison. `same` is True where all `count` values and the numbers in `besides` (such as the
    metrics of a sweep's unedited prompts) have the same bits. `different` counts the values with other bits; the one at
    `place` (by axis) differs most, by `largest_difference`. NaN on one side alone counts as infinite. `origin` lists
    the differences between the models and machines: (name, then, now). `notes` are sentences on other differences."""

    before: Any
    again: Any
    same: bool
    count: int
    different: int
    largest_difference: float
    place: dict[str, Any]
    origin: tuple[tuple[str, str, str], ...]
    notes: tuple[str, ...]
    besides: str = ""

    def lines(self) -> list[str]:
        """Return the outcome as sentences, one a line."""
        differs = [f"{name}: {then} then, {now} now" for name, then, now in self.origin]
        return [self._verdict(), *self.notes, *differs]

    def _verdict(self) -> str:
        count = self.count
        if self.same:
            before = self.before
            named = type(before).__name__ if is_told_as_table(before) else repr(before).partition("\n")[0].rstrip(".:")
            return f"The same bits: {count:,} values of {named}."
        if not self.different:
            return f"Other bits: the {count:,} values are the same, and {self.besides} are not."
        at = ", ".join(f"{axis} {place}" for axis, place in self.place.items())
        where = f", most at {at}" if at else ""
        return (
            f"Other bits: {self.different:,} of {count:,} values differ, by up to {self.largest_difference:.3g}{where}."
        )

    def __repr__(self) -> str:
        return "\n".join(self.lines())


@contextmanager
def naming_models(result: str, by: Provenance, here: ModelDescription, *, refused: str = "repeat") -> Iterator[None]:
    """Make an error name the model of the result, where the engine serves another. Raises UsageError."""
    try:
        yield
    except DjinnError as error:
        if by.architecture == here.architecture and by.model == here.name:
            raise
        raise UsageError(
            f"The {result} is of {by.model} ({by.architecture}), and this engine serves {here.name} "
            f"({here.architecture}), which cannot {refused} it: {error}"
        ) from error


def compared(
    before: Any,
    again: Any,
    place_of: Callable[[tuple[int, ...]], dict[str, Any]],
    *,
    origins: tuple[Provenance, Provenance],
    notes: Callable[[bool], Sequence[str]],
    differs: str = "",
) -> Reproduction:
    """Compare the values of two results of one shape. `differs` names other parts with different bits; `notes` is
    called with whether all is the same."""
    found = BitComparison()
    found.add(before.compared_values, again.compared_values, place_of)
    return found.told(before, again, origin_lines(*origins), notes(not differs and not found.different), differs)


@dataclass(slots=True)
class BitComparison:
    """The comparison so far: the number of values with other bits, and the place of the largest difference."""

    count: int = 0
    different: int = 0
    most: float = 0.0
    place: dict[str, Any] = field(default_factory=dict)

    def add(
        self,
        then: np.ndarray[Any, Any],
        now: np.ndarray[Any, Any],
        place_of: Callable[[tuple[int, ...]], dict[str, Any]],
    ) -> None:
        """Compare more values, whose places by index are these."""
        other, most, at = most_different(then, now)
        self.count += other.size
        self.different += int(other.sum())
        if at is not None and (most > self.most or not self.place):
            self.most, self.place = most, place_of(at)

    def told(
        self,
        before: Any,
        again: Any,
        origin: Iterable[tuple[str, str, str]],
        notes: Sequence[str] = (),
        differs: str = "",
    ) -> Reproduction:
        return Reproduction(
            before=before,
            again=again,
            same=not differs and not self.different,
            count=self.count,
            different=self.different,
            largest_difference=self.most,
            place=self.place,
            origin=tuple(origin),
            notes=tuple(notes),
            besides=differs,
        )


def most_different(
    before: np.ndarray[Any, Any], again: np.ndarray[Any, Any]
) -> tuple[np.ndarray[Any, Any], float, tuple[int, ...] | None]:
    """Return which values have other bits, their largest difference, and its index; None where all are the same."""
    import numpy as np

    other = bits(before) != bits(again)
    if not other.any():
        return other, 0.0, None
    differences = _differences(before, again)
    at = np.unravel_index(int(np.argmax(np.where(other, differences, -1))), other.shape)
    return other, float(differences[at]), tuple(map(int, at))


def bits(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return numbers as bits, so that equal NaNs compare equal."""
    return values.view(f"int{8 * values.itemsize}")


def _differences(one: np.ndarray[Any, Any], other: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    import numpy as np

    with np.errstate(invalid="ignore"):
        found = np.abs(one - other).astype(np.float64)
    return np.where(np.isnan(found), np.where(np.isnan(one) & np.isnan(other), 0.0, np.inf), found)


def origin_lines(then: Provenance, now: Provenance) -> tuple[tuple[str, str, str], ...]:
    """Return the differences in what bits follow from; a model's name is not part of it."""
    found = differences(then, now)
    if any(name in DIGESTS for name, _, _ in found):
        found.insert(0, ("model", then.model, now.model))
    return tuple(found)
