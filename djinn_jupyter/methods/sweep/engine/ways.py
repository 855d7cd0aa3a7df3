"""The ways to compute a sweep. By edited lines is the sweep's own; other methods add theirs with `way_to_sweep`."""

from __future__ import annotations

from typing import ClassVar, Final

from djinn_jupyter.engine.interventions.metric import Metrics
from djinn_jupyter.engine.model.hooks.feature_layout import FeatureLayout
from djinn_jupyter.engine.requests.workspace import Workspace
from djinn_jupyter.engine.session.runtime import Runtime
from djinn_jupyter.engine.session.session import Session
from djinn_jupyter.engine.session.steps import Steps
from djinn_jupyter.errors import UsageError
from djinn_jupyter.extensions import troubles
from djinn_jupyter.methods.sweep.engine.checked_sweep import CheckedSweep
from djinn_jupyter.methods.sweep.engine.pair_sweep import PairSweeping
from djinn_jupyter.methods.sweep.engine.places import SweptPlaces
from djinn_jupyter.methods.sweep.engine.together import Together
from djinn_jupyter.methods.sweep.request import Sweep, Swept

_OTHERS: Final[list[type[SweepWay]]] = []


class SweepWay:
    """A way to compute the sweeps that it takes, and what it refuses. An engine has one of each, made at its first
    sweep."""

    reads_source: ClassVar[bool] = True  # a sweep without an edit needs the line to patch from
    in_modules: ClassVar[str | None] = None  # why added modules are refused; None where they are not

    def __init__(self, together: Together) -> None:
        self.together = together

    def takes(self, request: Sweep) -> bool:
        """Return whether it computes this sweep: one way alone takes a request."""
        raise NotImplementedError

    def check_lines(self, request: Sweep, metrics: Metrics, line: int, source: int | None) -> None:
        """Refuse a sweep of lines of so many tokens, before its places are known. Raises errors of the domain."""

    def check_places(self, request: Sweep, places: SweptPlaces) -> None:
        """Refuse places that it cannot compute. Raises UsageError."""
        for tap in places.taps.values():
            if self.in_modules is not None and isinstance(tap.layout, FeatureLayout):
                raise UsageError(
                    f"{self.in_modules} the model's own points, and {tap.site} is an added module: sweep it instead."
                )

    def steps(
        self, request: Sweep, runtime: Runtime, session: Session, asked: CheckedSweep, workspace: Workspace
    ) -> Steps[Swept]:
        """Begin the sweep. What it refuses it refuses here, not in its first step."""
        raise NotImplementedError


class ByEditedLines(SweepWay):
    """The sweep's own way, which takes what no other does."""

    def takes(self, request: Sweep) -> bool:
        return True

    def check_places(self, request: Sweep, places: SweptPlaces) -> None:
        """Raise UsageError where no axis is named."""
        if not request.over:
            raise UsageError("A sweep goes over one axis at least, such as layer.")

    def steps(
        self, request: Sweep, runtime: Runtime, session: Session, asked: CheckedSweep, workspace: Workspace
    ) -> Steps[Swept]:
        return PairSweeping(runtime, session, asked, self.together).steps(workspace)


def way_to_sweep(way: type[SweepWay]) -> type[SweepWay]:
    """Have the sweeps that it takes computed this way."""
    _OTHERS.append(way)
    return way


def every_way(together: Together) -> list[SweepWay]:
    """Return every way to sweep, but those of methods that are left out; the sweep's own is last."""
    others = (way for way in _OTHERS if not any(method.has(way.__module__) for method in troubles()))
    return [way(together) for way in (*others, ByEditedLines)]
