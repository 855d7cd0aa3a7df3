"""The edits of one stop; each can be turned off and on again. Knows frames, no sessions."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from djinn_jupyter.engine.forward.frame import Frame
from djinn_jupyter.engine.interventions import edit_kinds, edits
from djinn_jupyter.engine.interventions.change import Change
from djinn_jupyter.engine.model.hooks.taps import Tap
from djinn_jupyter.engine.system.arrays import to_array
from djinn_jupyter.errors import InvalidEdit
from djinn_jupyter.wire.edits import Edit, PatchFrom, Set
from djinn_jupyter.wire.readings import EditAtStop
from djinn_jupyter.wire.sites import Site


@dataclass(frozen=True, slots=True, kw_only=True)
class StopEdit:
    """An edit of the stopped value. `edit` refers to no other session: for a patch it holds the values that were put
    there. `size` is NaN or infinite where the value was zero; `positions` are absolute, None for all of the pass."""

    number: int
    what: str
    site: Site
    edit: Edit
    positions: tuple[int, ...] | None
    size: float
    enabled: bool = True

    def describe(self) -> EditAtStop:
        size = self.size if math.isfinite(self.size) else None
        return EditAtStop(
            number=self.number, site=str(self.site), what=self.what, relative_size=size, enabled=self.enabled
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """A frame after an edit, and the touched part of its value [n, m, ...] before and after."""

    frame: Frame
    before: Tensor
    after: Tensor
    positions: tuple[int, ...]
    noted: StopEdit


def make(
    frame: Frame,
    edit: Edit,
    site: Site,
    positions: tuple[int, ...] | None,
    *,
    number: int,
    patched: Tensor | None = None,
    what: str | None = None,
    words: str | None = None,
) -> Made:
    """Apply an edit to the stopped value of `frame`. `patched` is the value that a `patch_from` takes, `what` its text
    with its place, `words` without, where they differ from the edit's. Raises InvalidEdit."""
    assert frame.tap is not None and frame.raw is not None
    value = frame.tap.read(frame.raw)
    edit_kinds.check(edit, value.shape[-1])
    available = available_in(frame, value)
    rows = edits.rows_of(positions, available)
    before = edits.take(value, rows, site.selector)
    after = edit_kinds.compute(before, edit, None, **({} if patched is None else {"source": patched}))
    if not bool(torch.isfinite(after).all()):
        raise InvalidEdit("The edit makes NaN or infinity of the activation; it is left as it was.")
    touched = tuple(available if rows is None else (available[row] for row in rows))
    noted = StopEdit(
        number=number,
        what=what or edits.spell_at(words or edit_kinds.spell(edit), site, touched),
        site=site,
        edit=Set(value=to_array(after)) if isinstance(edit, PatchFrom) else edit,
        positions=positions,
        size=float(edits.sizes(before, after).relative),
    )
    raw = frame.tap.write(frame.raw, edits.put(value, after, rows, site.selector))
    changed = frame.with_value(raw, Change(what=noted.what, size=noted.size))
    return Made(frame=changed, before=before, after=after, positions=touched, noted=noted)


def require_editable(tap: Tap) -> None:
    """Raise InvalidEdit for a value that is only looked at."""
    if not tap.editable:
        raise InvalidEdit(f"{tap.site.whole()} can be looked at, not changed: {tap.reason}.")


def available_in(frame: Frame, value: Tensor) -> range:
    """Return the absolute positions of the value's rows."""
    return frame.positions[len(frame.positions) - value.shape[0] :]


def with_edits(arrived: Frame, made: Iterable[StopEdit]) -> tuple[Frame, list[StopEdit]]:
    """Make the enabled edits again, in order, on the frame as the pass brought it. Return that frame and the edits with
    their present sizes. With none enabled it is the very frame that arrived."""
    frame, noted = arrived, []
    for one in made:
        if one.enabled:
            again = make(frame, one.edit, one.site, one.positions, number=one.number, what=one.what)
            frame, one = again.frame, again.noted
        noted.append(one)
    return frame, noted
