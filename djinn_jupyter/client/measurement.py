"""A reading that carries its recipe: kept in a file with all that makes its numbers again, and asked for again."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, Self

import msgspec

from djinn_jupyter.client.arguments import typed
from djinn_jupyter.client.arrays import largest
from djinn_jupyter.client.connection.channel import Channel
from djinn_jupyter.client.frames import Tabular
from djinn_jupyter.client.measurement_files import KeptMeasurement
from djinn_jupyter.client.result_files import FileKind, encoded, named, put, read
from djinn_jupyter.errors import UsageError
from djinn_jupyter.wire.circumstances import Circumstances

if TYPE_CHECKING:
    import numpy as np

STRONGEST: Final = 10
UNMADE: Final = "it was read at a stop with edits, under steering rules or behind other passes"
STILL: Final = (
    "Its numbers stay as they are (columns(), to_pandas()); for a file and the same again read it in a plain run."
)


class Measurement(Tabular, ABC):
    """A reading of some lines of token ids. `made` is what its `values` follow from besides the lines, of each reply of
    the engine; nothing where no recipe makes them again, for the reason `_unmade`."""

    _kind: ClassVar[FileKind[Any]]
    values: np.ndarray[Any, Any]
    made: tuple[Circumstances, ...]
    _unmade: str = UNMADE
    _lines: tuple[tuple[int, ...], ...]

    @property
    @abstractmethod
    def _content(self) -> KeptMeasurement:
        """The content of its file."""

    @classmethod
    @abstractmethod
    def _with_content(cls, content: Any) -> Self:
        """Return the measurement with this content."""

    @abstractmethod
    def again(self, channel: Channel) -> Self:
        """Return the same, measured anew."""

    @abstractmethod
    def place_of(self, index: tuple[int, ...]) -> dict[str, Any]:
        """Return where in the lines, or in the model, the value at this index is."""

    @property
    def compared_values(self) -> np.ndarray[Any, Any]:
        """All that is compared with the same measured again, as one array."""
        return self.values

    @typed
    def top(self, count: int = STRONGEST) -> Sequence[tuple[Any, ...]]:
        """Return the `count` largest values by size, the largest first: the place of each, as `place_of` tells it, and
        the value. UsageError."""
        return [(*self.place_of(at).values(), value) for at, value in largest(self.compared_values, count)]

    @property
    def recipe(self) -> dict[str, Any]:
        """All that the values follow from: the lines, the rules that held, the attention, the model and the machine."""
        first = origin_of(self)
        by = msgspec.structs.asdict(first.by)
        adapter = None if first.adapter is None else msgspec.structs.asdict(first.adapter)
        return {
            "lines": list(self._lines),
            "rules": list(first.rules),
            "attention": first.attention,
            "adapter": adapter,
            "by": by,
        }

    def save(self, path: str | Path, *, replace: bool = False) -> Path:
        """Write the values with their recipe to a file of safetensors, and return its path. Another file that is there
        is kept unless `replace`. `dj.reproduce` measures them again. UsageError; StorageFailed."""
        target = named(path, self._kind)
        _ = origin_of(self)
        content = self._content
        put(target, encoded(content, content.tensors()), replace=replace)
        return target

    @classmethod
    def read(cls, path: str | Path) -> Self:
        """Return what `save` wrote, with the same bits. UsageError where the file is none, or damaged."""
        return cls._with_content(read(path, cls._kind))


def origin_of(measurement: Measurement) -> Circumstances:
    """Return what the first of its numbers follow from. Raises UsageError where nothing makes them again."""
    if not measurement.made:
        raise UsageError(f"No recipe makes this {type(measurement).__name__} again: {measurement._unmade}. {STILL}")
    return measurement.made[0]
