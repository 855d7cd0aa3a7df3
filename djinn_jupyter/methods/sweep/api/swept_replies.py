"""The replies of sweeps, as one grid of many pairs keeps them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from djinn_jupyter.errors import DjinnError, SweepEnded, UsageError
from djinn_jupyter.methods.common.api.spreading import SpreadResults
from djinn_jupyter.methods.sweep.api.grid import Grid
from djinn_jupyter.methods.sweep.request import Swept
from djinn_jupyter.wire.fingerprints import differences

ANY_SESSION: Final = "sweep"
AT_ITS_END: Final = "The sweep is whole; it was interrupted at its end."


def grid_of(outcome: SpreadResults[Swept], pairs: int, *, several: bool, met: int | None = None) -> Grid:
    """Return the grid of pairs that were swept. An interrupt leaves those before the first that has none; the pair that
    it `met` may have a part. Raises SweepEnded, which has these, where a pair failed or no engine is left."""
    found, error = list[Swept](), outcome.error
    try:
        for reply in outcome.first:
            require_shape(reply, found)
            found.append(reply)
    except UsageError as unlike:
        error = unlike
    if error is not None and not isinstance(error, DjinnError):
        raise error
    at = len(found)
    if isinstance(error, SweepEnded) and isinstance(error.grid, Grid) and outcome.failed == at:
        found += error.grid.replies
    if not found:
        raise error or KeyboardInterrupt
    missing = pairs - len(found)
    for note in _notes(found, () if missing else outcome.lost):
        found[-1] = noted(found[-1], note)
    if outcome.interrupted and missing:
        found[-1] = noted(
            found[-1], f"The sweep is not whole: it was interrupted in pair {at if met is None else met}."
        )
    grid = Grid(found, paired=True, several=several, interrupted=outcome.interrupted, missing=missing)
    if error is not None:
        raise SweepEnded(f"The sweep ended in pair {at}: {error}", grid) from error
    return grid


def _notes(found: Sequence[Swept], lost: Sequence[str]) -> list[str]:
    """Return what is to be said of pairs that several engines computed, of which some were lost on the way."""
    made = [one.made.by for one in found if one.made is not None]
    other = dict.fromkeys(
        f"{name} ({here}, {there})" for by in made[1:] for name, here, there in differences(made[0], by)
    )
    notes = (
        [f"Its pairs were computed by engines that differ in {', '.join(other)}, and so in last bits."] if other else []
    )
    return [*notes, *(f"An engine was lost, and another computed its pair: {why}" for why in lost)]


def nameless(reply: Swept) -> Swept:
    """Return a reply without the name of the session that computed it, which is free again."""
    if reply.made is None:
        return reply
    asked = msgspec.structs.replace(reply.made.asked, session=ANY_SESSION)
    return msgspec.structs.replace(reply, made=msgspec.structs.replace(reply.made, asked=asked))


def without_end(reply: Swept) -> Swept:
    """Return a pair without the note on its end, where other pairs follow."""
    return msgspec.structs.replace(reply, notes=tuple(note for note in reply.notes if note != AT_ITS_END))


def noted(reply: Swept, note: str) -> Swept:
    return msgspec.structs.replace(reply, notes=(*reply.notes, note))


def require_shape(reply: Swept, before: Sequence[Swept]) -> None:
    shape = reply.measured[0].values.shape
    if before and shape != before[0].measured[0].values.shape:
        raise UsageError(
            f"its cells are {list(shape)}, and the first pair's {list(before[0].measured[0].values.shape)}; "
            "pairs swept over positions need equally many tokens, or equally many positions that align names."
        )
