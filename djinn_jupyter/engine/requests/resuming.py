"""Resume with a value and read the next stop: what an edit, a resume and a look do, answered once."""

from __future__ import annotations

from djinn_jupyter.engine.requests.execution import ExecutionRequests
from djinn_jupyter.engine.requests.handles import handles
from djinn_jupyter.engine.requests.inspection import InspectionRequests
from djinn_jupyter.engine.requests.interventions import BreakpointRequests
from djinn_jupyter.engine.residency.residency import Residency
from djinn_jupyter.engine.scheduling.mailbox import Holder
from djinn_jupyter.engine.session import queries, reports, stop_edits
from djinn_jupyter.engine.session.runtime import Runtime
from djinn_jupyter.engine.session.session import Session
from djinn_jupyter.engine.session.steps import RunSteps, Steps
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.edits import Set
from djinn_jupyter.wire.replies import Finished, Paused, Reached
from djinn_jupyter.wire.sites import Site


class ResumingRequests:
    def __init__(
        self,
        residency: Residency,
        runtime: Runtime,
        execution: ExecutionRequests,
        inspection: InspectionRequests,
        breakpoints: BreakpointRequests,
    ) -> None:
        self._residency, self._runtime = residency, runtime
        self._execution, self._inspection, self._breakpoints = execution, inspection, breakpoints

    @handles(ask.ResumeWith)
    def resume_with(self, request: ask.ResumeWith, session: Session, holder: Holder) -> Steps[Reached | Finished]:
        session.check_move("go_on")
        halts = self._sites(session, request.halts)
        if request.value is not None:
            self._put(session, Set(value=request.value), request.positions)
        if halts is not None:
            self._arm(session, halts)
        steps = self._execution.resume(ask.Resume(session=session.name), session, holder)
        return self._looked(session, steps, holder)

    def _sites(self, session: Session, halts: tuple[str, ...] | None) -> list[Site] | None:
        """Return the sites of breakpoints that are asked for. Raises UnknownSite before anything has changed."""
        sites = None if halts is None else [self._runtime.site(site) for site in halts]
        for site in sites or ():
            self._runtime.of(session).resolve(site)
        return sites

    def _arm(self, session: Session, halts: list[Site]) -> None:
        """Have the session stop at these sites, without a condition, and nowhere else."""
        wanted, there = set(halts), session.breakpoints.items()
        left = [n for n, one in there if one.condition is not None or one.site not in wanted]
        session.remove(session.breakpoints, left)
        for one in session.breakpoints.values():
            one.arm(enabled=True, once=False)
            session.set_breakpoint(one)
        armed = {one.site for one in session.breakpoints.values()}
        for site in dict.fromkeys(halts):
            if site not in armed:
                self._breakpoints.add(session, site, self._runtime.of(session).resolve(site), None, once=False)

    def _put(self, session: Session, edit: Set, positions: tuple[int, ...] | None) -> None:
        """Make an edit of the present stop. Raises InvalidEdit, and SlabFull where there is no room for it now."""
        frame = queries.stopped_frame(session)
        assert frame.tap is not None and frame.raw is not None
        stop_edits.require_editable(frame.tap)
        self._residency.set_aside_now(frame.raw.nbytes)
        site = reports.site_of(session)
        made = stop_edits.make(frame, edit, site, positions, number=len(session.edits) + 1)
        session.set_edits(made.frame, [*session.edits, made.noted])
        self._residency.accounted(session)

    def _looked(self, session: Session, steps: RunSteps, holder: Holder) -> Steps[Reached | Finished]:
        """Run the steps to the next stop. Return the value there; the end where there is none."""
        stop = yield from steps
        if not isinstance(stop, Paused):
            return stop
        seen = yield from self._inspection.inspect(ask.Inspect(session=session.name), session, holder)
        drawn = stop.tokens[stop.prompt_tokens :]
        return Reached(snapshot=seen.snapshot, step=stop.step, positions=stop.positions, drawn=drawn)
