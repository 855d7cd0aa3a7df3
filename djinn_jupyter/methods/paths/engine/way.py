"""Sweeps with receivers, as a way to sweep: each cell is a path to them."""

from __future__ import annotations

from djinn_jupyter.engine.requests.workspace import Workspace
from djinn_jupyter.engine.session.runtime import Runtime
from djinn_jupyter.engine.session.session import Session
from djinn_jupyter.engine.session.steps import Steps
from djinn_jupyter.errors import UsageError
from djinn_jupyter.methods.paths.engine.path_sweep import PathSweeping
from djinn_jupyter.methods.paths.engine.receivers import Receivers
from djinn_jupyter.methods.sweep.engine.checked_sweep import CheckedSweep
from djinn_jupyter.methods.sweep.engine.ways import SweepWay, way_to_sweep
from djinn_jupyter.methods.sweep.request import Sweep, Swept


@way_to_sweep
class ByPaths(SweepWay):
    in_modules = "Paths lead from"

    def takes(self, request: Sweep) -> bool:
        return bool(request.receivers) and request.estimate is None

    def steps(
        self, request: Sweep, runtime: Runtime, session: Session, asked: CheckedSweep, workspace: Workspace
    ) -> Steps[Swept]:
        if request.windows or request.in_pairs:
            raise UsageError("A path has one sender a cell; leave windows and pairs of cells out.")
        receivers = Receivers.of(runtime, request.receivers, asked.places.taps.values())
        return PathSweeping(runtime, session, asked, self.together, receivers).steps(workspace)
