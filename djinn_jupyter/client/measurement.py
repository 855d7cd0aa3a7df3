"""A reading that carries its recipe: kept in a file with all that makes its numbers again, and asked for again."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import msgspec

from djinn_jupyter.client.adapters import same_adapter
from djinn_jupyter.client.connection.channel import Channel, ask_for
from djinn_jupyter.client.frames import Tabular
from djinn_jupyter.client.measurement_files import KeptMeasurement
from djinn_jupyter.client.result_files import FileKind, encoded, named, put, read
from djinn_jupyter.client.temporary import temporary_session
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.circumstances import Circumstances
from djinn_jupyter.wire.replies import Described, Steered

if TYPE_CHECKING:
    import numpy as np


class Measurement(Tabular, ABC):
    """A reading of some lines, whose `tokens` are ids. `made` is what its `values` follow from besides the lines, of
    each reply of the engine."""

    _kind: ClassVar[FileKind[Any]]
    values: np.ndarray[Any, Any]
    tokens: tuple[tuple[int, ...], ...]
    made: tuple[Circumstances, ...]

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
    def recipe(self) -> dict[str, Any]:
        """All that the values follow from: the lines, the rules that held, the attention, the model and the machine."""
        first = self.made[0]
        by = msgspec.structs.asdict(first.by)
        return {"lines": list(self.tokens), "rules": list(first.rules), "attention": first.attention, "by": by}

    def save(self, path: str | Path, *, replace: bool = False) -> Path:
        """Write the values with their recipe to a file of safetensors, and return its path. Another file that is there
        is kept unless `replace`. `dj.reproduce` measures them again. UsageError; StorageFailed."""
        target = named(path, self._kind)
        content = self._content
        put(target, encoded(content, content.tensors()), replace=replace)
        return target

    @classmethod
    def read(cls, path: str | Path) -> Self:
        """Return what `save` wrote, with the same bits. UsageError where the file is none, or damaged."""
        return cls._with_content(read(path, cls._kind))


@contextmanager
def ruling_session(channel: Channel, made: Circumstances) -> Iterator[str | None]:
    """Yield the name of a session with the rules, the attention and the adapter that held; None where none is
    needed."""
    adapter = same_adapter(channel, made.adapter)
    if not made.rules and made.attention is None and adapter is None:
        yield None
        return
    with temporary_session(channel, "rules") as name:
        if made.attention is not None:
            ask_for(channel, ask.SetAttention(session=name, attention=made.attention), Described)
        if adapter is not None:
            ask_for(channel, ask.SetAdapter(session=name, adapter=adapter), Described)
        for rule in made.rules:
            ask_for(channel, msgspec.structs.replace(rule, session=name), Steered)
        yield name
