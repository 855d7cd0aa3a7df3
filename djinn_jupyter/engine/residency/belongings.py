"""What a session has on the device: its pages, and every tensor of its stops, states and logits. Reads only."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor

from djinn_jupyter.engine.frame import Frame
from djinn_jupyter.engine.memory.blobs import Blob, Blobs
from djinn_jupyter.engine.memory.items import Item
from djinn_jupyter.engine.memory.slab import Page
from djinn_jupyter.engine.memory.states import LayerState

if TYPE_CHECKING:
    from djinn_jupyter.engine.session import Session


def pages_of(session: Session) -> Iterator[Page]:
    for group in session.cache.groups:
        for number in group.table.pages:
            yield group.slab.page(number)


def blobs_of(session: Session, blobs: Blobs) -> list[Blob]:
    """One blob for each storage, those that passes write in place marked as of the session's present version."""
    here = session.residence
    if here.blobs_known is None or here.blobs_known[0] != here.version or session.job is not None:
        here.blobs_known = (here.version, _found(session, blobs))
    return [blob for blob in here.blobs_known[1] if not blob.expired]


def _found(session: Session, blobs: Blobs) -> list[Blob]:
    found: dict[int, Blob] = {}
    for tensor in _kept(session):
        blob = blobs.of(tensor)
        if blob is not None:
            found[blob.identity] = blob
    for state in session.cache.live_states().values():
        for tensor in state.tensors():
            blob = blobs.of(tensor)
            if blob is not None:
                blob.written_at(session.residence.version)
                found[blob.identity] = blob
    return list(found.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Belongings:
    """Bytes of a session by where they are: on the device, of those with no copy anywhere (`dirty`), and copies."""

    device: int
    dirty: int
    host: int
    disk: int

    @classmethod
    def nothing(cls) -> Belongings:
        return cls(device=0, dirty=0, host=0, disk=0)

    @classmethod
    def count(cls, session: Session, blobs: Blobs) -> Belongings:
        device = dirty = host = disk = 0
        for item in items_of(session, blobs):
            size, copies = item.nbytes, item.copies
            if item.resident:
                device += size
                dirty += 0 if copies else size
            host += size if "host" in copies else 0
            disk += size if "disk" in copies else 0
        return cls(device=device, dirty=dirty, host=host, disk=disk)


def items_of(session: Session, blobs: Blobs) -> list[Item]:
    return [*pages_of(session), *blobs_of(session, blobs)]


def _kept(session: Session) -> Iterator[Tensor]:
    """Tensors that nobody writes to."""
    frames: dict[int, Frame] = {}
    for frame in (session.frame, *(f for s in session.history.stops for f in (s.frame, s.left_as))):
        if frame is not None:
            frames[id(frame)] = frame
    frames.update((id(passes.entry), passes.entry) for passes in session.trail.passes if passes.entry is not None)
    if session.logits_1V is not None:
        yield session.logits_1V
    yield from _of_states(session.journal.values())
    for line in session.lines:
        for kept in line.states.values():
            yield from _of_states(kept.values())
    for frame in frames.values():
        yield from _of_frame(frame)


def _of_frame(frame: Frame) -> Iterator[Tensor]:
    yield from _within((frame.hidden, frame.raw, frame.shared))
    for inlay in frame.inlays:
        yield inlay.raw
    for states in (frame.states, frame.start_states):
        yield from _of_states((states or {}).values())


def _of_states(states: Iterable[LayerState]) -> Iterator[Tensor]:
    for state in states:
        yield from state.tensors()


def _within(value: Any) -> Iterator[Tensor]:
    """The tensors in nested mappings and sequences."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for part in value.values():
            yield from _within(part)
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _within(part)
