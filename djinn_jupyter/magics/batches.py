"""A batch in a cell: one table of its rows, which fills while they end."""

from __future__ import annotations

import time
from argparse import Namespace
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, cast

from djinn_jupyter.errors import BatchEnded, UsageError
from djinn_jupyter.magics.lazily import stops, views

if TYPE_CHECKING:
    from djinn_jupyter.client.batches import OnRow
    from djinn_jupyter.client.session import RemoteSession
    from djinn_jupyter.client.stops import Stop
    from djinn_jupyter.magics.kernel_state import KernelState

DRAWN_SECONDS = 0.25


def run_rows(
    state: KernelState, args: Namespace, session: RemoteSession, go: Callable[[OnRow], Sequence[Stop]]
) -> None:
    """Run a batch and show it, also one that ends early; its rows are this notebook's sessions then."""
    if getattr(args, "effect", False):
        raise UsageError("--effect measures one stop; leave it out, or run one prompt.")
    drawing = _Drawing(state, session)
    try:
        rows: Sequence[Any] = go(drawing.add)
    except BatchEnded as ended:
        _keep(state, args, drawing, ended.rows)
        raise
    except stops.BatchInterrupted as broken:
        _keep(state, args, drawing, broken.rows)
        raise UsageError(f"Interrupted. {broken}") from None
    _keep(state, args, drawing, rows)


def _keep(state: KernelState, args: Namespace, drawing: _Drawing, rows: Sequence[Any]) -> None:
    for row in rows:
        if isinstance(row, stops.Paused | stops.Finished):
            state.hold(cast("RemoteSession", row.session))
            state.outcomes[row.session.name] = row
    state.keep(args.keep, list(rows))
    drawing.end(rows)


class _Drawing:
    """One display: the rows that have ended, a few times a second, and all of them at the end."""

    def __init__(self, state: KernelState, session: RemoteSession) -> None:
        self._screen, self._session = state.screen, session
        self._rows: dict[int, Stop] = {}
        self._handle: Any = None
        self._drawn = 0.0

    def add(self, number: int, stop: Stop) -> None:
        self._rows[number] = stop
        if self._screen.is_static or time.monotonic() - self._drawn < DRAWN_SECONDS:
            return
        self._drawn = time.monotonic()
        self._show([self._rows.get(one) for one in range(max(self._rows) + 1)])

    def end(self, rows: Sequence[Any]) -> None:
        self._show(rows)

    def _show(self, rows: Sequence[Any]) -> None:
        shown = [getattr(row, "reply", None if row is None else str(row)) for row in rows]
        view = views.rows_view(self._session.name, shown)
        if self._handle is not None:
            self._handle.update(view)
        elif self._screen.is_static:
            self._screen.show(view)
        else:
            self._handle = self._screen.show_live(view)
