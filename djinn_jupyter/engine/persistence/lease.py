"""A claim on a folder that several machines share: the present epoch belongs to one engine at a time.

    ROOT/7.claim    made once and whole, by the engine of epoch 7; the highest is the present one
    ROOT/7.ended    that engine writes nothing any more

A claim is made at once, also where another engine lives: from then on that one does not renew its lease. It stops as
soon as it sees the claim, and answers nothing once its lease has run out, whatever it sees; the new engine waits for
that. Each measures by a clock of its own, so no two clocks have to agree. Knows nothing of journals.
"""

from __future__ import annotations

import errno
import logging
import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import msgspec

from djinn_jupyter.engine.persistence.written_aside import written_aside
from djinn_jupyter.engine.system.fsync import force, force_names
from djinn_jupyter.errors import ClaimLost
from djinn_jupyter.wire.host import boot_id, host_name, process_mark

log = logging.getLogger(__name__)

LEASE_SECONDS: Final = 10.0  # from the beginning of a look that found no later claim
LOOK_SECONDS: Final = 2.0
WAIT_SECONDS: Final = 11.0  # more than a lease, by what two clocks may differ in that time
_NO_LINKS: Final = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)
_POLL_SECONDS: Final = 0.1
_CLAIM: Final = re.compile(r"(\d{1,12})\.claim")
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


class JournalLease:
    """The lease of one epoch, renewed in a thread of its own until it is lost or ended. `wake` is called in that thread
    when a later claim is seen."""

    def __init__(self, root: Path, epoch: int, claimed: float, wake: Callable[[], None], clock: Clock) -> None:
        self.root, self.epoch = root, epoch
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
                f"The shared journal in {self.root} could not be reached for {LEASE_SECONDS:.0f} s, so another engine "
                "may have taken over the sessions of this one, which stops: load the model again."
            )

    def end(self) -> None:
        """Renew no more, and tell the next engine that it need not wait. For a lease that was not lost."""
        self.stop()
        self.require()
        _make(self.root, f"{self.epoch}.ended", b"")

    def stop(self) -> None:
        """Renew no more."""
        self._ended.set()

    def look(self) -> None:
        """Renew the lease, unless there is a later claim. Raises OSError where the folder cannot be read."""
        begun = self._clock()
        highest = highest_epoch(self.root)
        if highest > self.epoch:
            self._later = claimant(self.root, highest)
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


def claim(root: Path, wake: Callable[[], None], clock: Clock = awake_or_asleep) -> JournalLease:
    """Claim the next epoch. Raises OSError, also where the file system cannot make a name once and for all."""
    me = msgspec.json.encode(Claimant.this_process())
    while True:
        epoch, claimed = highest_epoch(root) + 1, clock()
        if _make(root, f"{epoch}.claim", me):
            return JournalLease(root, epoch, claimed, wake, clock)


def await_earlier(lease: JournalLease) -> dict[int, bool]:
    """Return when no engine of an earlier epoch answers any more: for each of these epochs, whether its engine is known
    to have ended."""
    earlier = [epoch for epoch in epochs(lease.root) if epoch < lease.epoch]
    deadline = time.monotonic() + WAIT_SECONDS
    while waiting := [epoch for epoch in earlier if not has_ended(lease.root, epoch)]:
        if time.monotonic() > deadline:
            break
        time.sleep(_POLL_SECONDS)
    lease.require()
    return {epoch: epoch not in waiting for epoch in earlier}


def epochs(root: Path) -> Iterator[int]:
    """Yield the epochs that were claimed."""
    for name in os.listdir(root):
        if found := _CLAIM.fullmatch(name):
            yield int(found[1])


def highest_epoch(root: Path) -> int:
    return max(epochs(root), default=0)


def has_ended(root: Path, epoch: int) -> bool:
    """True where the engine of an epoch has said that it ended, or its process is gone from this machine."""
    return (root / f"{epoch}.ended").exists() or claimant(root, epoch).is_gone


def claimant(root: Path, epoch: int) -> Claimant:
    return msgspec.json.decode((root / f"{epoch}.claim").read_bytes(), type=Claimant)


def forget_earlier(lease: JournalLease) -> None:
    """Remove the claims before this one, whose folders have been taken over."""
    for epoch in [epoch for epoch in epochs(lease.root) if epoch < lease.epoch]:
        for kind in ("ended", "claim"):
            (lease.root / f"{epoch}.{kind}").unlink(missing_ok=True)


def _make(root: Path, name: str, content: bytes) -> bool:
    """Make a file that appears whole and on the disk; False where there is one of that name. Raises OSError."""
    with written_aside(root / name) as (file, aside):
        file.write(content)
        file.flush()
        force(file.fileno())
        try:
            os.link(aside, root / name)
        except FileExistsError:
            return False
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            raise OSError(
                error.errno, "its file system makes no hard links, by which one engine alone gets it"
            ) from None
    force_names(root)
    return True
