"""One model on one device, its slabs and its sessions; moved by `tick`. Knows no sockets.

Any thread may `submit`; everything else happens on the engine's thread: read the mail, give the next job a slice,
reply. A job yields between layers whenever there is mail, so no command waits longer than a layer for another session's
prefill."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import ExitStack

import torch

from djinn_jupyter.engine.loop.mailbox import Holder
from djinn_jupyter.engine.loop.replies import EngineReading
from djinn_jupyter.engine.process.assemble import Foundation, Parts
from djinn_jupyter.errors import DjinnError, from_code
from djinn_jupyter.files import Stamps
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.base import Access
from djinn_jupyter.wire.nouns import ModelDescription, OwnerBudget
from djinn_jupyter.wire.replies import Failed, Reply


class Engine(Parts):
    """The loop over the parts: `tick` is the page to read first."""

    def __init__(self, given: Foundation) -> None:
        super().__init__(given)
        self.submit, self.accept, self.lose_holder = self.intake.submit, self.intake.accept, self.intake.lose_holder

    # --- from any thread -------------------------------------------------------------------------------------------

    @property
    def description(self) -> ModelDescription:
        return self.runtime.description

    @property
    def files(self) -> Stamps:
        """The model's files as they were when they were read."""
        return self.weights.files.stamps

    @property
    def reading(self) -> EngineReading:
        """The last published state."""
        return self.state_publisher.reading

    @property
    def worked(self) -> Mapping[str | None, float]:
        """The seconds that this engine has worked for each person; None is its own user."""
        return self.running_time.worked

    @property
    def keeps_sessions(self) -> bool:
        """True where the next engine will recover the sessions."""
        return self.persistence.journal is not None

    def access(self, session: str, person: str) -> Access | None:
        """Return a person's present access to another's session."""
        found = self.sessions.get(session)
        return None if found is None else found.shares.access(person)

    def left_by(self, holder: Holder) -> tuple[str, ...]:
        """Return the sessions that this holder had with an earlier engine, not opened since."""
        known = tuple(self.sessions.values())
        return tuple(s.name for s in known if s.left_by == holder.name and s.owner == holder.user and s.holder is None)

    def apply_owner_budgets(
        self, budget_of: Callable[[str], OwnerBudget], require_reader: Callable[[str], None] | None = None
    ) -> None:
        """Apply `budget_of` to every owner at each check, and compute nothing for one whom `require_reader` refuses."""
        self.residency.owner_budgets.use(budget_of, require_reader)

    def forget_sessions(self) -> None:
        """Have the engine leave no journal at its end."""
        self.persistence.forget_all()

    # --- on the engine's thread ------------------------------------------------------------------------------------

    @torch.inference_mode()
    def tick(self, let_out: Callable[[], None] = lambda: None) -> bool:
        """Read the mail and give one job a slice. Return False when there was nothing to do. `let_out` is called
        when replies were posted and no job waits: it may wait until they have left. Raises only EngineBroken and
        ClaimLost."""
        changes = self.residency.changes
        self.persistence.require_claim()
        received = self.dispatcher.read_mail()
        if received:
            self._reply(let_out)  # before the job's slice, which may last until the next mail
        acted = self.turns.advance_next()
        retried = self.dispatcher.retry_all()
        busy = received or acted or retried
        if not busy:
            self.upkeep.rest()
        self.upkeep.move_sessions()
        busy = busy or self.residency.changes != changes  # jobs that wait for room check again now
        self._reply(let_out, idle=not busy)
        self.upkeep.look_around(busy)
        return busy

    def _reply(self, let_out: Callable[[], None], idle: bool = False) -> None:
        if self.reply_gate.send() and not len(self.scheduler):
            let_out()
        self.reply_gate.publish(idle)

    @property
    def watchful(self) -> bool:
        """True while some session could be evicted, evicted ones left memory to give back, or a session is not yet in
        the journal: the daemon then ticks every second instead of every five."""
        return bool(self.persistence.unkept) or self.residency.has_to_look

    @property
    def due_in(self) -> float:
        """The seconds after which the engine has to be ticked again without mail; infinite if never."""
        return min(self.residency.due_in, self.runtime.sharing.due_in)

    def check_invariants(self, contents: bool = False) -> None:
        """Raise InvariantError unless slabs, tables and tiers agree; with `contents`, compare working copies too."""
        self.accounting.check(contents)

    def ask(self, request: ask.Request, holder: Holder | None = None) -> Reply:
        """Submit and tick until this request is answered: for use without threads or sockets. Raises its error."""
        replies: list[Reply] = []
        self.submit(request, holder or Holder(name="here", user="here"), replies.append)
        while not replies:
            tokenizing = self.tokenizing.busy  # read first: a finished worker has replied before
            if self.tick() or replies:
                continue
            due_in = self.runtime.sharing.due_in
            if self.tiers.moving or tokenizing:
                self.mailbox.wait()
            elif due_in < math.inf:
                self.mailbox.wait(due_in)
            else:
                raise DjinnError("The engine is idle and the request is not answered; this is a fault of djinn.")
        if isinstance(replies[0], Failed):
            raise from_code(replies[0].code, replies[0].message)
        return replies[0]

    def close(self) -> None:
        """End the engine: store sessions that are kept, and let threads that copy or work on files finish. An error in
        one of these is raised after the others are done."""
        with ExitStack() as end:  # last first
            end.callback(self._end_ranks)
            end.callback(self.tiers.stop)
            end.callback(self.tokenizing.close)
            end.callback(self.persistence.close, self.sessions)
            if self.keeps_sessions and not self.persistence.forgets:
                self.orderly_shutdown.put_away()

    def abandon(self) -> None:
        """End a broken engine, or one whose lease is lost: only its posted writes are completed."""
        self.persistence.abandon()
        self._end_ranks()

    def _end_ranks(self) -> None:
        if self.ranks is not None:
            self.ranks.end()
