"""A result: the engine's replies, and everything needed to compute their numbers again. Saving, tables and reproduction
follow from its declarations."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, Self

import msgspec

from djinn_jupyter._version import __version__
from djinn_jupyter.api import arguments, arrays, interrupts, likeness, tables
from djinn_jupyter.api.names import Digests, digests_in
from djinn_jupyter.api.result_files import FORMAT, FileContent, Reproducible, decoded, encoded, named, put, read
from djinn_jupyter.errors import UsageError
from djinn_jupyter.link.channel import Answer, Channel
from djinn_jupyter.wire.arrays import Array
from djinn_jupyter.wire.base import ReplyBase
from djinn_jupyter.wire.looks import Circumstances
from djinn_jupyter.wire.provenance import Provenance
from djinn_jupyter.wire.request_base import SessionRequest

if TYPE_CHECKING:
    import numpy as np


STRONGEST: Final = 10
UNMADE: Final = "it was read at a stop with edits, under steering rules or behind other passes"
STILL: Final = (
    "Its numbers stay as they are (columns(), to_pandas()); for a file and the same again read it in a plain run."
)
NOT_KEPT: Final = ("engine", "_format", "_version", "_values")  # the engine here, and what wrote a file
Steps = tuple[str | int, ...]  # from a result to an array: fields and numbers


class _Numbers(tables.Tabular, tables.Charted, Reproducible):
    """Numbers that follow from the fields of a result: all as `values`, with the token ids of each sequence."""

    if TYPE_CHECKING:
        values: np.ndarray[Any, Any]  # msgspec would read this, and numpy is imported late
    tokens: Any = ()
    _lines: tuple[tuple[int, ...], ...] = ()
    _unmade: str = UNMADE


class Result(_Numbers, FileContent, kw_only=True, dict=True, eq=False, weakref=True):
    """Its fields are the content of its file. The first field is the reply, or several replies; `made` of each reply
    has everything needed to compute its numbers again. `__post_init__` sets derived attributes: at least `values`.

    A subclass declares the ending and the noun of its files (`ending`, `named`), and has a field `request` where
    `made` of the reply does not include the request. `_words` maps fields to names of tensors. `_tabled` is true
    where the replies have no tensor with all numbers, so that the file gets one. `_parts` is the noun for one of
    several replies."""

    reproduced_by = "djinn_jupyter.api.reproducing:measured"
    _words: ClassVar[Mapping[str, str]] = {}
    _tabled: ClassVar[bool] = False
    _parts: ClassVar[str] = "parts"
    _values: Array | msgspec.UnsetType = msgspec.field(default=msgspec.UNSET, name="values")

    @property
    def _replies(self) -> tuple[Any, ...]:
        first = getattr(self, self.__struct_fields__[0])
        return (first,) if isinstance(first, ReplyBase) else tuple(first)

    @property
    def made(self) -> tuple[Circumstances, ...]:
        """The circumstances of each reply, from which its numbers follow; empty where no recipe reproduces them."""
        return tuple(circumstances(one.made) for one in self._replies if one.made is not None)

    @property
    def _digests(self) -> Digests | None:
        return digests_in([module for made in self.made for module in made.modules])

    def place_of(self, index: tuple[int, ...]) -> dict[str, Any]:
        """Return the place in the sequences, or in the model, of the value at this index."""
        return {f"axis {axis}": at for axis, at in enumerate(index)}

    def columns(self) -> dict[str, list[Any]]:
        """Return the values as lists by column, each with its place."""
        import numpy as np

        places = [self.place_of(tuple(at)) for at in np.ndindex(*self.values.shape)]
        names = list(places[0]) if places else []
        rows = [[place[name] for name in names] for place in places]
        return tables.in_columns(names, rows) | {"value": self.values.reshape(-1).tolist()}

    @arguments.typed
    def top(self, count: int = STRONGEST) -> Sequence[tuple[Any, ...]]:
        """Return the `count` values of largest magnitude, the largest first: the place of each, as in `place_of`, and
        the value. UsageError."""
        return [(*self.place_of(at).values(), value) for at, value in arrays.largest(self.compared_values, count)]

    @property
    def recipe(self) -> dict[str, Any]:
        """All that the values follow from: the sequences, the rules in force, attention, model and machine."""
        first = origin_of(self)
        return {
            "lines": list(self._lines),
            "rules": list(first.rules),
            "attention": first.attention,
            "adapter": None if first.adapter is None else msgspec.structs.asdict(first.adapter),
            "by": msgspec.structs.asdict(first.by),
        }

    # --- kept in a file --------------------------------------------------------------------------------------------

    def save(self, path: str | Path, *, replace: bool = False) -> Path:
        """Write the values with their recipe to a safetensors file, and return its path. An existing other file stays
        unless `replace`. `dj.reproduce` measures the values again. A name that ends in .pdf, .svg, .png or .html gets
        the figure. UsageError; StorageFailed."""
        if tables.is_picture(path):
            return super().save(path, replace=replace)
        target = named(path, type(self))
        _ = origin_of(self)
        put(target, self.in_file(), replace=replace)
        return target

    def in_file(self) -> bytes:
        """Return the bytes of its file, which may lack a recipe."""
        content, tensors = _content_of(self)
        return encoded(content, {name: (one.shape, [one]) for name, one in tensors.items()})

    @classmethod
    def from_file(cls, data: bytes, name: str) -> Self:
        """Return the result in the bytes of the file `name`, which may have no recipe. UsageError."""
        return decoded(data, name, cls, recipe=False)

    @property
    def computed_by(self) -> Provenance | None:
        """The model and the machine that computed it; None where no recipe computes it again."""
        return self.made[0].by if 0 < len(self._replies) == len(self.made) else None

    @classmethod
    def read(cls, path: str | Path) -> Self:
        """Read a file of `save`, with the same bits. UsageError where the file is of another kind, or damaged."""
        return read(path, cls)

    def require_fit(self) -> None:
        """Raise ValueError where the parts of a file do not fit each other."""
        for one in _results_in(self):
            one.require_fit()
        if getattr(self, "engine", None) is not None:
            raise ValueError("it names an engine, which is another by now")
        self.check()
        if self._values is not msgspec.UNSET and not arrays.same(self._values, self.values):
            raise ValueError("its values are not those of its reply")

    def require_recipe(self) -> None:
        """Raise ValueError where a part of a file has no recipe."""
        for one in _results_in(self):
            one.require_recipe()
        if len(self.made) != len(self._replies):
            raise ValueError("it has no recipe")

    def check(self) -> None:
        """Raise ValueError where arrays of the replies have wrong shapes or dtypes."""

    def __copy__(self) -> Self:
        return msgspec.structs.replace(self)

    # --- measured again ---------------------------------------------------------------------------------------------

    def again(self, channel: Channel) -> Self:
        """Return the same result, measured again: each request is repeated under its original circumstances."""
        anew = {name: self._anew(channel, getattr(self, name)) for name in self.__struct_fields__}
        return msgspec.structs.replace(self, **anew)

    def _anew(self, channel: Channel, value: Any) -> Any:
        """Return a field of the result, measured again."""
        if isinstance(value, ReplyBase):
            return self._replied_again(channel, value)
        if isinstance(value, Result):
            return value.again(channel)
        if isinstance(value, tuple | list) and value and isinstance(value[0], ReplyBase | Result):
            return type(value)([self._anew(channel, one) for one in interrupts.counted(value, self._parts)])
        return value

    def _replied_again(self, channel: Channel, reply: Any) -> Any:
        """Return the reply to the same request. UsageError where its modules are not added here as they were."""
        kind, made = self.ending.strip(".").partition(".")[0], circumstances(reply.made)
        likeness.require_modules(channel, made.modules)
        return asked_again(channel, self._request_of(reply), made, kind)

    def _request_of(self, reply: Any) -> SessionRequest[Any]:
        """Return the request that a reply answers, for any session: the field `request`, or a part of the recipe."""
        given = "request" in self.__struct_fields__
        request: SessionRequest[Any] = getattr(self, "request") if given else reply.made.asked  # noqa: B009
        return request

    def notes_on(self, same: bool) -> Sequence[str]:
        """Return sentences on why a repeated measurement may have other bits."""
        return ()


def origin_of(result: Result) -> Circumstances:
    """Return what the first of its numbers follow from. Raises UsageError where nothing reproduces them."""
    if not result.made:
        raise UsageError(f"No recipe makes this {type(result).__name__} again: {result._unmade}. {STILL}")
    return result.made[0]


def circumstances(made: Any) -> Circumstances:
    """Return what the numbers of a recipe follow from besides its request: a part of the recipe, or its fields."""
    if isinstance(made, Circumstances):
        return made
    if "made" in made.__struct_fields__:
        return circumstances(made.made)
    return Circumstances(rules=(), attention=made.attention, by=made.by, adapter=made.adapter)


def asked_again(channel: Channel, request: SessionRequest[Answer], made: Circumstances, kind: str) -> Answer:
    """Return the reply to a request in an empty session, under the original rules, attention and adapter."""
    ruled = "rules_of" in request.__struct_fields__
    with (
        likeness.ruling_session(channel, made) if ruled else nullcontext() as rules_of,
        likeness.session_like(channel, kind, None if ruled else made) as session,
    ):
        given: dict[str, Any] = {"session": session} | ({"rules_of": rules_of} if ruled else {})
        return interrupts.replied_in_parts(channel, msgspec.structs.replace(request, **given), "", lambda reply: None)


def _results_in(result: Result) -> Iterator[Result]:
    """Yield the results among the fields of a result."""
    for name in result.__struct_fields__:
        value = getattr(result, name)
        yield from (one for one in (value if isinstance(value, list | tuple) else [value]) if isinstance(one, Result))


def _content_of(result: Result) -> tuple[dict[str, Any], dict[str, Array]]:
    """Return the fields of a result by their names in a file, and its arrays by the names of their tensors."""
    told: dict[str, Any] = {"format": FORMAT, "version": __version__}
    tensors: dict[str, Array] = {}
    for name, written in zip(result.__struct_fields__, result.__struct_encode_fields__, strict=True):
        value = getattr(result, name)
        if name in NOT_KEPT:
            continue
        if isinstance(value, Result):
            told[written], inner = _content_of(value)
            tensors |= {f"{name} {of}": array for of, array in inner.items()}
        elif isinstance(value, list) and value and isinstance(value[0], Result):
            each = [_content_of(one) for one in value]
            told[written] = [content for content, _ in each]
            tensors |= {f"{of} {n}": array for n, (_, inner) in enumerate(each) for of, array in inner.items()}
        else:
            told[written] = value
            tensors |= {_tensor(result, path): array for path, array in _arrays_in(value, (name,))}
    if result._tabled:
        told["values"] = tensors[_tensor(result, ("values",))] = arrays.from_numpy(result.values)
    return told, tensors


def _tensor(result: Result, path: Steps) -> str:
    """Name a tensor: by the word for a field on its path, else by its last field, and by its numbers."""
    fields = [one for one in path if isinstance(one, str)]
    word = next((result._words[one] for one in fields if one in result._words), fields[-1])
    return " ".join([word, *(str(one) for one in path if isinstance(one, int))])


def _arrays_in(value: Any, path: Steps) -> Iterator[tuple[Steps, Array]]:
    """Yield the arrays of a reply with their paths; arrays of rules and edits in its recipe have no name."""
    if isinstance(value, Array):
        yield path, value
    elif isinstance(value, msgspec.Struct):
        for name in value.__struct_fields__:
            if name != "made":
                yield from _arrays_in(getattr(value, name), (*path, name))
    elif isinstance(value, list | tuple) and value and isinstance(value[0], Array | msgspec.Struct):
        for number, one in enumerate(value):
            yield from _arrays_in(one, (*path, number))
