"""All handlers of requests, each given the parts that it works with."""

from __future__ import annotations

from djinn_jupyter.engine.config import EngineConfig
from djinn_jupyter.engine.memory.budget import Budget
from djinn_jupyter.engine.memory.offload.storages import StorageTable
from djinn_jupyter.engine.persistence.file_worker import UntilDone
from djinn_jupyter.engine.persistence.persistence import Persistence
from djinn_jupyter.engine.requests.adapters import AdapterRequests
from djinn_jupyter.engine.requests.added_modules import AddedModuleRequests
from djinn_jupyter.engine.requests.checkpoints import CheckpointRequests
from djinn_jupyter.engine.requests.comparing import ComparisonRequests
from djinn_jupyter.engine.requests.execution import ExecutionRequests
from djinn_jupyter.engine.requests.handles import RequestHandlers
from djinn_jupyter.engine.requests.inspection import InspectionRequests
from djinn_jupyter.engine.requests.interventions import BreakpointRequests, EditRequests, RuleRequests
from djinn_jupyter.engine.requests.lifecycle import SessionLifecycle
from djinn_jupyter.engine.requests.methods import MethodParts, handlers_of_methods
from djinn_jupyter.engine.requests.moving import MoveRequests, SessionMoves
from djinn_jupyter.engine.requests.owners import Owners
from djinn_jupyter.engine.requests.passes import PassRequests
from djinn_jupyter.engine.requests.people import PeopleRequests
from djinn_jupyter.engine.requests.resuming import ResumingRequests
from djinn_jupyter.engine.requests.sessions import SessionRequests
from djinn_jupyter.engine.requests.swap import SwapRequests
from djinn_jupyter.engine.requests.switching import SwitchingRequests
from djinn_jupyter.engine.requests.tree import TreeRequests
from djinn_jupyter.engine.requests.weights import WeightRequests
from djinn_jupyter.engine.requests.whole_images import WholeImages
from djinn_jupyter.engine.requests.workspace import Workspace
from djinn_jupyter.engine.residency.residency import Residency
from djinn_jupyter.engine.scheduling.running_time import RunningTime
from djinn_jupyter.engine.session.runtime import Runtime
from djinn_jupyter.engine.session.table import SessionTable


def request_handlers(
    *,
    sessions: SessionTable,
    lifecycle: SessionLifecycle,
    owners: Owners,
    moves: SessionMoves,
    runtime: Runtime,
    residency: Residency,
    persistence: Persistence,
    storage_table: StorageTable,
    budget: Budget,
    running_time: RunningTime,
    options: EngineConfig,
    until: UntilDone,
    extents: dict[str, int],
) -> RequestHandlers:
    """Return one handler for each kind of request."""
    execution = ExecutionRequests(runtime, residency)
    inspection = InspectionRequests(runtime, Workspace(budget, runtime.space, "lenses"), persistence)
    breakpoints = BreakpointRequests(runtime)
    images = WholeImages(runtime, residency, storage_table, options)
    methods = MethodParts(
        sessions=sessions,
        runtime=runtime,
        budget=budget,
        identity=persistence.identity,
        files=persistence.file_worker,
        until_done=until,
        extents=extents,
    )
    return RequestHandlers(
        sessions,
        SessionRequests(sessions, lifecycle, runtime, residency, options, persistence),
        execution,
        ResumingRequests(residency, runtime, execution, inspection, breakpoints),
        breakpoints,
        EditRequests(sessions, runtime, residency),
        RuleRequests(runtime),
        SwitchingRequests(runtime, residency),
        inspection,
        ComparisonRequests(sessions, residency),
        PassRequests(runtime),
        TreeRequests(sessions, runtime),
        PeopleRequests(sessions, storage_table, persistence, residency, running_time),
        SwapRequests(sessions, residency),
        WeightRequests(sessions, runtime),
        AddedModuleRequests(sessions, runtime),
        AdapterRequests(sessions, runtime),
        CheckpointRequests(sessions, lifecycle, owners, images, persistence, residency, storage_table, until),
        MoveRequests(sessions, lifecycle, moves, images, runtime, persistence, until),
        *handlers_of_methods(methods),
        split=runtime.forward.split,
    )
