"""A batch in a cell: one table of its rows, which fills while they end."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, cast

from djinn_jupyter.errors import BatchEnded, DjinnError, InvalidCondition, NoTokenizer, UsageError
from djinn_jupyter.magics.lazily import doses, stops, views
from djinn_jupyter.magics.redrawn import Redrawn

if TYPE_CHECKING:
    from djinn_jupyter.client.batches import OnRow
    from djinn_jupyter.client.session import RemoteSession
    from djinn_jupyter.client.stops import Stop
    from djinn_jupyter.magics.kernel_state import KernelState
    from djinn_jupyter.widgets.view import View

DIGITS: Final = 4  # a logit of a model that is sure of its answer changes by little


def run_rows(
    state: KernelState,
    args: Namespace,
    session: RemoteSession,
    go: Callable[[OnRow], Sequence[Stop]],
    coefs: Sequence[float] = (),
) -> None:
    """Run a batch and show it, also one that ends early; its rows are this notebook's sessions then. With `coefs` it is
    a dose-response, whose metrics are drawn below."""
    if getattr(args, "effect", False) or getattr(args, "measure", None):
        raise UsageError("--effect measures one stop; leave it out, or run one prompt.")
    if coefs and args.metrics:
        _require_metrics(session, args.metrics)
    drawing = _Drawing(state, session, coefs, args.samples or 1)
    try:
        rows: Sequence[Any] = go(drawing.add)
    except BatchEnded as ended:
        _keep(state, args, drawing, ended.rows)
        raise
    except stops.BatchInterrupted as broken:
        _keep(state, args, drawing, broken.rows)
        raise UsageError(f"Interrupted. {broken}") from None
    _keep(state, args, drawing, rows)
    if coefs and args.metrics:
        _show_responses(state, args.metrics, rows, drawing.doses(rows))


def _require_metrics(session: RemoteSession, metrics: Sequence[str]) -> None:
    """Raise InvalidCondition or NoTokenizer for a metric that no row could have, before the rows of an earlier batch
    end. The engine reads the metrics before it looks for logits, of which this session may have none."""
    try:
        session.metrics(*metrics)
    except (InvalidCondition, NoTokenizer):
        raise
    except DjinnError:
        return


def _show_responses(state: KernelState, metrics: Sequence[str], rows: Sequence[Any], along: Sequence[float]) -> None:
    """Draw each metric of the rows that finished over their coefficients, in a picture of its own."""
    found = doses.responses(rows, along, metrics)
    if not found:
        raise UsageError("No row finished, so that none ended in logits to read a metric of; their stops are above.")
    for number, metric in enumerate(metrics):
        series = {metric: [values[number] for values in found.values()]}
        view = views.dose_response_view(
            list(found), series, dose="coefficient", response=metric, title="Dose-response", digits=DIGITS
        )
        state.screen.show(view)


def _keep(state: KernelState, args: Namespace, drawing: _Drawing, rows: Sequence[Any]) -> None:
    for row in rows:
        if isinstance(row, stops.Paused | stops.Finished):
            state.hold(cast("RemoteSession", row.session))
            state.outcomes[row.session.name] = row
    state.keep(args.keep, list(rows))
    drawing.end(rows)


class _Drawing:
    """One table: the rows that have ended while the batch runs, and all of them at the end."""

    def __init__(self, state: KernelState, session: RemoteSession, coefs: Sequence[float], samples: int) -> None:
        self._display, self._session = Redrawn(state.screen), session
        self._coefs, self._samples = coefs, samples
        self._rows: dict[int, Stop] = {}

    def doses(self, rows: Sequence[Any]) -> Sequence[float]:
        """Return the coefficient of each row; nothing where there are none."""
        return doses.doses_of(rows, self._coefs, self._samples) if self._coefs else ()

    def add(self, number: int, stop: Stop) -> None:
        self._rows[number] = stop
        self._display.draw(lambda: self._view([self._rows.get(one) for one in range(max(self._rows) + 1)]))

    def end(self, rows: Sequence[Any]) -> None:
        self._display.end(self._view(rows))

    def _view(self, rows: Sequence[Any]) -> View:
        shown = [getattr(row, "reply", None if row is None else str(row)) for row in rows]
        return views.rows_view(self._session.name, shown, self.doses(rows))
