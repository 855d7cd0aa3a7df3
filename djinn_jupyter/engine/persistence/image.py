"""A session as a value: structs and tensors, nothing that refers to the engine it lived in and nothing that runs.

A tap is kept as its site and kind, and found again in the anatomy of the engine that reads. Frames and lines are kept
once and referred to by number, because sessions compare them by identity. Texts are not kept; they follow from tokens.

Shapes: n layers of a run, H key-value heads, T positions, D features of a head.
"""

from __future__ import annotations

import msgspec
from torch import Tensor

from djinn_jupyter.engine.persistence.values import Kept
from djinn_jupyter.wire.edits import Edit
from djinn_jupyter.wire.frozen import Frozen
from djinn_jupyter.wire.nouns import BreakpointDescription, Exactness, Origin, PauseReason, Sampling
from djinn_jupyter.wire.sites import Site

StatesImage = dict[int, Kept]
"""Convolution and recurrent states by cache layer."""


class Part(Frozen):
    """Base of everything here."""


class TapImage(Part, frozen=True):
    site: Site
    kind: str


class ChangeImage(Part, frozen=True):
    what: str
    size: float
    rule: int | None


class InlayImage(Part, frozen=True):
    """`changes` say what made the value; none where it was kept by a version that did not note them."""

    tap: TapImage
    raw: Tensor
    changes: tuple[ChangeImage, ...] = ()


class FrameImage(Part, frozen=True):
    """The fields of a frame, by the same names."""

    tokens: tuple[int, ...]
    committed: int
    step: int
    boundary: int
    hidden: Tensor | None
    tap: TapImage | None
    raw: Tensor | None
    inlays: tuple[InlayImage, ...]
    shared: Kept
    states: StatesImage | None
    start_states: StatesImage | None


class LineImage(Part, frozen=True):
    """A line with its sampler. `states` may be left out of an image whose rows are; `state_lengths` says where they
    were, so that running the tokens again makes them anew."""

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
    log_probabilities: tuple[float | None, ...] = ()


class TokensImage(Part, frozen=True):
    """So many of the session's tokens, then `rest`."""

    shared: int
    rest: tuple[int, ...]


class StopImage(Part, frozen=True):
    """A stop of the history. `frame`, `left_as` and `line` are numbers of the image's frames and lines."""

    frame: int
    line: int
    tokens: TokensImage
    generator: Tensor
    reason: PauseReason
    breakpoint: BreakpointDescription | None
    also: tuple[str, ...]
    matched: int | None
    left_as: int | None
    number: int | None = None


class HistoryImage(Part, frozen=True):
    kept: int
    stops: tuple[StopImage, ...]
    present: int | None
    dropped: int


class BreakpointImage(Part, frozen=True):
    number: int
    tap: TapImage
    when: str | None
    once: bool
    enabled: bool
    hits: int
    note: str | None = None


class RuleImage(Part, frozen=True):
    """A rule and its books; `sizes` are all relative sizes of the run, oldest first."""

    number: int
    tap: TapImage
    edit: Edit
    positions: tuple[int, ...] | None
    passes_met: int
    passes_changed: int
    sizes: tuple[float, ...]
    enabled: bool = True


class EditImage(Part, frozen=True):
    """An edit of the present stop."""

    number: int
    what: str
    site: Site
    edit: Edit | None
    positions: tuple[int, ...] | None
    size: float
    enabled: bool


class WatchImage(Part, frozen=True):
    tap: TapImage
    byte_cap: int
    values: tuple[Tensor, ...]
    positions: tuple[tuple[int, ...], ...]
    bytes_held: int
    passes_left_out: int
    runs: tuple[int, ...] = ()  # empty in images of a time when a watch kept one run only


class HeldRule(Part, frozen=True):
    """A rule as it held in passes that are over; it may be gone from the session."""

    number: int
    tap: TapImage
    edit: Edit
    positions: tuple[int, ...] | None


class EntryImage(Part, frozen=True):
    """Where a pass was last entered after it had stood still, and what had been put in place of computed values."""

    boundary: int
    tap: TapImage | None
    inlays: tuple[InlayImage, ...]


class PassesImage(Part, frozen=True):
    """Positions [start, end) that were fed `each` at a time under the same rules (a number of the trail's rules)."""

    start: int
    end: int
    each: int
    decode: bool
    rules: int
    entry: EntryImage | None


class TrailImage(Part, frozen=True):
    """By which passes the committed positions came to be."""

    rules: tuple[tuple[HeldRule, ...], ...]
    passes: tuple[PassesImage, ...]


class RunRows(Part, frozen=True):
    """Keys [n, H, T, D] and values [n, H, T, D] of layers that have one shape."""

    keys: Tensor
    values: Tensor


class GroupRows(Part, frozen=True):
    """The rows of a page group for the positions [first, end), in flight ones too; `layers` are cache layers."""

    layers: tuple[int, ...]
    window: int | None
    first: int
    end: int
    runs: tuple[RunRows, ...]


class GroupPlaces(Part, frozen=True):
    """Where the pages of a group lie in the disk tier's file: (first byte, checksum) of each, in order of position, the
    first being the page number `behind`. Rows of [known_from, written) are in them, in flight ones too."""

    layers: tuple[int, ...]
    page_positions: int
    page_bytes: int
    behind: int
    written: int
    known_from: int
    pages: tuple[tuple[int, int], ...]


class PlacesImage(Part, frozen=True):
    """All rows and states of a session, by where they lie in the file of that name. The file may have changed since.

    `storages` are (first byte, bytes, checksum) by their numbers, of which the tensors in `states` (of the layers as
    they stand) and `lines` (kept on the way, by number of the line and committed length) are views."""

    file: str
    groups: tuple[GroupPlaces, ...]
    storages: dict[int, tuple[int, int, int]] = msgspec.field(default_factory=dict)
    states: StatesImage = msgspec.field(default_factory=dict)
    lines: dict[int, dict[int, StatesImage]] = msgspec.field(default_factory=dict)


class SessionImage(Part, frozen=True):
    """All of a session. `committed` positions are in the cache; `rows` is None where they have to be made again by
    running the tokens, or `places` says where they and the states may still be. `lost`: they had to be made again
    before this image already, so that `exactness` knows of it. A session that runs is kept as idle at its last
    committed step. `stop` and `edition` number where it stands: None where it ran, and in images written
    before there were such numbers."""

    name: str
    owner: str
    paused: bool
    tokens: tuple[int, ...]
    committed: int
    exactness: Exactness
    frames: tuple[FrameImage, ...]
    lines: tuple[LineImage, ...]
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
    trail: TrailImage
    rows: tuple[GroupRows, ...] | None
    places: PlacesImage | None = None
    lost: bool = False
    stop: int | None = None
    edition: int | None = None
    rule_numbers_given: int = 0
    runs: int = 0
    forked_from: Origin | None = None
    edits_made: tuple[EditImage, ...] = ()  # empty in images of a time when `edits` in force were noted alone
