"""Two stopped values compared, in float64 and over all of their numbers, which stay where they are.

Pooled cells would not do: the largest cell says nothing of the largest difference.
"""

from __future__ import annotations

import msgspec
import torch
from torch import Tensor

from djinn_jupyter.engine.loop.dispatch import handles
from djinn_jupyter.engine.loop.figures import chunks
from djinn_jupyter.engine.loop.mailbox import Holder
from djinn_jupyter.engine.loop.sessions import brought
from djinn_jupyter.engine.passes import edits
from djinn_jupyter.engine.passes.frame import Frame
from djinn_jupyter.engine.residency.residency import Residency
from djinn_jupyter.engine.session import queries, reports
from djinn_jupyter.engine.session.residence import Steps
from djinn_jupyter.engine.session.session import Session
from djinn_jupyter.engine.session.table import SessionTable
from djinn_jupyter.engine.system.arrays import dtype_name
from djinn_jupyter.errors import UsageError
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.readings import Apart, Compared, LargestDifference
from djinn_jupyter.wire.sites import Site
from djinn_jupyter.wire.texts import in_quotes, label


class ComparisonRequests:
    def __init__(self, sessions: SessionTable, residency: Residency) -> None:
        self._sessions, self._residency = sessions, residency

    @handles(ask.Compare)
    def compare(self, request: ask.Compare, session: Session, holder: Holder) -> Steps[Compared]:
        other = self._sessions.find(request.other)
        queries.stopped_frame(other)
        yield from brought(other, self._sessions, self._residency)
        return compared((session, other), request.last)


def compared(both: tuple[Session, Session], last: int) -> Compared:
    """Return how far the stopped values of two sessions are apart: of the heads or features that both have named, else
    whole. UsageError where they stand at other sites."""
    frames = [queries.stopped_frame(session) for session in both]
    sites = [reports.site_of(session) for session in both]
    if sites[0] != sites[1]:
        sites = [site.whole() for site in sites]
    if sites[0] != sites[1]:
        names = [in_quotes(label(session.name)) for session in both]
        raise UsageError(
            f"Session {names[0]} stands at {sites[0]} and {names[1]} at {sites[1]}: values are compared at one site."
        )
    a, b = (_value(frame, sites[0]) for frame in frames)
    rows_a, rows_b = frames[0].positions[-len(a) :], frames[1].positions[-len(b) :]
    shared = range(max(rows_a.start, rows_b.start), min(rows_a.stop, rows_b.stop))
    alike = bool(shared) and a.shape[1:] == b.shape[1:]
    return Compared(
        site=str(sites[0]),
        stops=(reports.standing(both[0]), reports.standing(both[1])),
        shapes=(tuple(a.shape), tuple(b.shape)),
        dtypes=(dtype_name(a.dtype), dtype_name(b.dtype)),
        apart=_numbered(apart(_at(shared, rows_a, a), _at(shared, rows_b, b), tuple(shared), last), sites[0])
        if alike
        else None,
    )


def _numbered(found: Apart, site: Site) -> Apart:
    """Return the same with the largest difference at the head or feature as the model numbers it."""
    largest = found.largest
    if largest is None or site.selector is None:
        return found
    index = (site.selector[largest.index[0]], *largest.index[1:])
    return msgspec.structs.replace(found, largest=msgspec.structs.replace(largest, index=index))


def _value(frame: Frame, site: Site) -> Tensor:
    assert frame.tap is not None
    assert frame.raw is not None
    return edits.take(frame.tap.read(frame.raw), None, site.selector)


def _at(shared: range, positions: range, value: Tensor) -> Tensor:
    """Return the rows of the shared positions."""
    return value[positions.index(shared.start) :][: len(shared)]


def apart(a: Tensor, b: Tensor, positions: tuple[int, ...], last: int) -> Apart:
    """Return how far two values [T, ...] of one shape are apart; `positions` are those of their rows."""
    differing = not_finite = 0
    largest: LargestDifference | None = None
    distances: list[float | None] = []
    first = 0
    for rows_a, rows_b in zip(chunks(a), chunks(b.to(a.device)), strict=True):
        differ = (rows_a != rows_b) & ~(rows_a.isnan() & rows_b.isnan())
        finite = rows_a.isfinite() & rows_b.isfinite()
        differences = (rows_b - rows_a).abs().where(finite, 0.0)
        differing += int(differ.sum())
        not_finite += int((differ & ~finite).sum())
        found = _largest(differences, rows_a, rows_b, positions[first:], a.shape[1:])
        if found is not None and (largest is None or found.difference > largest.difference):
            largest = found
        distances += _distances(differences, rows_a.where(finite, 0.0))
        first += len(rows_a)
    return Apart(
        positions=positions[-last:],
        numbers=a.numel(),
        differing=differing,
        not_finite=not_finite,
        largest=largest,
        distances=tuple(distances[-last:]),
    )


def _largest(
    differences: Tensor, a: Tensor, b: Tensor, positions: tuple[int, ...], inner: torch.Size
) -> LargestDifference | None:
    place = int(differences.argmax())
    row, column = divmod(place, differences.shape[1])
    difference = float(differences[row, column])
    if difference == 0:
        return None
    index = [int(one) for one in torch.unravel_index(torch.tensor(column), inner)] if inner else []
    return LargestDifference(
        difference=difference,
        position=positions[row],
        index=tuple(index),
        a=float(a[row, column]),
        b=float(b[row, column]),
    )


def _distances(differences: Tensor, a: Tensor) -> list[float | None]:
    """Return |b - a| / |a| of each row; None where |a| is zero."""
    apart, sizes = (torch.linalg.vector_norm(rows, dim=1).tolist() for rows in (differences, a))
    return [distance / size if size else None for distance, size in zip(apart, sizes, strict=True)]
