"""The sites of a collection, and the pass that reaches them all: it ends at the last one."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass

import torch
from torch import Tensor

from djinn_jupyter.engine.model.hooks.taps import Tap
from djinn_jupyter.engine.passes import edits
from djinn_jupyter.engine.passes.controller import Target, Unmarked
from djinn_jupyter.engine.passes.frame import Frame
from djinn_jupyter.engine.passes.site_value import SiteValue
from djinn_jupyter.engine.session import queries
from djinn_jupyter.engine.session.residence import Blocked
from djinn_jupyter.engine.session.runtime import Runtime
from djinn_jupyter.engine.session.session import Session
from djinn_jupyter.errors import InvalidEdit, UnknownSite, UsageError
from djinn_jupyter.wire.sites import Site


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectedSites:
    """`taps` by the requested sites. `target` is None where the pass has to run to its end."""

    taps: dict[Site, Tap]
    target: Target | None

    @classmethod
    def of(cls, runtime: Runtime, spellings: tuple[str, ...]) -> CollectedSites:
        """Return the places of these sites. Raises UnknownSite and UsageError."""
        taps: dict[Site, Tap] = {}
        for spelling in spellings:
            site = runtime.site(spelling)
            if site in taps:
                raise UsageError(f"A collection has each site once; {site} is named twice.")
            taps[site] = _tap(runtime, site)
        return cls(taps=taps, target=_target(runtime, list(taps.values())))


@dataclass(slots=True, kw_only=True)
class Taken(Unmarked):
    """Keeps the wanted rows of a site's value on the host during the pass."""

    site: Site
    tap: Tap
    rows: list[int] | None
    dtype: torch.dtype | None
    value: Tensor | None = None

    def observe(self, site_value: SiteValue) -> None:
        part = edits.take(site_value.value.detach(), self.rows, self.site.selector)
        self.value = part.to(device="cpu", dtype=self.dtype or part.dtype)


def values_alone(
    runtime: Runtime,
    session: Session,
    tokens: tuple[int, ...],
    places: CollectedSites,
    rows: list[int] | None = None,
    dtype: torch.dtype | None = None,
) -> Generator[Blocked | None, None, dict[str, Tensor]]:
    """Return a prompt's values by site in a pass of its own, which ends at the last site."""
    taken = [Taken(site=site, tap=tap, rows=rows, dtype=dtype) for site, tap in places.taps.items()]
    frame = Frame(tokens=tokens, committed=0, step=0)
    targets = () if places.target is None else (places.target,)
    with queries.isolated(session):
        yield from queries.replay(runtime, session, frame, targets, ruled=False, observers=tuple(taken))
    return {str(one.site): one.value for one in taken if one.value is not None}


def rows_of(positions: tuple[int, ...] | None, length: int, number: int) -> list[int] | None:
    """Return the rows of `positions` in a prompt of `length` tokens; None for all. Raises InvalidEdit."""
    if positions is None:
        return None
    if len(positions) > length:
        raise InvalidEdit(f"Prompt {number} (counted from 0) has {length} tokens, not {len(positions):,}.")
    for position in positions:
        if not -length <= position < length:
            raise InvalidEdit(f"Prompt {number} (counted from 0) has {length} tokens, and so no position {position}.")
    return [position % length for position in positions]


def _tap(runtime: Runtime, site: Site) -> Tap:
    tap = runtime.resolve(site)
    if site.point == "logits":
        raise UnknownSite("Logits are not collected; read those of all positions with run(..., logits='all').")
    if tap.width is None:
        raise UnknownSite(
            f"{site} has a row for each pair of positions, and prompts differ in length; collect q and k."
        )
    return tap


def _layers_needed(tap: Tap) -> int:
    return tap.boundary if tap.boundary is not None else tap.stage + 1


def _target(runtime: Runtime, taps: list[Tap]) -> Target | None:
    """Return where a pass has reached all taps: at the last one, or after the layer that has several of them."""
    layers = max(_layers_needed(tap) for tap in taps)
    last = [tap for tap in taps if _layers_needed(tap) == layers]
    if len(last) == 1:
        return Target(tap=last[0], step=0)
    if layers > runtime.forward.layers:
        return None
    point, layer = ("resid_pre", 0) if layers == 0 else ("resid_post", layers - 1)
    return Target(tap=runtime.resolve(Site(point=point, layer=layer)), step=0)
