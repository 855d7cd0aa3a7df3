"""A session as plain data: structs and tensors, without references to its engine and without executable content.

A tap is stored as its site and kind and resolved again in the anatomy of the engine that reads. Frames and lines are
stored once and referred to by number, because sessions compare them by identity. Texts are not stored; they follow from
the tokens.

Shapes: n layers of a run, H key-value heads, T positions, D features of a head.

Fields keep their names where a class got another one (`trail`, `inlays`, `line`, `journal`): files are read by them.
A session's fields stay in one class, because an image takes them by their names: with three records in it (computed,
set by its user, its ownership) the package had some 80 lines more, in dump and load too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import Field, fields
from typing import Any, ClassVar, Protocol, Self, TypeVar

import msgspec
import torch
from torch import Tensor

from djinn_jupyter.engine.session.history import CachedEdit, StopEdit
from djinn_jupyter.engine.session.session import AnsweredRequest, Moving
from djinn_jupyter.engine.store.values import Kept
from djinn_jupyter.engine.system.arrays import to_array, to_tensor
from djinn_jupyter.errors import CheckpointRefused, UsageError
from djinn_jupyter.wire.arrays import Array
from djinn_jupyter.wire.base import Access, Frozen, OwnerName
from djinn_jupyter.wire.edits import Edit
from djinn_jupyter.wire.modules import AdapterIdentity, ModuleIdentity
from djinn_jupyter.wire.nouns import BreakpointDescription, Exactness, Mode, Origin, PassesMeant, PauseReason, Sampling
from djinn_jupyter.wire.request_base import ConditionText, Name, Spelling
from djinn_jupyter.wire.sites import Site


class OfFields(Protocol):
    """A dataclass, as `dataclasses.fields` takes it."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]


Thing = TypeVar("Thing", bound=OfFields)
StatesImage = dict[int, Kept]
"""Convolution and recurrent states by cache layer."""


class ImagePart(Frozen):
    """Base class of all structs here. A field that is stored unchanged has the name of the original's attribute, and is
    named nowhere else: `of` reads it, `like` restores it."""

    @classmethod
    def of(cls, thing: object, **made: Any) -> Self:
        """Return the image of `thing`: its attributes with the fields' names, except those `made`."""
        return cls(**made, **{name: getattr(thing, name) for name in cls.__struct_fields__ if name not in made})

    def like(self, kind: type[Thing], **made: Any) -> Thing:
        """Return a `kind` with the image's fields of the same names, except those `made`."""
        names = {field.name for field in fields(kind)}.intersection(self.__struct_fields__)
        return kind(**{name: getattr(self, name) for name in names.difference(made)}, **made)


class TapImage(ImagePart, frozen=True):
    """A tap. `added` is the module whose values it has: by its folder and digest, never its tensors."""

    site: Site
    kind: str
    added: ModuleIdentity | None


class ChangeImage(ImagePart, frozen=True):
    what: str
    size: float
    rule: int | None


class OverrideImage(ImagePart, frozen=True):
    """An override. `changes` are the edits and rules that made the value."""

    tap: TapImage
    raw: Tensor
    changes: tuple[ChangeImage, ...]


class FrameImage(ImagePart, frozen=True):
    tokens: tuple[int, ...]
    committed: int
    step: int
    boundary: int
    hidden: Tensor | None
    tap: TapImage | None
    raw: Tensor | None
    inlays: tuple[OverrideImage, ...]
    shared: Kept
    states: StatesImage | None
    start_states: StatesImage | None


class GenerationImage(ImagePart, frozen=True):
    """A generation with its sampler. A light image (without rows) leaves `states` empty; `state_lengths` are the
    committed lengths that had states, so that recomputing makes them again."""

    begins: int
    fed_from: int
    max_new_tokens: int
    sampling: Sampling
    prompt_length: int
    generator: Tensor
    stop: tuple[str, ...]
    eos: tuple[int, ...]
    ignored_defaults: tuple[str, ...]
    layers_run: int
    passes: int
    drawn: tuple[Tensor, ...]
    states: dict[int, StatesImage]
    state_lengths: tuple[int, ...]
    log_probabilities: tuple[float | None, ...]
    mode: Mode
    shared: int
    difference: float | None
    extends: int
    earlier: tuple[tuple[int, Sampling], ...] = ()


class TokensImage(ImagePart, frozen=True):
    """The first `shared` tokens of the session, then `rest`."""

    shared: int
    rest: tuple[int, ...]


class StopImage(ImagePart, frozen=True):
    """A stop of the history. `frame`, `left_as` and `line` index the image's frames and lines."""

    frame: int
    line: int
    tokens: TokensImage
    generator: Tensor
    reason: PauseReason
    breakpoint: BreakpointDescription | None
    also: tuple[str, ...]
    matched: int | None
    left_as: int | None
    number: int | None


class HistoryImage(ImagePart, frozen=True):
    kept: int
    stops: tuple[StopImage, ...]
    present: int | None
    dropped: int


class BreakpointImage(ImagePart, frozen=True):
    number: int
    tap: TapImage
    when: ConditionText | None
    once: bool
    enabled: bool
    hits: int
    note: str | None


class HeldRule(ImagePart, frozen=True):
    """A rule in past passes; the session may have removed it since. `more` are the taps after the first."""

    number: int
    tap: TapImage
    edit: Edit
    positions: tuple[int, ...] | None
    more: tuple[TapImage, ...]
    named: Spelling
    onward: int | None
    on: PassesMeant | None
    when: ConditionText | None
    words: Spelling | None


class RuleImage(HeldRule, frozen=True):
    """A rule of the session and its accounting; `sizes` are all relative sizes of the run, oldest first."""

    passes_met: int
    passes_changed: int
    sizes: tuple[float, ...]
    enabled: bool
    note: str | None
    passes_refused: int
    trouble: str | None
    met_at: int | None
    refused_at: int | None


class WatchImage(ImagePart, frozen=True):
    tap: TapImage
    byte_cap: int
    values: tuple[Tensor, ...]
    positions: tuple[tuple[int, ...], ...]
    bytes_held: int
    passes_left_out: int
    runs: tuple[int, ...]
    direction: Name | None
    unit: Tensor | None


class EntryImage(ImagePart, frozen=True):
    """The place of a stopped pass's last entry, and the overrides (`inlays`) of its computed values."""

    boundary: int
    tap: TapImage | None
    inlays: tuple[OverrideImage, ...]


class PassesImage(ImagePart, frozen=True):
    """Positions [start, end), fed `each` at a time under the same rules (`rules` is an index in the pass log)."""

    start: int
    end: int
    each: int
    decode: bool
    rules: int
    entry: EntryImage | None


class PassLogImage(ImagePart, frozen=True):
    """The pass log: the passes that produced the committed positions, and edits of these."""

    rules: tuple[tuple[HeldRule, ...], ...]
    passes: tuple[PassesImage, ...]
    edited: tuple[CachedEdit, ...]


class RunRows(ImagePart, frozen=True):
    """Keys [n, H, T, D] and values [n, H, T, D] of n layers with one shape."""

    keys: Tensor
    values: Tensor


class GroupRows(ImagePart, frozen=True):
    """Rows of a page group for the positions [first, end), including in-flight ones; `layers` are cache layers."""

    layers: tuple[int, ...]
    window: int | None
    first: int
    end: int
    runs: tuple[RunRows, ...]


class GroupPlaces(ImagePart, frozen=True):
    """Places of a group's pages in the disk tier's file: (first byte, checksum) of each, in order of position,
    beginning with page number `behind`. They hold the rows [known_from, written), including in-flight ones."""

    layers: tuple[int, ...]
    page_positions: int
    page_bytes: int
    behind: int
    written: int
    known_from: int
    pages: tuple[tuple[int, int], ...]


class PlacesImage(ImagePart, frozen=True):
    """Places of all rows and states of a session in the disk tier's file of the name `file`, which may have changed
    since.

    `storages` are (first byte, bytes, checksum) by number. The tensors in `states` (current states of the layers) and
    `lines` (states kept along a line, by number of the line and committed length) are views of them.
    """

    file: str
    groups: tuple[GroupPlaces, ...]
    storages: dict[int, tuple[int, int, int]]
    states: StatesImage
    lines: dict[int, dict[int, StatesImage]]


class SessionImage(ImagePart, frozen=True):
    """A whole session. `committed` positions are in the cache. `rows` is None where the rows have to be recomputed from
    the tokens, or `places` says where they and the states may still be. `lost`: they were missing already when this
    image was taken, so that `exactness` accounts for it. A running session is stored as idle at its last committed
    step. `stop` and `edition` number its present stop: None where it ran."""

    name: str
    owner: str
    paused: bool
    tokens: tuple[int, ...]
    committed: int
    exactness: Exactness
    frames: tuple[FrameImage, ...]
    lines: tuple[GenerationImage, ...]
    frame: int | None
    line: int | None
    history: HistoryImage
    edits: tuple[str, ...]
    breakpoints: tuple[BreakpointImage, ...]
    rules: tuple[RuleImage, ...]
    watches: tuple[WatchImage, ...]
    numbers_given: int
    logits: Tensor | None
    journal: StatesImage
    states: StatesImage | None
    trail: PassLogImage
    rows: tuple[GroupRows, ...] | None
    places: PlacesImage | None
    lost: bool
    stop: int | None
    edition: int | None
    rule_numbers_given: int
    runs: int
    forked_from: Origin | None
    edits_made: tuple[StopEdit, ...]
    attention: str | None
    adapter: AdapterIdentity | None
    shares: dict[OwnerName, Access]  # by person, of a journal; a restored checkpoint has none, nor what follows
    answered: tuple[AnsweredRequest, ...]
    let_go: dict[bytes, int]
    holder: str | None
    moving: Moving | None


# Encode an image as bytes and numbered arrays, and decode it. The only place where an image's tensors get their
# numbers. In the bytes a tensor is the number of an array, so that a tensor shared by several parts of a session, or
# by several images of one file, is stored once.

Struct = TypeVar("Struct")


class ArrayHead(Frozen, frozen=True):
    """Describes an array of a file. `at_home`: it belongs on the engine's device, else on the host."""

    number: int
    dtype: str
    shape: tuple[int, ...]
    at_home: bool


class TensorTable:
    """Numbers tensors, each once. Keeps a reference to every numbered object: Python reuses the id of a freed one.
    `device` is the engine's."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._numbers: dict[int, int] = {}
        self._held: dict[int, tuple[object, Tensor]] = {}
        self._next = self._before = 0
        self.met: set[int] = set()

    def encode(self, image: msgspec.Struct) -> tuple[bytes, list[tuple[ArrayHead, Tensor]]]:
        """Return the bytes of an image, and the arrays in it that had no number before, on their present devices."""
        self._before = self._next
        self.met = set()
        try:
            body = msgspec.msgpack.encode(image, enc_hook=self._place)
        except BaseException:
            self.take_back()
            raise
        fresh = ((number, self._held[number][1]) for number in range(self._before, self._next))
        return body, [(self._head(number, tensor), tensor) for number, tensor in fresh]

    def forget_unmet(self) -> None:
        """Release the tensors that the last image did not refer to; if they recur, they get new numbers."""
        for number in [number for number in self._held if number not in self.met]:
            owner, _ = self._held.pop(number)
            del self._numbers[id(owner)]

    def take_back(self) -> None:
        """Release the arrays that were new in the last image, because they were not stored after all."""
        for number in [number for number in self._held if number >= self._before]:
            owner, _ = self._held.pop(number)
            del self._numbers[id(owner)]
            self.met.discard(number)

    @property
    def bytes_met(self) -> int:
        """Bytes of the arrays that the last image refers to."""
        return sum(self._held[number][1].nbytes for number in self.met)

    def _head(self, number: int, tensor: Tensor) -> ArrayHead:
        return ArrayHead(
            number=number,
            dtype=str(tensor.dtype).removeprefix("torch."),
            shape=tuple(tensor.shape),
            at_home=tensor.device.type == self._device.type,
        )

    def _place(self, value: Any) -> int:
        if id(value) not in self._numbers:
            tensor = value if isinstance(value, Tensor) else _tensor_of(value)
            self._numbers[id(value)] = self._next
            self._held[self._next] = (value, tensor)
            self._next += 1
        number = self._numbers[id(value)]
        self.met.add(number)
        return number


def decode(body: bytes, kind: type[Struct], array: Callable[[int], Tensor | None] = lambda number: None) -> Struct:
    """Return the object that `TensorTable.encode` encoded; `array` gives its arrays by number. Raises CheckpointRefused
    where it is not of that kind or names a missing array."""

    def place(wanted: type, value: Any) -> Any:
        tensor = array(value) if isinstance(value, int) else None
        if tensor is None:
            raise ValueError("it refers to an array that is not there")
        return tensor if wanted is Tensor else to_array(tensor)

    try:
        return msgspec.msgpack.decode(body, type=kind, dec_hook=place)
    except (msgspec.MsgspecError, UsageError, ValueError, RecursionError, OverflowError) as error:
        said = str(error).rstrip(".")
        raise CheckpointRefused(f"It cannot be read by this version of Djinn: {said}.") from None


def _tensor_of(value: Any) -> Tensor:
    if isinstance(value, Array):
        return to_tensor(value)
    raise CheckpointRefused(f"A {type(value).__name__} cannot be kept.")
