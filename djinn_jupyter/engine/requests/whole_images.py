"""Whole images of sessions, with their rows and states, and sessions made of such images. Knows no files."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager

from torch import Tensor

from djinn_jupyter.engine.memory.kv.cache import PagedCache
from djinn_jupyter.engine.memory.kv.rows import Rows, put_rows, take_rows
from djinn_jupyter.engine.memory.offload.storages import StorageTable
from djinn_jupyter.engine.persistence import checkpoint_files, dump, load
from djinn_jupyter.engine.persistence.image import SessionImage
from djinn_jupyter.engine.persistence.swapped_values import values_of
from djinn_jupyter.engine.residency.residency import Residency
from djinn_jupyter.engine.scheduling.mailbox import Holder
from djinn_jupyter.engine.session.footprint import own_tensors, past_tensors, tensors_of_states
from djinn_jupyter.engine.session.given_arrays import parts_within
from djinn_jupyter.engine.session.history import History
from djinn_jupyter.engine.session.runtime import Runtime
from djinn_jupyter.engine.session.session import Session
from djinn_jupyter.engine.session.steps import Blocked
from djinn_jupyter.errors import CheckpointRefused
from djinn_jupyter.options import SettledOptions
from djinn_jupyter.wire.nouns import CheckpointDescription

TakingRows = Generator[None, None, tuple[Rows, ...]]


class WholeImages:
    def __init__(
        self, runtime: Runtime, residency: Residency, storage_table: StorageTable, options: SettledOptions
    ) -> None:
        self._runtime, self._residency = runtime, residency
        self._storage_table, self._options = storage_table, options

    def rows(self, session: Session) -> TakingRows:
        """Take the rows of a session step by step, those of a stopped pass too."""
        end = session.cache.length if session.frame is None else session.frame.committed + len(session.frame.tokens)
        return take_rows(session.cache, end)

    @contextmanager
    def image(self, session: Session, rows: Sequence[Rows]) -> Iterator[SessionImage]:
        """Yield the image of a session, whose tensors stay where they are meanwhile."""
        groups = zip(self._runtime.forward.geometry.groups, rows, strict=True)
        image = dump.dump_session(session, tuple(dump.group_rows(group, taken) for group, taken in groups))
        with self._residency.pinned((*own_tensors(session), *past_tensors(session))):
            yield dump.with_values(
                image,
                self._storage_table.is_away,
                lambda tensor: values_of(self._storage_table, tensor).clone(),
            )

    def describe(self, name: str, image: SessionImage) -> CheckpointDescription:
        """Return the list entry of a file that is about to have the image."""
        model = self._runtime.description
        return checkpoint_files.describe(name, image, model.name, model.dtype)

    def empty(self, name: str, holder: Holder) -> Session:
        """Return a session whose work is to be made of an image."""
        return Session(
            name=name,
            owner=holder.user,
            holder=holder.name,
            cache=self._runtime.space.new_cache(),
            history=History(kept=self._options.stops_kept),
        )

    def placed(
        self, image: SessionImage, source: str, name: str, holder: Holder, waits: Session
    ) -> Generator[Blocked | None, None, Session]:
        """Return a session like the image, with its rows and states, not yet in the table. `source` names the file in a
        refusal; `waits` is the session whose job this is. Raises SlabFull where no room can be made, and OverQuota
        where the person may not have so much."""
        need = _bytes_at_once(image)
        yield from self._residency.set_aside(waits, need, of_quota=need)
        session = load.load_session(
            self._runtime,
            image,
            name=name,
            owner=holder.user,
            holder=holder.name,
            stops_kept=self._options.stops_kept,
        )
        try:
            self._residency.note_tensors(own_tensors(session))
            self._residency.put_back()
            rows = load.rows_of(self._runtime, image)
            yield from self._put(session.cache, rows, image.committed, waits)
            session.cache.restore_all(load.states_of(self._runtime, image.states or {}))
            self._residency.note_tensors((*tensors_of_states(session.cache.live_states()), *past_tensors(session)))
        except checkpoint_files.CRAFTED as error:
            session.cache.free()
            raise CheckpointRefused(f"{source} is refused. What it holds does not fit this engine: {error}.") from error
        except BaseException:
            session.cache.free()
            raise
        return session

    def _put(
        self, cache: PagedCache, rows: Sequence[Rows], length: int, waits: Session
    ) -> Generator[Blocked | None, None, None]:
        """Put rows into pages, once there is room for them."""
        need = bytes_of(rows)

        def begun() -> Generator[None, None, None]:
            steps = put_rows(cache, rows, length)
            next(steps, None)
            return steps

        yield from (yield from self._residency.with_room(waits, lambda: need, begun, of_quota=lambda: need))


def _bytes_at_once(image: SessionImage) -> int:
    """Return the bytes that an image takes on the device at once, but for the ends of pages: older stops may leave."""
    present = () if image.frame is None else image.frames[image.frame : image.frame + 1]
    kept = parts_within((*present, image.logits, image.states, image.rows), Tensor)
    return sum({id(tensor): tensor.nbytes for tensor in kept}.values())


def bytes_of(rows: Sequence[Rows]) -> int:
    return sum(tensor.nbytes for group in rows for pair in group.runs for tensor in pair)
