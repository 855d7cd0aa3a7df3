"""A claim on a journal that several machines share: the present epoch belongs to one engine at a time.

A claim is made at once, also where another engine lives: from then on that one does not renew its lease. It stops as
soon as it sees the claim, and answers nothing once its lease has run out, whatever it sees; the new engine waits for
that. Each measures by a clock of its own, so no two clocks have to agree. Knows nothing of journals; where claims are
kept is known by `claim_files` and `store.claims`.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, Protocol

import msgspec

from djinn_jupyter.errors import ClaimLost
from djinn_jupyter.wire.host import boot_id, host_name, process_mark

log = logging.getLogger(__name__)

LEASE_SECONDS: Final = 10.0  # from the beginning of a look that found no later claim
LOOK_SECONDS: Final = 2.0
WAIT_SECONDS: Final = 11.0  # more than a lease, by what two clocks may differ in that time
_POLL_SECONDS: Final = 0.1
Clock = Callable[[], float]


def awake_or_asleep() -> float:
    """Return the seconds of a clock that goes on while the machine sleeps."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


class Claimant(msgspec.Struct, frozen=True, kw_only=True):
    """The engine's process that made a claim. `space` tells in which container its number is meant."""

    host: str
    boot: str
    space: str
    pid: int
    mark: str | None

    @classmethod
    def this_process(cls) -> Claimant:
        pid = os.getpid()
        return cls(host=host_name(), boot=boot_id(), space=_space(), pid=pid, mark=process_mark(pid))

    @property
    def is_gone(self) -> bool:
        """True where the process is known to have ended, which that of another machine or container is not."""
        return (self.boot, self.space) == (boot_id(), _space()) and process_mark(self.pid) != self.mark

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"


def _space() -> str:
    """Return Linux's name of the space of process numbers; macOS has one alone."""
    own = Path("/proc/self/ns/pid")
    return str(own.readlink()) if own.is_symlink() else ""


class Claims(Protocol):
    """The claims on one journal. Methods raise OSError where they cannot be read or written."""

    where: str

    def claim(self, me: Claimant, /) -> int:
        """Claim the next epoch, which no other engine gets."""

    def later(self, epoch: int, /) -> Claimant | None:
        """Return the engine of the present epoch, where that is a later one."""

    def earlier(self, epoch: int, /) -> dict[int, bool]:
        """Return the earlier epochs whose engines may still answer; True for those that are known to have ended."""

    def end(self, epoch: int, /) -> None:
        """Note that the engine of an epoch writes nothing any more."""

    def forget_earlier(self, epoch: int, /) -> None:
        """Forget the claims before this one, whose sessions have been taken over."""


class JournalLease:
    """The lease of one epoch, renewed in a thread of its own until it is lost or ended. `wake` is called in that thread
    when a later claim is seen."""

    def __init__(self, claims: Claims, epoch: int, claimed: float, wake: Callable[[], None], clock: Clock) -> None:
        self.claims, self.epoch = claims, epoch
        self._wake, self._clock = wake, clock
        self._until = claimed + LEASE_SECONDS
        self._later: Claimant | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._renew, name="djinn-lease", daemon=True)
        self._thread.start()

    def require(self) -> None:
        """Raise ClaimLost where a later claim was seen, or the lease has run out."""
        if self._later is not None:
            raise ClaimLost(
                f"Another engine ({self._later}) has taken over the sessions of this one, which stops: load the model "
                "again, and they come back there."
            )
        if self._clock() > self._until:
            raise ClaimLost(
                f"The shared journal in {self.claims.where} could not be reached for {LEASE_SECONDS:.0f} s, so another "
                "engine may have taken over the sessions of this one, which stops: load the model again."
            )

    def end(self) -> None:
        """Renew no more, and tell the next engine that it need not wait. For a lease that was not lost."""
        self.stop()
        self.require()
        self.claims.end(self.epoch)

    def stop(self) -> None:
        """Renew no more."""
        self._ended.set()

    def look(self) -> None:
        """Renew the lease, unless there is a later claim. Raises OSError where claims cannot be read."""
        begun = self._clock()
        later = self.claims.later(self.epoch)
        if later is not None:
            self._later = later
        else:
            self._until = begun + LEASE_SECONDS

    def _renew(self) -> None:
        while self._later is None and not self._ended.wait(LOOK_SECONDS):
            try:
                self.look()
            except OSError as error:
                log.warning("The lease of the journal cannot be renewed: %s", error.strerror or error)
        if self._later is not None:
            self._wake()


def claim(claims: Claims, wake: Callable[[], None], clock: Clock = awake_or_asleep) -> JournalLease:
    """Claim the next epoch. Raises OSError."""
    claimed = clock()
    return JournalLease(claims, claims.claim(Claimant.this_process()), claimed, wake, clock)


def await_earlier(lease: JournalLease) -> dict[int, bool]:
    """Return when no engine of an earlier epoch answers any more: for each of these epochs, whether its engine is known
    to have ended."""
    deadline = time.monotonic() + WAIT_SECONDS
    while not all((earlier := lease.claims.earlier(lease.epoch)).values()):
        if time.monotonic() > deadline:
            break
        time.sleep(_POLL_SECONDS)
    lease.require()
    return earlier
