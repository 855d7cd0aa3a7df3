"""Patches whose value crosses the wire: from a session of another engine, and for rules, which outlive the stop that
has it. A patch between two stops of one engine stays there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from djinn_jupyter.client.arrays import from_any
from djinn_jupyter.client.positions import Positions, no_ends, spell_positions
from djinn_jupyter.errors import InvalidEdit

if TYPE_CHECKING:
    from djinn_jupyter.client.connection.channel import Channel
    from djinn_jupyter.wire.edits import Edit, PatchFrom, Set


class SeenValue(Protocol):
    """A value that was read, with its positions in the source."""

    @property
    def positions(self) -> tuple[int, ...]: ...

    @property
    def value(self) -> Any: ...


class StandsAt(Protocol):
    """A stop, as a patch of its value uses it."""

    @property
    def site(self) -> str: ...

    @property
    def positions(self) -> tuple[int, ...]: ...


class PatchedSession(Protocol):
    """The session of a patch, its source or its target."""

    @property
    def name(self) -> str: ...

    @property
    def channel(self) -> Channel: ...

    @property
    def stop(self) -> StandsAt: ...

    def sibling(self, name: str) -> PatchedSession: ...

    def inspect(self, site: str | int | None = ..., positions: Positions = ...) -> SeenValue: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Patch:
    """The value at a site of another session's stopped pass. `session` is one of any engine, or the name of one of the
    edited session's; `positions` count in the source."""

    session: PatchedSession | str
    site: str | None = None
    positions: tuple[int, ...] | None = None

    @property
    def name(self) -> str:
        return self.session if isinstance(self.session, str) else self.session.name

    def within(self) -> PatchFrom:
        """Return the edit for an engine that has both sessions."""
        from djinn_jupyter.wire.edits import PatchFrom

        return PatchFrom(session=self.name, site=self.site, positions=self.positions)

    def is_away(self, session: PatchedSession) -> bool:
        """True where the source is in another engine than `session`."""
        return not isinstance(self.session, str) and session.channel is not self.session.channel


def patch_from(session: PatchedSession | str, *, site: str | None = None, positions: Positions = None) -> Patch:
    """Replace the value by that at a site of another session's stopped pass. `positions` count in the source; an open
    slice is refused."""
    ends = no_ends(InvalidEdit("The source of a patch needs both ends of a slice: write '2:5'."))
    return Patch(session=session, site=site, positions=spell_positions(positions, ends))


def in_one_engine(edit: Edit | Patch) -> Edit:
    """Return the edit as the engine of its session takes it."""
    return edit.within() if isinstance(edit, Patch) else edit


def at_stop(
    edit: Edit | Patch, target: PatchedSession, site: str | None, positions: tuple[int, ...] | None
) -> tuple[Edit, str | None]:
    """Return the edit of a stopped value, with its words where its value had to cross from another engine."""
    if not isinstance(edit, Patch):
        return edit, None
    if not edit.is_away(target):
        return edit.within(), None
    stop = target.stop
    end = stop.positions[-1] + 1
    here = stop.positions if positions is None else tuple(end + p if p < 0 else p for p in positions)
    made, _, words = taken(edit, target, site or stop.site, tuple(here))
    return made, words


def taken(
    patch: Patch, target: PatchedSession, site: str, positions: tuple[int, ...] | None
) -> tuple[Set, tuple[int, ...], str]:
    """Read the value of a patch. Return the edit that sets it, its positions in the target and the edit in words."""
    from djinn_jupyter.wire.edits import Set
    from djinn_jupyter.wire.names import label
    from djinn_jupyter.wire.sites import parse_every_layer

    if parse_every_layer(patch.site or site) is not None:
        raise InvalidEdit("patch_from takes the value of one site: name its layer, such as resid_post.4.")
    source = target.sibling(patch.session) if isinstance(patch.session, str) else patch.session
    there = source.inspect(patch.site or site, patch.positions or positions)
    if positions is not None and len(positions) != len(there.positions):
        raise InvalidEdit(
            f"patch_from: the source has {len(there.positions)} positions, the edited part {len(positions)}; name as "
            "many there as here."
        )
    value = from_any(there.value)
    words = f"patch from {label(patch.name)}" + (f" at {patch.site}" if patch.site else "")
    return Set(value=value), positions or tuple(there.positions), words
