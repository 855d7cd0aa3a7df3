"""A batch in a cell: one table of its rows, which fills while they end."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, cast

from djinn_jupyter.client import doses, stops
from djinn_jupyter.errors import BatchEnded, DjinnError, InvalidCondition, NoTokenizer, UsageError
from djinn_jupyter.magics.redrawn import Redrawn
from djinn_jupyter.widgets import views

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
    prompts: Callable[[], Sequence[Stop]] | None = None,
) -> None:
    """Run a batch and show it, also one that ends early; its rows are this notebook's sessions then. With `coefs` it is
    a dose-response, whose metrics are drawn below; `prompts` runs a row of each for no new token, so that they are
    read behind the prompt: None where `go` does."""
    if getattr(args, "effect", False) or getattr(args, "measure", None):
        raise UsageError("--effect measures one stop; leave it out, or run one prompt.")
    if coefs and args.metrics:
        _require_metrics(session, args.metrics)
    drawing = _Drawing(state, session, coefs, args.samples or 1)
    reads = bool(coefs and args.metrics)
    if reads and prompts is not None:
        drawing.read(args.metrics, _ended(prompts))
    try:
        rows: Sequence[Any] = go(drawing.add)
    except BatchEnded as ended:
        _keep(state, args, drawing, ended.rows)
        raise
    except stops.BatchInterrupted as broken:
        _keep(state, args, drawing, broken.rows)
        raise UsageError(f"Interrupted. {broken}") from None
    if reads and prompts is None:
        drawing.read(args.metrics, rows)
    _keep(state, args, drawing, rows)
    if reads:
        _show_responses(state, args.metrics, drawing.responses)


def _require_metrics(session: RemoteSession, metrics: Sequence[str]) -> None:
    """Raise InvalidCondition or NoTokenizer for a metric that no row could have, before the rows of an earlier batch
    end. The engine reads the metrics before it looks for logits, of which this session may have none."""
    try:
        session.metrics(*metrics)
    except (InvalidCondition, NoTokenizer):
        raise
    except DjinnError:
        return


def _ended(prompts: Callable[[], Sequence[Stop]]) -> Sequence[Any]:
    """Return the rows of a run for no new token, whatever became of some. An interrupt ends the cell."""
    try:
        return prompts()
    except BatchEnded as ended:
        return list(ended.rows)
    except stops.BatchInterrupted as broken:
        raise UsageError(f"Interrupted. {broken}") from None


def _show_responses(state: KernelState, metrics: Sequence[str], found: Mapping[float, Sequence[float]]) -> None:
    """Draw each metric over the coefficients, in a picture of its own."""
    if not found:
        raise UsageError(
            "No row ran its prompt to the end, so that no metric could be read behind it; their stops are above."
        )
    for number, metric in enumerate(metrics):
        series = {metric: [values[number] for values in found.values()]}
        view = views.dose_response_view(
            list(found),
            series,
            dose="coefficient",
            response=f"{metric}, behind the prompt",
            title="Dose-response",
            digits=DIGITS,
        )
        state.screen.show(view)


def _keep(state: KernelState, args: Namespace, drawing: _Drawing, rows: Sequence[Any]) -> None:
    for row in rows:
        if isinstance(row, stops.Paused | stops.Finished):
            state.hold(cast("RemoteSession", row.session))
            state.outcomes[row.session.name] = row
    state.keep(args.keep, drawing.table(rows, args))
    drawing.end(rows)


class _Drawing:
    """One table: the rows that have ended while the batch runs, and all of them at the end."""

    def __init__(self, state: KernelState, session: RemoteSession, coefs: Sequence[float], samples: int) -> None:
        self._display, self._session = Redrawn(state.screen), session
        self._coefs, self._samples = coefs, samples
        self._rows: dict[int, Stop] = {}
        self.responses: dict[float, tuple[float, ...]] = {}

    def read(self, metrics: Sequence[str], rows: Sequence[Any]) -> None:
        """Read the metrics of rows that ran their prompts."""
        self.responses = doses.responses(rows, doses.doses_of(rows, self._coefs, 1), metrics)

    def table(self, rows: Sequence[Any], args: Namespace) -> list[Any]:
        """Return the rows as they are kept."""
        if not self._coefs:
            return list(rows)
        return doses.DoseRows(rows, self.doses(rows), args.metrics or (), self.responses)

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
