"""A claim on a journal that several machines share: the present epoch belongs to one engine at a time.

A claim is made at once, also where another engine lives: from then on that one does not renew its lease. It stops as
soon as it sees the claim, and answers nothing once its lease has run out, whatever it sees; the new engine waits for
that. Each measures by a clock of its own, so no two clocks have to agree. Knows nothing of journals; where claims are
kept is known by `ClaimFiles` and `HeadClaims`.
"""

from __future__ import annotations

import errno
import logging
import os
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final, Protocol

import msgspec

from djinn_jupyter.engine.store.journal_file import JournalFolder
from djinn_jupyter.errors import ClaimLost
from djinn_jupyter.files import atomic_write, force, force_names, is_plain, make_folder
from djinn_jupyter.wire.own import boot_id, host_name, process_mark

log = logging.getLogger(__name__)

LEASE_SECONDS: Final = 10.0  # from the beginning of a check that found no later claim
LOOK_SECONDS: Final = 2.0
WAIT_SECONDS: Final = 11.0  # more than a lease, by the possible drift of two clocks in that time
_POLL_SECONDS: Final = 0.1
Clock = Callable[[], float]


def awake_or_asleep() -> float:
    """Return the seconds of a clock that also counts the machine's sleep."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


class Claimant(msgspec.Struct, frozen=True, kw_only=True):
    """The engine process that made a claim. `space` identifies the container of its process number."""

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
        """True where the process is known to have ended; never known for another machine or container."""
        return (self.boot, self.space) == (boot_id(), _space()) and process_mark(self.pid) != self.mark

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"


def _space() -> str:
    """Return Linux's name of the namespace of process numbers; macOS has only one."""
    own = Path("/proc/self/ns/pid")
    return str(own.readlink()) if own.is_symlink() else ""


class Claims(Protocol):
    """The claims on one journal. Methods raise OSError where they cannot be read or written."""

    where: str

    def claim(self, me: Claimant, /) -> int:
        """Claim the next epoch, which no other engine gets."""

    def later(self, epoch: int, /) -> Claimant | None:
        """Return the engine of the present epoch, if that is a later one."""

    def earlier(self, epoch: int, /) -> dict[int, bool]:
        """Return the earlier epochs whose engines may still answer; True for those that are known to have ended."""

    def end(self, epoch: int, /) -> None:
        """Record that the engine of an epoch writes no more."""

    def forget_earlier(self, epoch: int, /) -> None:
        """Remove the claims before this one, whose sessions have been taken over."""


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
        """Raise ClaimLost where a later claim was seen, or the lease has expired."""
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
        """Stop renewing, and record for the next engine that it need not wait. For a lease that was not lost."""
        self.stop()
        self.require()
        self.claims.end(self.epoch)

    def stop(self) -> None:
        """Stop renewing."""
        self._ended.set()

    def look(self) -> None:
        """Renew the lease, unless there is a later claim. Raises OSError where claims are unreadable."""
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


# The claims on a journal in a folder that several machines share, as files.
#
#     ROOT/7.claim    made once and whole, by the engine of epoch 7; the highest is the present one
#     ROOT/7.ended    that engine writes nothing any more

_NO_LINKS: Final = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)
_CLAIM: Final = re.compile(r"(\d{1,12})\.claim")


class ClaimFiles:
    """Methods raise OSError, also where the file system cannot create a name exclusively."""

    def __init__(self, root: Path) -> None:
        self.root, self.where = root, str(root)

    def claim(self, me: Claimant) -> int:
        while True:
            epoch = self.highest() + 1
            if _make(self.root, f"{epoch}.claim", msgspec.json.encode(me)):
                return epoch

    def later(self, epoch: int) -> Claimant | None:
        highest = self.highest()
        return self.claimant(highest) if highest > epoch else None

    def earlier(self, epoch: int) -> dict[int, bool]:
        return {one: self._has_ended(one) for one in self.epochs() if one < epoch}

    def end(self, epoch: int) -> None:
        _make(self.root, f"{epoch}.ended", b"")

    def forget_earlier(self, epoch: int) -> None:
        for one in [one for one in self.epochs() if one < epoch]:
            for kind in ("ended", "claim"):
                (self.root / f"{one}.{kind}").unlink(missing_ok=True)
        force_names(self.root)

    def highest(self) -> int:
        return max(self.epochs(), default=0)

    def epochs(self) -> Iterator[int]:
        """Yield the epochs that were claimed."""
        for name in os.listdir(self.root):
            if found := _CLAIM.fullmatch(name):
                yield int(found[1])

    def claimant(self, epoch: int) -> Claimant:
        return msgspec.json.decode((self.root / f"{epoch}.claim").read_bytes(), type=Claimant)

    def _has_ended(self, epoch: int) -> bool:
        return (self.root / f"{epoch}.ended").exists() or self.claimant(epoch).is_gone


def _make(root: Path, name: str, content: bytes) -> bool:
    """Create a file atomically and durably; False where one has that name. Raises OSError."""
    with atomic_write(root / name) as (file, aside):
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


# The folder of a journal that several machines share. It is named after the epoch of its engine's lease, so the epoch
# is in the path of every write: an engine that was taken over finds its folder gone, and writes to files that no one
# reads.
#
#     ROOT/7.claim, ROOT/7.ended    the claims (`ClaimFiles`)
#     ROOT/7/*.session, *.pages     the files of the engine of epoch 7
#     ROOT/7.sealed/                the same while a later engine takes them over
#     ROOT/aside/                   unusable files; nothing is ever deleted from it

SEALED: Final = ".sealed"
_FOLDER: Final = re.compile(rf"(\d{{1,12}})({re.escape(SEALED)})?")


class LeasedFolder(JournalFolder):
    """A folder that belongs to this engine while its lease lasts."""

    forces_first = True

    def __init__(self, folder: Path, lease: JournalLease) -> None:
        super().__init__(folder)
        self._lease = lease

    def require(self) -> None:
        self._lease.require()

    def release(self) -> None:
        """End the lease, and all writing with it. After a lost one there is nothing to release."""
        with suppress(ClaimLost):
            self._lease.end()
            with suppress(OSError):  # it is not empty
                self.folder.rmdir()

    def take_over(self, earlier: Path, suffix: str, scraps: str, *, ended: bool) -> None:
        """Take over the files of an earlier engine. Sessions are copied: what that engine may still write goes to files
        that are deleted here. `scraps` are taken only from an engine known to have ended, which writes no more into
        them."""
        sealed = earlier  # under another name its engine no longer finds it
        if not earlier.name.endswith(SEALED):
            sealed = earlier.rename(earlier.with_name(earlier.name + SEALED))
        for path in _plain(sealed, suffix):
            self._copy(path)
        for path in _plain(sealed, scraps) if ended else ():
            path.rename(self.folder / path.name)
        self.force_names()
        self._lease.require()
        shutil.rmtree(sealed, ignore_errors=True)

    def _copy(self, path: Path) -> None:
        """Copy a file completely to the disk, unless an engine that was taken over meanwhile has copied it."""
        target = self.folder / path.name
        if target.exists():
            return
        with atomic_write(target) as (copy, aside), path.open("rb") as original:
            shutil.copyfileobj(original, copy)
            copy.flush()
            force(copy.fileno())
            aside.rename(target)


def take_leased_folder(root: Path, suffix: str, scraps: str, wake: Callable[[], None]) -> LeasedFolder:
    """Claim the journal in a shared folder, wait until no other engine answers, and return a folder with the files of
    all earlier ones. Raises OSError, and ClaimLost where yet another engine claims it meanwhile."""
    make_folder(root)
    lease = claim(ClaimFiles(root), wake)
    try:
        ended = await_earlier(lease)
        own = LeasedFolder(root / str(lease.epoch), lease)
        own.folder.mkdir(mode=0o700)
        force_names(root)
        for epoch, folder in sorted(_earlier(root, lease.epoch), reverse=True):  # a later copy counts
            own.take_over(folder, suffix, scraps, ended=ended.get(epoch, True))
        lease.claims.forget_earlier(lease.epoch)
    except BaseException:
        lease.stop()
        raise
    return own


def _earlier(root: Path, epoch: int) -> list[tuple[int, Path]]:
    found = [(named, path) for path in root.iterdir() if (named := _FOLDER.fullmatch(path.name)) and path.is_dir()]
    return [(int(named[1]), path) for named, path in found if int(named[1]) != epoch]


def _plain(folder: Path, suffix: str) -> list[Path]:
    return [path for path in sorted(folder.glob(f"*{suffix}")) if is_plain(path)]
