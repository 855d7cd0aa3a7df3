"""All that running a pass needs, as one value; and how a pass of a session is entered. Code that runs passes of
sessions takes it; it knows no request."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Final, Protocol, TypeVar

from torch import Tensor

from djinn_jupyter.engine.memory.kv.cache import PagedCache
from djinn_jupyter.engine.memory.offload.swappable import Storage
from djinn_jupyter.engine.model.discovery.model_map import site_of
from djinn_jupyter.engine.model.hooks.taps import Tap
from djinn_jupyter.engine.model.loading.tokenizer import TokenText
from djinn_jupyter.engine.passes.controller import Admit, Outcome, Plan, SavedStates
from djinn_jupyter.engine.passes.forward import Forward
from djinn_jupyter.engine.passes.frame import Frame
from djinn_jupyter.engine.session.residence import Blocked, Pieces
from djinn_jupyter.engine.session.session import Session
from djinn_jupyter.engine.session.sharing import SharedPasses
from djinn_jupyter.engine.system.faults import Counters
from djinn_jupyter.modules.engine.added import SeenModules
from djinn_jupyter.modules.engine.arithmetic import HeldAdapter
from djinn_jupyter.wire.base import person_of
from djinn_jupyter.wire.nouns import ModelDescription
from djinn_jupyter.wire.replies import Event
from djinn_jupyter.wire.sites import Site

Result = TypeVar("Result")


class Space(Protocol):
    """Device memory, as a run sees it. Residency implements it from a layer above, where it may know sessions."""

    def new_cache(self) -> PagedCache:
        """Return an empty cache, whose pages will be this device's."""

    def note_tensors(self, tensors: Iterable[Tensor]) -> None:
        """Count tensors that a pass has made and a session keeps."""

    def let_go(self) -> None:
        """Record that tensors were released; a later check finds which are gone."""

    def entered(
        self,
        session: Session,
        cache: PagedCache,
        pages: Callable[[], int],
        enter: Callable[[Admit], Result],
        *,
        always: int,
        expected: int,
    ) -> Generator[Blocked | None, None, Result]:
        """Call `enter`, which enters a pass, until it finds room; return its result. A pass takes bytes of `pages`,
        which its person has to be allowed, leaves `always` other bytes, and `expected` more where it stops, until it is
        known to keep more. The session's oldest stops are dropped where no other room can be freed. Raises SlabFull,
        OverQuota, and errors of returning to the device."""

    def set_aside(self, session: Session, size: int, *, of_owner_budget: int = 0) -> Pieces:
        """Run steps until `size` bytes are set aside for the rest of this slice, of which so many count for the person.
        Raises SlabFull, OverQuota, and errors of returning to the device."""

    def short_of_owner_budget(self, session: Session, need: int) -> int:
        """Return the bytes of `need` that exceed the device budget of the session's person now."""

    def put_back(self) -> None:
        """Release all bytes that are set aside."""

    def fetched(self, session: Session, storages: Sequence[Storage]) -> Pieces:
        """Run steps until pinned storages are on the device. Raises SlabFull and StorageFailed."""

    def pinned(self, tensors: Iterable[Tensor]) -> AbstractContextManager[list[Storage]]:
        """Pin the storages of these tensors: they stay on the device, or are loaded without being evicted again."""

    def bound(self, session: Session) -> None:
        """Send the stops beyond those that the session keeps in memory to the disk."""


class OtherJobs(Protocol):
    """The jobs besides the one that runs a pass."""

    def asked(self) -> bool:
        """True between layers where a request is queued, or where it is another job's turn."""

    def alone(self) -> bool:
        """True where there is no other job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Runtime:
    forward: Forward  # the model, its anatomy, geometry, weights and device
    tokenizer: TokenText
    description: ModelDescription
    space: Space
    counters: Counters
    giving_way: OtherJobs
    publish: Callable[[Event], None]
    sharing: SharedPasses
    modules: SeenModules  # those added by the person of these passes' sessions

    @property
    def token_by_token(self) -> bool:
        """True where extensions are fed token by token: two chunks do not give the result of one shot."""
        return self.description.feeding == "token by token"

    @property
    def recurrent(self) -> bool:
        return self.forward.geometry.has_states

    def attending(self, attention: str | None) -> Runtime:
        """Return the runtime of passes with this attention; None: as the model was loaded."""
        return self if attention is None else replace(self, forward=self.forward.attending(attention))

    def of(self, session: Session) -> Runtime:
        """Return the runtime of a session's passes: with its attention and adapter, and its person's added modules."""
        return self.of_person(session.name).attending(session.attention).adapted(session.adapter)

    def adapted(self, adapter: HeldAdapter | None) -> Runtime:
        """Return the runtime of passes with an adapter, None for the model alone."""
        return self if adapter is self.forward.adapter else replace(self, forward=self.forward.adapted(adapter))

    def of_person(self, session: str) -> Runtime:
        """Return the runtime of the person behind the name of a session."""
        person = person_of(session)
        return self if person == self.modules.person else replace(self, modules=replace(self.modules, person=person))

    def site(self, spelling: str) -> Site:
        """Return the site that a person's text spells in this model. Raises UnknownSite."""
        return site_of(spelling, self.forward.anatomy)

    def resolve(self, site: Site) -> Tap:
        """Return the tap of the whole site. A selector is checked here; the caller that holds the site applies it."""
        anatomy = self.forward.anatomy
        tap = self.modules.tap(site, anatomy) or anatomy.resolve(site)
        return tap.at(site.whole())


GENERATOR_BYTES: Final = 5056  # the state of a CPU generator, which counts where the device is the CPU
LOGIT_BYTES: Final = 4  # logits are kept in float32
STATES: Final = 4  # sets of a recurrent family: live, replaced, before the pass, and at a period's end


def entered(
    runtime: Runtime, session: Session, frame: Frame, plan: Plan, cache: PagedCache, saved_states: SavedStates
) -> Generator[Blocked | None, None, Outcome]:
    """Run `Forward.enter` once there is room for its pages and for the tensors it leaves, like `Space.entered`."""
    runtime = runtime.of(session)
    forward, logits = runtime.forward, len(frame.tokens) if plan.all_logits else 1
    row_bytes = forward.anatomy.hidden_size * max(dtype.itemsize for dtype in forward.anatomy.dtypes)

    def enter(admit: Admit) -> Outcome:
        return forward.enter(frame, plan, cache, saved_states, admit, alone=runtime.giving_way.alone())

    return (
        yield from runtime.space.entered(
            session,
            cache,
            lambda: cache.bytes_wanted(frame.committed, frame.end),
            enter,
            always=_left_by_every_pass(runtime, cache, logits)
            + sum(rule.copies_to_come for rule in session.rules.values()),
            expected=len(frame.tokens) * row_bytes if plan.halts and not plan.bare else 0,
        )
    )


def _left_by_every_pass(runtime: Runtime, cache: PagedCache, positions: int) -> int:
    """Return the bytes of the logits of so many positions and of states, including any not yet computed at a stop."""
    generator = GENERATOR_BYTES if runtime.forward.device.type == "cpu" else 0
    logits = positions * runtime.description.vocab_size * LOGIT_BYTES
    return generator + logits + STATES * max(runtime.forward.geometry.recurrent_state_bytes, cache.recurrent_bytes)
