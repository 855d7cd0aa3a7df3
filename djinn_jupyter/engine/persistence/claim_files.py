"""The claims on a journal in a folder that several machines share, as files.

ROOT/7.claim    made once and whole, by the engine of epoch 7; the highest is the present one
ROOT/7.ended    that engine writes nothing any more
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from djinn_jupyter.engine.persistence.lease import Claimant
from djinn_jupyter.fsync import force, force_names
from djinn_jupyter.written_aside import written_aside

_NO_LINKS: Final = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)
_CLAIM: Final = re.compile(r"(\d{1,12})\.claim")


class ClaimFiles:
    """Methods raise OSError, also where the file system cannot make a name once and for all."""

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
