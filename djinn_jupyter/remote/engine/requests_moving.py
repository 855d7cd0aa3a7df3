"""A session moves to another engine of the model, or comes from one. Which of the two has it is decided by the name of
a file (`move_folder`), or by a word in a store (`MoveStore`)."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Generator
from concurrent.futures import Future
from typing import Any, Final, TypeVar

import msgspec

from djinn_jupyter.engine.loop.dispatch import SessionLifecycle
from djinn_jupyter.engine.loop.mailbox import Holder
from djinn_jupyter.engine.loop.parts import BuiltOfParts, EngineParts
from djinn_jupyter.engine.loop.scheduler import Underway
from djinn_jupyter.engine.requests.handlers import handles
from djinn_jupyter.engine.requests.recipes import origin
from djinn_jupyter.engine.requests.sessions import WholeImages, require_name
from djinn_jupyter.engine.session import reports
from djinn_jupyter.engine.session.residence import Blocked, Pieces, Steps
from djinn_jupyter.engine.session.session import Moving, Session
from djinn_jupyter.engine.session.table import SessionTable
from djinn_jupyter.engine.store.checkpoint_files import UntilDone
from djinn_jupyter.engine.store.image import SessionImage
from djinn_jupyter.engine.store.persistence import Persistence
from djinn_jupyter.errors import IllegalMove, MissingDependency, StorageFailed, UsageError
from djinn_jupyter.remote.engine.move_folder import Moves
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.base import person_of
from djinn_jupyter.wire.provenance import Provenance, require_equal
from djinn_jupyter.wire.replies import MoveSettled, Opened, ProvenanceRead, SentAway
from djinn_jupyter.wire.texts import in_quotes

UNSETTLED_SECONDS: Final = 120.0
"""After which a move that its client has left is settled by the engine itself."""
AGAIN_SECONDS: Final = 30.0
"""After which that is tried again, where the place of the decision did not answer."""
Outcome = TypeVar("Outcome")

log = logging.getLogger(__name__)


class SessionMoves:
    """The sessions that leave, and the end of each move: as decided, or by deciding that the session stays."""

    def __init__(
        self,
        sessions: SessionTable,
        life: SessionLifecycle,
        persistence: Persistence,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._sessions, self._life, self._persistence, self._clock = sessions, life, persistence, clock
        self._leaving: dict[str, float] = {}
        self._settling: dict[str, Generator[Blocked | None, None, bool]] = {}

    def begin(self, session: Session, moving: Moving, until_done: UntilDone) -> Pieces:
        """Yield until the disk has the start of the move. Raises StorageFailed; the session stays then."""
        session.moving.begin(moving)
        try:
            yield from self._persistence.forced(self._sessions, session.name, until_done)
        except BaseException:
            self.end(session)
            raise

    def end(self, session: Session) -> None:
        """Let the session continue here."""
        session.moving.end()
        self._leaving.pop(session.name, None)
        self._sessions.changed(session.name)

    def left(self, session: Session, seconds: float = UNSETTLED_SECONDS) -> None:
        """Record that the session waits for a decision, and since when."""
        self._leaving[session.name] = self._clock() + seconds

    def undecided(self, session: Session) -> None:
        """Record a session whose place could not be read."""
        self.left(session, AGAIN_SECONDS)

    def at_place(self, moving: Moving, deed: Callable[[Moves], Outcome]) -> Future[Outcome]:
        """Call the place of a move in a thread of its own: a store may take long."""
        return self._persistence.file_worker.start(lambda: deed(self._persistence.moves.at(moving.store)))

    def settle(self, session: Session, moving: Moving, until_done: UntilDone) -> Generator[Blocked | None, None, bool]:
        """Return, once it is decided, whether the session is here; close it if it is with the other engine."""
        here: bool = yield from until_done(self.at_place(moving, lambda place: place.decide(moving)))
        if session.moving.present is not moving:
            return here  # settled meanwhile, by its client or by the engine itself
        if here:
            self.end(session)
            return True
        session.moving.end()
        self._leaving.pop(session.name, None)
        self._life.close(session)
        yield from self._persistence.forced(self._sessions, session.name, until_done)
        yield from until_done(self.at_place(moving, lambda place: place.forget(moving.move)))
        return False

    def settle_old(self) -> None:
        """Settle the moves that their clients have not settled in time; each advances with every call."""
        for name in [name for name, until in self._leaving.items() if self._clock() > until]:
            session = self._sessions.get(name)
            if session is None or session.moving.present is None:
                del self._leaving[name]
            elif name not in self._settling:
                self._settling[name] = self.settle(session, session.moving.present, looked_at)
        for name, steps in tuple(self._settling.items()):
            self._settle_further(name, steps)

    def _settle_further(self, name: str, steps: Generator[Blocked | None, None, bool]) -> None:
        try:
            next(steps)
            return
        except StopIteration:
            pass
        except (StorageFailed, MissingDependency) as error:
            log.warning("It is not decided yet whether session %r is here: %s", name, error)
            if name in self._sessions:
                self.left(self._sessions.find(name), AGAIN_SECONDS)
        del self._settling[name]


def looked_at(work: Future[Outcome]) -> Generator[None, None, Outcome]:
    """Yield until a thread has done its work, for a caller that polls. Raises the work's error."""
    while not work.done():
        yield
    return work.result()


class MoveRequests(BuiltOfParts):
    """`until_done` makes the steps that wait for file work."""

    def __init__(
        self,
        parts: EngineParts,
        life: SessionLifecycle,
        moves: SessionMoves,
        images: WholeImages,
        until_done: UntilDone,
    ) -> None:
        super().__init__(parts)
        self._life, self._moves, self._images, self._until_done = life, moves, images, until_done

    @property
    def _here(self) -> Provenance:
        return origin(self._persistence.identity, self._runtime.description)

    @handles(ask.ReadProvenance)
    def read_provenance(self, request: ask.ReadProvenance, holder: Holder) -> ProvenanceRead:
        places = self._persistence.moves
        return ProvenanceRead(
            provenance=self._here, stores=places.stores, folder=places.folder is not None, person=holder.person
        )

    @handles(ask.SendAway)
    def send_away(self, request: ask.SendAway, session: Session, holder: Holder) -> Steps[SentAway]:
        self._persistence.moves.require(request.store)
        require_equal(self._here, request.to)
        if session.temporary:
            raise UsageError(f"Session {in_quotes(session.name)} is that of a measurement, and ends with it.")
        rows = yield from self._images.rows(session)
        moving = Moving(move=request.move, end="leaves", origin=self._here, store=request.store, person=request.person)
        yield from self._moves.begin(session, moving, self._until_done)
        try:
            with self._images.image(session, rows) as image:
                written = yield from self._written(moving, _with_people(image, session))
        except BaseException:
            self._moves.end(session)
            raise
        self._moves.left(session)
        return SentAway(bytes_written=written)

    def _written(self, moving: Moving, image: SessionImage) -> Generator[Blocked | None, None, int]:
        abandoned, described = threading.Event(), self._images.describe(image.name, image)
        write = self._moves.at_place(moving, lambda place: place.write(moving.move, image, described, abandoned))
        try:
            written: int = yield from self._until_done(write)
            return written
        finally:
            abandoned.set()

    @handles(ask.TakeIn)
    def take_in(self, request: ask.TakeIn, holder: Holder) -> Underway:
        """Take in a session, which joins the engine's when it is complete; until then nothing changes."""
        self._persistence.moves.require(request.store)
        require_name(request.session, self._sessions)
        empty = self._images.empty(request.session, holder)
        return Underway(session=empty, steps=self._take_in(request, holder, empty))

    def _take_in(self, request: ask.TakeIn, holder: Holder, waits: Session) -> Steps[Opened]:
        moves, files = self._persistence.moves, self._persistence.file_worker
        reading = files.start(lambda: moves.at(request.store).read(request.move))
        image: SessionImage = yield from self._until_done(reading)
        moving = _arriving(image, request, holder, self._here)
        session = yield from self._images.placed(image, f"The move of {image.name}", request.session, holder, waits)
        try:
            yield from self._until_done(self._moves.at_place(moving, lambda place: place.begin_arrival(moving.move)))
            require_name(request.session, self._sessions)  # again: another may have opened it meanwhile
        except BaseException:
            session.cache.free()
            raise
        session.shares.take_over(image.shares)
        session.answered.take_over(image.answered, image.let_go)
        session.attach(holder.name, holder.notebook)
        session.moving.begin(moving)
        self._life.begin(session)
        yield from self._arrive(session, moving)
        return Opened(session=reports.describe(session), created=True)

    def _arrive(self, session: Session, moving: Moving) -> Pieces:
        """Decide that the session, which waits for this engine, is here: an image of it from before in the journal
        would bring it back beside the one that stayed. Raises IllegalMove where it has stayed meanwhile,
        StorageFailed."""
        try:
            yield from self._persistence.forced(self._sessions, session.name, self._until_done)
        except BaseException:
            self._life.close(session)
            raise
        self._moves.left(session)
        if not (yield from self._moves.settle(session, moving, self._until_done)):
            raise IllegalMove(
                f"Session {in_quotes(session.name)} has stayed where it was, because the move was given up meanwhile."
            )

    @handles(ask.SettleMove)
    def settle_move(self, request: ask.SettleMove, holder: Holder) -> MoveSettled | Underway:
        """Settle a move beside any other work for its session."""
        session = self._sessions.get(request.session)
        if session is None:
            return MoveSettled(stayed=False)
        moving = session.moving.present
        if moving is not None and (moving.end, moving.move) == ("leaves", request.move):
            beside = self._images.empty(request.session, holder)
            return Underway(session=beside, steps=self._settled(session, moving))
        return MoveSettled(stayed=True)

    def _settled(self, session: Session, moving: Moving) -> Steps[MoveSettled]:
        return MoveSettled(stayed=(yield from self._moves.settle(session, moving, self._until_done)))


def _with_people(image: SessionImage, session: Session) -> SessionImage:
    """Return the image with the parts that a checkpoint omits: the persons it is shared with, and its answered
    requests."""
    return msgspec.structs.replace(
        image,
        shares=session.shares.by_person,
        answered=tuple(session.answered),
        let_go=session.answered.let_go,
    )


def _arriving(image: SessionImage, request: ask.TakeIn, holder: Holder, here: Provenance) -> Moving:
    """Return the move as the receiving engine records it. Raises UsageError where it was sent to another person, or is
    invalid; FingerprintsDiffer."""
    left: Any = image.moving
    if left is None or (left.move, left.store) != (request.move, request.store):
        raise UsageError("This is no move of a session.")
    if left.person != person_of(request.session):
        whose = "the engine's own user" if left.person is None else left.person
        raise UsageError(
            f"The session was sent to {whose}, who alone can take it in; move it again, as who is to have it here."
        )
    require_equal(here, left.origin)
    return Moving(move=left.move, end="arrives", origin=left.origin, store=left.store, person=left.person)
