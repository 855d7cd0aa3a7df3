"""What running a pass needs, as one value. Whoever runs passes of sessions is given it; it knows no request."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from djinn_jupyter.engine.forward.forward import Forward
from djinn_jupyter.engine.memory.kv.cache import PagedCache
from djinn_jupyter.engine.memory.offload.storages import Blob
from djinn_jupyter.engine.model.hooks.taps import Tap
from djinn_jupyter.engine.model.loading.tokenizer import TokenText
from djinn_jupyter.engine.session.pass_allowance import PassRoom
from djinn_jupyter.engine.session.session import Session
from djinn_jupyter.engine.session.steps import Blocked, Pieces
from djinn_jupyter.engine.system.counters import Counters
from djinn_jupyter.wire.nouns import ModelDescription
from djinn_jupyter.wire.replies import Event
from djinn_jupyter.wire.sites import Site


class Space(Protocol):
    """Room on the device, as a run sees it: residency is above, so that it may know sessions."""

    def note_tensors(self, tensors: Iterable[Tensor]) -> None:
        """Count these, which a pass has made and a session keeps."""

    def let_go(self) -> None:
        """Tensors were let go of: what is gone will be looked for."""

    def wait_for(self, wanting: Session, need: int) -> Blocked | None:
        """A function that says whether pages for `need` bytes have to be waited for; None where that is no use."""

    def pass_room(self, owner: object, *, always: int, expected: int) -> PassRoom:
        """What an entry into a pass may leave: so much for sure, so much more where it stops."""

    def set_aside(self, session: Session, size: int) -> Pieces:
        """Steps until so many bytes are set aside for the rest of this slice. Raises SlabFull."""

    def put_back(self) -> None:
        """Nothing is set aside any more."""

    def drop_a_stop(self, session: Session, need: int) -> None:
        """Give up the session's oldest stop. Raises SlabFull where there is none to drop."""

    def fetched(self, session: Session, storages: Sequence[Blob]) -> Pieces:
        """Steps until pinned storages are on the device. Raises SlabFull and StorageFailed."""

    def pinned(self, tensors: Iterable[Tensor]) -> AbstractContextManager[list[Blob]]:
        """The storages of these tensors stay on the device, or come there undisturbed."""

    def bound(self, session: Session) -> None:
        """Send stops beyond those that the session keeps in memory to the disk."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Runtime:
    forward: Forward  # the model, its anatomy, geometry, weights and device
    tokenizer: TokenText
    description: ModelDescription
    space: Space
    counters: Counters
    should_yield: Callable[[], bool]  # asked between layers: is there mail, or another job whose turn it is?
    publish: Callable[[Event], None]
    new_cache: Callable[[], PagedCache]

    @property
    def one_by_one(self) -> bool:
        """Whether extensions are fed token by token: two chunks do not give what one shot gives."""
        return self.description.feeding == "token by token"

    @property
    def recurrent(self) -> bool:
        return self.forward.geometry.has_states

    def resolve(self, site: Site) -> Tap:
        """The tap of the whole site. A selector is checked here and applied by whoever holds the site."""
        return self.forward.anatomy.resolve(site).at(site.whole())
