"""Mail on the engine's thread: each piece is handed to the part that it is for. Answers nothing itself."""

from __future__ import annotations

from djinn_jupyter.engine.memory.offload.mover import Moved
from djinn_jupyter.engine.memory.offload.storages import StorageTable
from djinn_jupyter.engine.requests.dispatcher import Dispatcher
from djinn_jupyter.engine.requests.lifecycle import SessionLifecycle
from djinn_jupyter.engine.residency.residency import Residency
from djinn_jupyter.engine.scheduling.mailbox import Departure, Holder, Mail, Mailbox, QueuedRequest, TextRead
from djinn_jupyter.engine.session.table import SessionTable
from djinn_jupyter.engine.system.faults import Faults


class Delivery:
    def __init__(
        self,
        mailbox: Mailbox,
        dispatcher: Dispatcher,
        *,
        sessions: SessionTable,
        life: SessionLifecycle,
        residency: Residency,
        storage_table: StorageTable,
        faults: Faults,
    ) -> None:
        self._mailbox, self._dispatcher, self._sessions, self._life = mailbox, dispatcher, sessions, life
        self._residency, self._storage_table, self._faults = residency, storage_table, faults

    def read_mail(self) -> bool:
        """Deliver the mail that is there; mail that comes meanwhile waits until a job has had its slice. Return False
        where there was none."""
        mail = self._mailbox.take_all()
        for piece in mail:
            self._deliver(piece)
        with self._faults.during("it tidied up"):
            self._storage_table.tidy()
        return bool(mail)

    def hear(self, seconds: float) -> None:
        """Wait for mail for so many seconds at most, and read it."""
        self._mailbox.wait(seconds)
        self.read_mail()

    def _deliver(self, piece: Mail) -> None:
        match piece:
            case Departure(holder=holder):
                with self._faults.during("a holder went"):
                    self._let_go(holder)
            case Moved():
                with self._faults.during("it settled a move between tiers"):
                    self._residency.settle(piece)
            case TextRead(session=session):
                self._dispatcher.read(session)
            case QueuedRequest():
                self._dispatcher.dispatch(piece)

    def _let_go(self, holder: Holder) -> None:
        """Close the holder's temporary sessions and detach the others."""
        for session in [one for one in self._sessions.values() if one.holder == holder.name]:
            if session.temporary:
                self._life.close(session)
            else:
                session.detach()
                self._residency.note(session, "gone")
                self._sessions.touch(session.name)
