"""Sweeps with an estimate, as a way to sweep: cells are estimated by gradients."""

from __future__ import annotations

from djinn_jupyter.engine.interventions.metric import Metrics
from djinn_jupyter.engine.requests.workspace import Workspace
from djinn_jupyter.engine.session.runtime import Runtime
from djinn_jupyter.engine.session.session import Session
from djinn_jupyter.engine.session.steps import Steps
from djinn_jupyter.errors import UsageError
from djinn_jupyter.methods.attribution.engine.attributing import Attributing
from djinn_jupyter.methods.attribution.engine.carried import KEYS, QUERIES
from djinn_jupyter.methods.attribution.engine.estimates import SUMMED
from djinn_jupyter.methods.attribution.engine.slopes import require_slopes
from djinn_jupyter.methods.attribution.engine.trial import Trials
from djinn_jupyter.methods.sweep.engine.checked_sweep import CheckedSweep
from djinn_jupyter.methods.sweep.engine.places import SweptPlaces
from djinn_jupyter.methods.sweep.engine.together import Together
from djinn_jupyter.methods.sweep.engine.ways import SweepWay, way_to_sweep
from djinn_jupyter.methods.sweep.request import Estimate, Sweep, Swept


@way_to_sweep
class ByGradients(SweepWay):
    reads_source = False
    in_modules = "Gradients estimate"

    def __init__(self, together: Together) -> None:
        super().__init__(together)
        self._trials = Trials()

    def takes(self, request: Sweep) -> bool:
        return request.estimate is not None

    def check_lines(self, request: Sweep, metrics: Metrics, line: int, source: int | None) -> None:
        """Raise InvalidCondition and UsageError for a sweep that gradients cannot estimate."""
        for metric in metrics.each:
            require_slopes(metric)
        others = (request.noise, request.coefs, request.receivers, request.continued, request.chosen)
        if any(others) or request.into == "clean":
            raise UsageError("Gradients estimate a sweep into the corrupted line, of one edit, without noise or paths.")
        if _estimate(request).steps > 1 and source != line:
            raise UsageError(
                "Integrated gradients go from the corrupted line to the clean one, which has to be as long: give such "
                "a line, or one step."
            )

    def check_places(self, request: Sweep, places: SweptPlaces) -> None:
        """Raise UsageError for added modules, for an axis that changes do not add up over, and for corrections that say
        nothing of these places."""
        super().check_places(request, places)
        strange = next((axis for part, axis in places.parts.items() if part not in SUMMED), None)
        if strange is not None:
            raise UsageError(f"Gradients do not estimate what a cell of the axis {strange} changes: sweep instead.")
        if "attention" not in _estimate(request).corrections:
            return
        if not any(point in (*QUERIES, *KEYS) for point, _ in places.taps):
            raise UsageError(
                "The correction of attention is one of queries and keys; attribute q, k, q_rot or k_rot, or leave it "
                "out."
            )
        if _estimate(request).steps > 1:
            raise UsageError("The correction of attention is of one step: leave it out, or the steps.")

    def steps(
        self, request: Sweep, runtime: Runtime, session: Session, asked: CheckedSweep, workspace: Workspace
    ) -> Steps[Swept]:
        return Attributing(runtime, session, asked, _estimate(request), self._trials).steps(workspace)


def _estimate(request: Sweep) -> Estimate:
    assert request.estimate is not None
    return request.estimate
