"""The stores in which an engine's sessions survive its process. `Journal` decides when an image is written and when it
is forced, a store how: `JournalFolder` in files. Another store is a class of its own, which `persistence` opens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from djinn_jupyter.engine.store.identity import ModelIdentity
from djinn_jupyter.engine.store.image import SessionImage


@dataclass(slots=True)
class ImageSource:
    """The engine's model and device, by which images are written and read. `values` returns a tensor's values on the
    host, whichever tier holds them."""

    model: ModelIdentity
    device: torch.device
    values: Callable[[Tensor], Tensor] = lambda tensor: tensor.detach().to("cpu")


class StoredSession(Protocol):
    """The images of one session. `force`, `close` and `remove` may be called on the flushing thread.

    Invariant: `write` either returns and the image is the session's last one, or raises and the previous one still is.
    """

    @property
    def wasteful(self) -> bool:
        """True where most of the stored data is unreferenced."""

    def write(self, image: SessionImage, *, compact: bool = False) -> None:
        """Hand an image to the system, not yet flushed. Raises OSError, CheckpointRefused for values that cannot be
        stored, and any error of reading values."""

    def begin_anew(self) -> None:
        """Write the next image with all its arrays: the written data could not be flushed to the disk."""

    def force(self) -> None:
        """Return when the last written image would survive a loss of power. Raises OSError."""

    def remove(self) -> None:
        """Delete the session, so that it does not return after the death of the process. Raises OSError."""

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftBehind:
    """A session of an earlier process: its last image, and where the next one follows it."""

    image: SessionImage
    stored: StoredSession


class SessionStore(Protocol):
    """Invariant: while it is open no other process uses it. With `forces_first`, the state in a reply is on the disk
    before the reply goes out. `left_out` has the reasons why sessions were set aside, by name. `folder` is for the
    engine's other files."""

    folder: Path
    forces_first: bool
    left_out: dict[str, str]

    def recover(self, source: ImageSource) -> list[LeftBehind]:
        """Return the sessions of earlier processes, in the order of their last writes. Unusable ones are set aside,
        each on its own, so that none prevents the start of an engine."""

    def begin(self, source: ImageSource) -> StoredSession:
        """Return a new, empty session."""

    def leave_out(self, found: LeftBehind, why: Exception) -> None:
        """Set aside a session that does not fit this engine."""

    def files(self, suffix: str) -> list[Path]:
        """Return the plain files of its folder with that suffix."""

    def force_names(self) -> None:
        """Return when deletions of sessions are on the disk too. Raises OSError."""

    def require(self) -> None:
        """Raise ClaimLost where the store is no longer this engine's."""

    def release(self) -> None:
        """Release the store to other engines, and remove empty parts."""
